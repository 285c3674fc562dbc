"""The OpenAPI document: every REST route, with schemas and examples.

What is described stands in `openapi_operations` and `openapi_admin`; here it becomes a document.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..runtime import limits
from . import openapi_examples as examples
from . import shapes
from .admin_http import ADMIN_ROUTES
from .deploy_http import DEPLOY_ROUTES
from .migration_http import MIGRATION_ROUTES
from .openapi_admin import ADMIN_OPERATIONS
from .openapi_migration import MIGRATION_OPERATIONS
from .openapi_operations import WORKFLOW_OPERATIONS, Json, Operation
from .routes_http import BASE, ROUTES

OPERATIONS = (*WORKFLOW_OPERATIONS, *ADMIN_OPERATIONS, *MIGRATION_OPERATIONS)
_REF = "#/components/schemas/{name}"
_BINARY: Json = {"type": "string", "format": "binary"}
_FREE = (None, Any, bytes)
"""Bodies that msgspec makes no schema of."""
_PATH_WORDS = {
    "account_id": ("The account; the token must reach it.", "default"),
    "workflow_name": ("The workflow's name.", "orders"),
    "instance_id": ("The instance's id; as a path segment `/` is written `%2F`.", "folder/7/sync"),
    "event_type": ("The event's type.", "approval"),
    "version_id": ("A version's id.", examples.UUID),
    "token_id": ("A token's id.", "4mJqvX0cWb1D"),
    "script_name": ("The name that code is deployed under.", "shop.py"),
}
_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": "Each operation names the scope that it needs: `read`, `write` or `admin`, each "
    "of which holds those before it; and `operator`, where only a token of every account will do.",
}
_ERRORS = {
    "400": ("The request is refused; nothing was changed.", 10101, "request.invalid_argument"),
    "401": ("No token, or an unknown one.", 10000, "auth.unauthorized"),
    "403": ("The token does not reach this account.", 9109, "auth.forbidden"),
    "404": ("No such workflow, instance, account or path.", 10200, "workflow.not_found"),
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
    known = [kind for kind in dict.fromkeys([*kinds, shapes.ListInfo]) if kind not in _FREE]
    made, components = msgspec.json.schema_components(known, ref_template=_REF)
    schemas: dict[Any, Json] = dict(zip(known, made, strict=True)) | {Any: {}, bytes: _BINARY}
    scopes = _scopes()
    paths: Json = {}
    for op in OPERATIONS:
        results = [schemas[kind] for kind in _alternatives(op.result)]
        result = results[0] if len(results) == 1 else {"anyOf": results}
        made_op = _operation(op, result, schemas.get(op.body), schemas[shapes.ListInfo])
        made_op["security"] = [{"token": scopes[key_of(op.method, op.path)]}]
        paths.setdefault(op.path, {})[op.method] = made_op
    components["Failure"] = _failure_schema()
    return {
        "openapi": "3.1.0",
        "info": {"title": "toque control plane", "version": version},
        "security": [{"token": []}],
        "paths": {**paths, **_health_paths()},
        "components": {
            "schemas": components,
            "securitySchemes": {"token": _TOKEN},
        },
    }


def key_of(method: str, path: str) -> tuple[str, str]:
    """A route's method and path, whatever its parameters are called."""
    return method.upper(), re.sub(r"\{\w*\}", "{}", path)


def _scopes() -> dict[tuple[str, str], list[str]]:
    """What a token needs for each route."""
    return {
        key_of(route.method, "/".join(("", *base, *route.path))): [
            *(["operator"] if route.operator else []),
            route.scope,
        ]
        for base, table in (
            (BASE, ROUTES),
            ((), (*ADMIN_ROUTES, *DEPLOY_ROUTES, *MIGRATION_ROUTES)),
        )
        for route in table
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
        content["application/octet-stream"] = {"schema": _BINARY}
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
        example = {} if op.body_example is None else {"example": op.body_example}
        made["requestBody"] = {
            "required": False,
            "content": {op.body_type: {"schema": body, **example}},
        }
    return made


def _parameters(op: Operation) -> list[Json]:
    made: list[Json] = []
    for word, (description, example) in _PATH_WORDS.items():
        if f"{{{word}}}" in op.path:
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

    not_ready = {"503": {"description": "Some part does not work; see Retry-After."}}
    ready = {"status": "ready", "draining": False, "parts": {"c0": True, "d0": True}}
    return {
        "/healthz": one("healthz", "Whether the process serves.", {"status": "ok"}, {}),
        "/readyz": one(
            "readyz",
            "Whether all parts do their work; with a token, which of them do.",
            ready,
            not_ready,
        ),
        "/metrics": {"get": _metrics()},
    }


def _metrics() -> Json:
    return {
        "operationId": "metrics",
        "summary": "Figures of the system for Prometheus.",
        "security": [{"token": ["operator", "read"]}],
        "responses": {
            "200": {
                "description": "Done.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            },
            **{status: _failures()[status] for status in ("401", "403", "429", "503")},
        },
    }
