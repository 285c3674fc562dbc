"""The described routes of workflows and instances, and what a description is made of.

The schemas are made from the very types that requests are parsed into and answers are made of,
so that a description says what the server does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..engines.journal import OUTPUT_TYPES
from ..runtime import limits
from . import deploy_shapes, shapes, version_shapes, watched
from . import openapi_examples as examples
from .changes import STATUS_CHANGES
from .listing import STATUSES
from .requests import CreateBody, SelectionBody, StatusBody, StatusesBody
from .workflow_shapes import WorkflowShape

_WORKFLOWS = "/client/v4/accounts/{account_id}/workflows"
_WORKFLOW = _WORKFLOWS + "/{workflow_name}"
_INSTANCES = _WORKFLOW + "/instances"
_INSTANCE = _INSTANCES + "/{instance_id}"

Json = dict[str, Any]


class Operation(NamedTuple):
    """One documented route.

    Attributes:
        path: whole, with the names of its parameters.
        result: type of the answer's result; a tuple: one of them.
        query: maps a parameter to its schema and description.
        body: type of the body; `body_type` is its media type, and bytes have no schema.
        listed: the result is a page.
        keyed: it honours an Idempotency-Key.
        streamed: it answers by server-sent events.
        content: it may answer by bytes.
    """

    method: str
    path: str
    name: str
    summary: str
    result: Any
    example: Any
    query: Json
    body: Any = None
    body_example: Any = None
    body_type: str = "application/json"
    listed: bool = False
    keyed: bool = False
    streamed: bool = False
    content: bool = False


def text(description: str, **schema: Any) -> Json:
    """A parameter that is a text."""
    return {"schema": {"type": "string", **schema}, "description": description}


def number(description: str, **schema: Any) -> Json:
    """A parameter that is a whole number."""
    return {"schema": {"type": "integer", **schema}, "description": description}


_WAIT = text(
    "Answer when the instance has ended, at the latest after this time: a number with a unit, "
    f"`500ms`, `30s`, `2m`; at most {limits.WAIT_MAX_MS // 1000}s.",
    examples=["30s"],
)
PAGE = number("Page, from 1. Prefer `cursor`.", minimum=1)
PER_PAGE = number(
    "Rows of a page.", minimum=1, maximum=limits.PER_PAGE_MAX, default=limits.PER_PAGE_DEFAULT
)
_CURSOR = number("`eventId` of the last event seen; 0: from the start.", minimum=0, default=0)
_FILTER = text(
    "Only events of these types, with commas between.", examples=["step_completed,step_errored"]
)
_LIMIT = number(
    "Events of a page.", minimum=1, maximum=limits.EVENTS_PAGE_MAX, default=limits.EVENTS_PAGE_MAX
)

WORKFLOW_OPERATIONS = (
    Operation(
        "get",
        _WORKFLOWS,
        "listWorkflows",
        "List the account's workflows by name.",
        WorkflowShape,
        [examples.WORKFLOW],
        {
            "page": PAGE,
            "per_page": PER_PAGE,
            "search": text("Only names that contain this."),
        },
        listed=True,
    ),
    Operation(
        "get",
        _WORKFLOW,
        "getWorkflow",
        "Get a workflow.",
        WorkflowShape,
        examples.WORKFLOW,
        {},
    ),
    Operation(
        "put",
        _WORKFLOW,
        "putWorkflow",
        "Give a class of a deployed script a workflow's name, and set its limits; what is left out "
        "of them stays. `schedules` must be empty.",
        deploy_shapes.RegisteredShape,
        examples.REGISTERED,
        {},
        body=deploy_shapes.WorkflowBody,
        body_example={
            "class_name": "Orders",
            "script_name": "shop.py",
            "concurrency": {"limit": 500},
            "default_retention": {"success_retention": "3 days"},
            "limits": {"steps": 1000},
        },
    ),
    Operation(
        "delete",
        _WORKFLOW,
        "deleteWorkflow",
        "Remove a workflow. Its name is free at once; its instances go in the background.",
        deploy_shapes.OkShape,
        {"status": "ok"},
        {},
    ),
    Operation(
        "get",
        _WORKFLOW + "/versions",
        "listVersions",
        "List a workflow's versions, newest first.",
        version_shapes.VersionShape,
        [examples.VERSION],
        {"page": PAGE, "per_page": PER_PAGE},
        listed=True,
    ),
    Operation(
        "get",
        _WORKFLOW + "/versions/{version_id}",
        "getVersion",
        "Get a version of a workflow.",
        version_shapes.VersionShape,
        examples.VERSION,
        {},
    ),
    Operation(
        "get",
        _WORKFLOW + "/versions/{version_id}/graph",
        "getVersionGraph",
        "Get a version with the graph of its steps, as read from its source; `graph` is null where "
        "the source is not at hand.",
        version_shapes.VersionGraphShape,
        {**examples.VERSION, "graph": examples.GRAPH},
        {},
    ),
    Operation(
        "post",
        _INSTANCES,
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
        _INSTANCES,
        "listInstances",
        "List instances. With `cursor` each is shown exactly once; no `cursor` in result_info: "
        "the end. `total_count` is a lower bound where dates filter, and from 10,000 on.",
        shapes.Listed,
        [examples.LISTED],
        {
            "cursor": text("`result_info.cursor` of the page before; `page` counts from it."),
            "page": PAGE,
            "per_page": PER_PAGE,
            "status": text("Only this status; several by commas.", examples=list(STATUSES)),
            "date_start": text("Created at or after.", format="date-time"),
            "date_end": text("Created at or before.", format="date-time"),
            "direction": text("By creation.", enum=["desc", "asc"], default="desc"),
            "prefix": text("Only ids that begin so; in the order of ids.", examples=["folder/7/"]),
        },
        listed=True,
    ),
    Operation(
        "post",
        _INSTANCES + "/batch",
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
        _INSTANCE,
        "getInstance",
        "Get an instance with its steps; with `wait`, when it has ended.",
        shapes.Detail,
        examples.DETAIL,
        {
            "order": text("Order of steps.", enum=["asc", "desc"], default="asc"),
            "simple": text("`true`: without steps.", enum=["false", "true"], default="false"),
            "steps": number("Only the first so many steps of that order; 0: all.", minimum=0),
            "payload_bytes": number(
                "Leave longer payloads out, and tell their lengths instead.", minimum=0
            ),
            "wait": _WAIT,
        },
    ),
    Operation(
        "delete",
        _INSTANCE,
        "deleteInstance",
        "Remove an instance, whatever its status; its id is free at once.",
        shapes.Deleted,
        {"id": "order-42"},
        {},
        keyed=True,
    ),
    Operation(
        "post",
        _INSTANCES + "/batch/delete",
        "deleteInstances",
        f"Remove up to {limits.CHANGE_BATCH_MAX} instances, each by itself: those named (one "
        "malformed id refuses the whole batch), or the next ones that a filter finds; then "
        "`cursor` leads on until it is null.",
        shapes.InstancesDeleted,
        {
            "deleted": [{"id": "order-42"}],
            "errors": [{"id": "order-43", "code": 10400, "message": "there is no instance."}],
            "cursor": None,
        },
        {},
        body=SelectionBody,
        body_example={"instances": ["order-42", "order-43"]},
        keyed=True,
    ),
    Operation(
        "post",
        _INSTANCES + "/batch/status",
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
        _INSTANCES + "/terminate",
        "terminateInstances",
        "Terminate all instances of some statuses, in the background.",
        shapes.Begun,
        {"status": "ok"},
        {"status": text("Only these, by commas; left out: all that have not ended.")},
    ),
    Operation(
        "patch",
        _INSTANCE + "/status",
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
        _INSTANCE + "/events",
        "getEvents",
        "A page of what has happened to an instance; with `wait`, as soon as something has.",
        watched.InstanceEvents,
        {"events": [examples.EVENT], "cursor": 3, "ended": False},
        {"cursor": _CURSOR, "filter": _FILTER, "limit": _LIMIT, "wait": _WAIT},
    ),
    Operation(
        "get",
        _INSTANCE + "/subscribe",
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
        _INSTANCE + "/step",
        "getStep",
        "What a step gave, in full. If that is a stream: its content, as "
        "application/octet-stream, unless `as` is `json`.",
        shapes.StepOutputShape,
        {"status": "complete", "error": None, "output": {"indexed": 3}},
        {
            "name": {**text("The step's public name.", example="fetch-1"), "required": True},
            "type": text("Of the step.", enum=list(OUTPUT_TYPES), default="step"),
            "attempt": number("How that attempt ended, instead.", minimum=0, examples=[1]),
            "as": text("Form of a stream.", enum=["content", "json"], default="content"),
        },
        content=True,
    ),
    Operation(
        "get",
        _INSTANCE + "/waiting",
        "getWaiting",
        "Why an instance does not go on, and which events it was sent that no wait asks for.",
        watched.Waiting,
        examples.WAITING,
        {},
    ),
    Operation(
        "post",
        _INSTANCE + "/events/{event_type}",
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
