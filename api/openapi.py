"""The OpenAPI document: every REST route, with schemas and examples.

The schemas are made from the very types that requests are parsed into and answers are made of,
so the document says what the server does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..runtime import limits
from . import openapi_examples as examples
from . import shapes, version_shapes, watched
from .changes import STATUS_CHANGES
from .listing import STATUSES
from .requests import CreateBody, IdsBody, StatusBody, StatusesBody

_REF = "#/components/schemas/{name}"
_BASE = "/client/v4/accounts/{account_id}/workflows"

Json = dict[str, Any]


class Operation(NamedTuple):
    """One documented route. `query` maps a parameter to its schema and description."""

    method: str
    path: str
    name: str
    summary: str
    result: Any
    example: Any
    query: Json
    body: Any = None
    body_example: Any = None
    listed: bool = False
    keyed: bool = False
    streamed: bool = False
    content: bool = False


def _text(description: str, **schema: Any) -> Json:
    return {"schema": {"type": "string", **schema}, "description": description}


def _number(description: str, **schema: Any) -> Json:
    return {"schema": {"type": "integer", **schema}, "description": description}


_WAIT = _text(
    "Answer when the instance has ended, at the latest after this time: a number with a unit, "
    f"`500ms`, `30s`, `2m`; at most {limits.WAIT_MAX_MS // 1000}s.",
    examples=["30s"],
)
_PAGE = _number("Page, from 1. Prefer `cursor`.", minimum=1)
_PER_PAGE = _number(
    "Rows of a page.", minimum=1, maximum=limits.PER_PAGE_MAX, default=limits.PER_PAGE_DEFAULT
)
_CURSOR = _number("`eventId` of the last event seen; 0: from the start.", minimum=0, default=0)
_FILTER = _text(
    "Only events of these types, with commas between.", examples=["step_completed,step_errored"]
)
_LIMIT = _number(
    "Events of a page.", minimum=1, maximum=limits.EVENTS_PAGE_MAX, default=limits.EVENTS_PAGE_MAX
)

OPERATIONS = (
    Operation(
        "get",
        "",
        "listWorkflows",
        "List the account's workflows by name.",
        shapes.WorkflowShape,
        [examples.WORKFLOW],
        {
            "page": _PAGE,
            "per_page": _PER_PAGE,
            "search": _text("Only names that contain this."),
        },
        listed=True,
    ),
    Operation(
        "get",
        "/{workflow_name}",
        "getWorkflow",
        "Get a workflow.",
        shapes.WorkflowShape,
        examples.WORKFLOW,
        {},
    ),
    Operation(
        "get",
        "/{workflow_name}/versions",
        "listVersions",
        "List a workflow's versions, newest first.",
        version_shapes.VersionShape,
        [examples.VERSION],
        {"page": _PAGE, "per_page": _PER_PAGE},
        listed=True,
    ),
    Operation(
        "get",
        "/{workflow_name}/versions/{version_id}",
        "getVersion",
        "Get a version of a workflow.",
        version_shapes.VersionShape,
        examples.VERSION,
        {},
    ),
    Operation(
        "get",
        "/{workflow_name}/versions/{version_id}/graph",
        "getVersionGraph",
        "Get a version with the graph of its steps, as read from its source; `graph` is null where "
        "the source is not at hand.",
        version_shapes.VersionGraphShape,
        {**examples.VERSION, "graph": examples.GRAPH},
        {},
    ),
    Operation(
        "post",
        "/{workflow_name}/instances",
        "createInstance",
        "Create an instance; with `wait`, answer when it has ended.",
        (shapes.Created, shapes.CreatedAndWaited),
        examples.CREATED,
        {"wait": _WAIT},
        body=CreateBody,
        body_example={"instance_id": "order-42", "params": {"order": 42}},
        keyed=True,
    ),
    Operation(
        "get",
        "/{workflow_name}/instances",
        "listInstances",
        "List instances. With `cursor` each is shown exactly once; no `cursor` in result_info: "
        "the end. `total_count` is a lower bound where dates filter.",
        shapes.Listed,
        [examples.LISTED],
        {
            "cursor": _text("`result_info.cursor` of the page before; `page` counts from it."),
            "page": _PAGE,
            "per_page": _PER_PAGE,
            "status": _text("Only this status; several by commas.", examples=list(STATUSES)),
            "date_start": _text("Created at or after.", format="date-time"),
            "date_end": _text("Created at or before.", format="date-time"),
            "direction": _text("By creation.", enum=["desc", "asc"], default="desc"),
            "prefix": _text("Only ids that begin so; in the order of ids.", examples=["folder/7/"]),
        },
        listed=True,
    ),
    Operation(
        "post",
        "/{workflow_name}/instances/batch",
        "createInstances",
        f"Create up to {limits.CREATE_BATCH_MAX} instances. Ids in use (10405), and those that are "
        "in the batch twice (10415), are named in `messages`; one malformed item refuses it all.",
        list[shapes.Created],
        [examples.CREATED],
        {},
        body=list[CreateBody],
        body_example=[{"instance_id": "order-42", "params": {"order": 42}}],
        keyed=True,
    ),
    Operation(
        "get",
        "/{workflow_name}/instances/{instance_id}",
        "getInstance",
        "Get an instance with its steps; with `wait`, when it has ended.",
        shapes.Detail,
        examples.DETAIL,
        {
            "order": _text("Order of steps.", enum=["asc", "desc"], default="asc"),
            "simple": _text("`true`: without steps.", enum=["false", "true"], default="false"),
            "wait": _WAIT,
        },
    ),
    Operation(
        "delete",
        "/{workflow_name}/instances/{instance_id}",
        "deleteInstance",
        "Remove an instance, whatever its status; its id is free at once.",
        shapes.Deleted,
        {"id": "order-42"},
        {},
        keyed=True,
    ),
    Operation(
        "post",
        "/{workflow_name}/instances/batch/delete",
        "deleteInstances",
        f"Remove up to {limits.CHANGE_BATCH_MAX} instances, each by itself; one malformed id "
        "refuses the whole batch.",
        shapes.InstancesDeleted,
        {
            "deleted": [{"id": "order-42"}],
            "errors": [{"id": "order-43", "code": 10400, "message": "there is no instance."}],
        },
        {},
        body=IdsBody,
        body_example={"instances": ["order-42", "order-43"]},
        keyed=True,
    ),
    Operation(
        "post",
        "/{workflow_name}/instances/batch/status",
        "changeStatuses",
        f"Change the status of up to {limits.CHANGE_BATCH_MAX} instances, each by itself: of those "
        "named, or of the next ones that a filter finds; then `cursor` leads on until it is null.",
        shapes.StatusesChanged,
        {"changed": [{"id": "order-42", "status": "paused"}], "errors": [], "cursor": None},
        {},
        body=StatusesBody,
        body_example={"instances": ["order-42"], "status": "pause"},
        keyed=True,
    ),
    Operation(
        "put",
        "/{workflow_name}/instances/terminate",
        "terminateInstances",
        "Terminate all instances of some statuses, in the background.",
        shapes.Begun,
        {"status": "ok"},
        {"status": _text("Only these, by commas; left out: all that have not ended.")},
    ),
    Operation(
        "patch",
        "/{workflow_name}/instances/{instance_id}/status",
        "changeStatus",
        f"Change an instance's status. Supported: {', '.join(STATUS_CHANGES)}.",
        shapes.StatusChanged,
        {"status": "terminated", "timestamp": examples.TIME},
        {},
        body=StatusBody,
        body_example={"status": "terminate"},
        keyed=True,
    ),
    Operation(
        "get",
        "/{workflow_name}/instances/{instance_id}/events",
        "getEvents",
        "A page of what has happened to an instance; with `wait`, as soon as something has.",
        watched.InstanceEvents,
        {"events": [examples.EVENT], "cursor": 3, "ended": False},
        {"cursor": _CURSOR, "filter": _FILTER, "limit": _LIMIT, "wait": _WAIT},
    ),
    Operation(
        "get",
        "/{workflow_name}/instances/{instance_id}/subscribe",
        "subscribe",
        "What has happened to an instance, then what happens, as server-sent events until it "
        "has ended. The data of each is an event; 204: there is nothing (more) to come.",
        watched.InstanceEvent,
        examples.EVENT,
        {"cursor": _CURSOR, "filter": _FILTER},
        streamed=True,
    ),
    Operation(
        "get",
        "/{workflow_name}/instances/{instance_id}/step",
        "getStep",
        "What a step gave, in full. If that is a stream: its content, as "
        "application/octet-stream, unless `as` is `json`.",
        shapes.StepOutputShape,
        {"status": "complete", "error": None, "output": {"indexed": 3}},
        {
            "name": {**_text("The step's public name.", example="fetch-1"), "required": True},
            "type": _text("Of the step.", enum=["step", "waitForEvent"], default="step"),
            "attempt": _number("How that attempt ended, instead.", minimum=0, examples=[1]),
            "as": _text("Form of a stream.", enum=["content", "json"], default="content"),
        },
        content=True,
    ),
    Operation(
        "get",
        "/{workflow_name}/instances/{instance_id}/waiting",
        "getWaiting",
        "Why an instance does not go on, and which events it was sent that no wait asks for.",
        watched.Waiting,
        examples.WAITING,
        {},
    ),
    Operation(
        "post",
        "/{workflow_name}/instances/{instance_id}/events/{event_type}",
        "sendEvent",
        "Send an event; the body is its payload, any JSON or nothing.",
        shapes.EventSent,
        {"instanceId": "order-42", "timestamp": examples.TIME},
        {},
        body=Any,
        body_example={"approved": True},
        keyed=True,
    ),
)

_PATH_WORDS = {
    "account_id": ("The account; the token must reach it.", "default"),
    "workflow_name": ("The workflow's name.", "orders"),
    "instance_id": ("The instance's id; as a path segment `/` is written `%2F`.", "folder/7/sync"),
    "event_type": ("The event's type.", "approval"),
    "version_id": ("A version's id.", examples.UUID),
}
_ERRORS = {
    "400": ("The request is refused; nothing was changed.", 10101, "request.invalid_argument"),
    "401": ("No token, or an unknown one.", 10000, "auth.unauthorized"),
    "403": ("The token does not reach this account.", 9109, "auth.forbidden"),
    "404": ("No such workflow, instance or path.", 10200, "workflow.not_found"),
    "408": ("The body did not arrive in time.", 7002, "http.request_timeout"),
    "413": ("The body or payload is too large.", 10103, "payload.too_large"),
    "422": ("The key stands for another request.", 10109, "request.id_reused"),
    "429": ("Too many requests; see Retry-After.", 10605, "rate.limited"),
    "503": ("Not now; see Retry-After.", 10502, "shard.unavailable"),
    "504": ("The outcome is unknown; ask again with the same key.", 10504, "outcome.unknown"),
}


def openapi_document(version: str) -> Json:
    """The document, as JSON-like data."""
    kinds = [kind for op in OPERATIONS for kind in (*_alternatives(op.result), op.body)]
    known = [kind for kind in dict.fromkeys([*kinds, shapes.ListInfo]) if kind not in (None, Any)]
    made, components = msgspec.json.schema_components(known, ref_template=_REF)
    schemas: dict[Any, Json] = dict(zip(known, made, strict=True)) | {Any: {}}
    paths: Json = {}
    for op in OPERATIONS:
        results = [schemas[kind] for kind in _alternatives(op.result)]
        result = results[0] if len(results) == 1 else {"anyOf": results}
        made_op = _operation(op, result, schemas.get(op.body), schemas[shapes.ListInfo])
        paths.setdefault(_BASE + op.path, {})[op.method] = made_op
    components["Failure"] = _failure_schema()
    return {
        "openapi": "3.1.0",
        "info": {"title": "toque control plane", "version": version},
        "security": [{"token": []}],
        "paths": {**paths, **_health_paths()},
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _alternatives(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _operation(op: Operation, result: Json, body: Json | None, list_info: Json) -> Json:
    answer: Json = {
        "success": {"const": True},
        "errors": {"type": "array", "maxItems": 0},
        "messages": {"type": "array"},
        "result": {"type": "array", "items": result} if op.listed else result,
    }
    example: Json = {"success": True, "errors": [], "messages": [], "result": op.example}
    if op.listed:
        answer["result_info"] = list_info
        example["result_info"] = {
            "count": 1,
            "per_page": limits.PER_PAGE_DEFAULT,
            "total_count": 1,
            "page": 1,
            "total_pages": 1,
        }
    schema = {"type": "object", "properties": answer, "required": list(answer)}
    content = {"application/json": {"schema": schema, "example": example}}
    if op.streamed:
        events = {"type": "string", "description": "Server-sent events; the data of each:"}
        content = {"text/event-stream": {"schema": events, "x-event": result}}
    if op.content:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    done: Json = {"200": {"description": "Done.", "content": content}}
    if op.streamed:
        done["204"] = {"description": "Nothing more will come."}
    made: Json = {
        "operationId": op.name,
        "summary": op.summary,
        "parameters": _parameters(op),
        "responses": {**done, **_failures()},
    }
    if body is not None:
        made["requestBody"] = {
            "required": False,
            "content": {"application/json": {"schema": body, "example": op.body_example}},
        }
    return made


def _parameters(op: Operation) -> list[Json]:
    made: list[Json] = []
    for word, (description, example) in _PATH_WORDS.items():
        if f"{{{word}}}" in _BASE + op.path:
            made.append(
                {
                    "name": word,
                    "in": "path",
                    "required": True,
                    "description": description,
                    "schema": {"type": "string"},
                    "example": example,
                }
            )
    made.extend({"name": name, "in": "query", **facts} for name, facts in op.query.items())
    if op.keyed:
        made.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Names the request: sent again it takes effect once and gets the "
                "first answer.",
                "schema": {"type": "string", "maxLength": limits.REQUEST_ID_CHARS_MAX},
                "example": examples.UUID,
            }
        )
    return made


def _failures() -> Json:
    made: Json = {}
    for status, (description, number, code) in _ERRORS.items():
        error = {"code": number, "message": description, "toque": {"code": code, "data": {}}}
        example = {"success": False, "errors": [error], "messages": [], "result": None}
        schema = {"$ref": _REF.format(name="Failure")}
        made[status] = {
            "description": description,
            "content": {"application/json": {"schema": schema, "example": example}},
        }
    return made


def _failure_schema() -> Json:
    error = {
        "type": "object",
        "properties": {
            "code": {"type": "integer"},
            "message": {"type": "string"},
            "toque": {
                "type": "object",
                "properties": {"code": {"type": "string"}, "data": {"type": "object"}},
            },
        },
        "required": ["code", "message"],
    }
    return {
        "type": "object",
        "properties": {
            "success": {"const": False},
            "errors": {"type": "array", "items": error, "minItems": 1},
            "messages": {"type": "array"},
            "result": {"type": "null"},
        },
        "required": ["success", "errors", "messages", "result"],
    }


def _health_paths() -> Json:
    def one(name: str, summary: str, example: Json, more: Json) -> Json:
        content = {"application/json": {"schema": {"type": "object"}, "example": example}}
        ok = {"description": "Yes.", "content": content}
        operation = {
            "operationId": name,
            "summary": summary,
            "security": [],
            "responses": {"200": ok, **more},
        }
        return {"get": operation}

    shards = one(
        "shards",
        "Counters of each shard that answers.",
        {"d0": {"epoch": 1, "commits": 120}},
        {status: _failures()[status] for status in ("401", "403", "429")},
    )
    del shards["get"]["security"]  # not open
    not_ready = {"503": {"description": "Some shard does not answer; see Retry-After."}}
    return {
        "/toque/v1/shards": shards,
        "/healthz": one("healthz", "Whether the process serves.", {"status": "ok"}, {}),
        "/readyz": one(
            "readyz",
            "Whether all shards answer.",
            {"status": "ready", "shards": {"c0": True, "d0": True}},
            not_ready,
        ),
    }
