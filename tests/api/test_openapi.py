"""The OpenAPI document says what a real server does: its examples are asked for and compared.

For each route: the example of its answer and the answer of a server over a whole runtime both fit
the schema, and have the same fields all the way down. So no example can lag behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
from yarl import URL

from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.openapi import OPERATIONS, Operation, openapi_document
from toque.api.routes_http import ROUTES
from toque.api.server_http import HttpServer
from toque.api.wiring import start_embedded
from toque.runtime.clock import SystemClock

DOCUMENT = openapi_document("test")
APP = """
import toque


class Orders(toque.WorkflowEntrypoint):
    name = "orders"

    async def run(self, event, step):
        if event.payload == "ask":
            return (await step.wait_for_event("approval", "approval", timeout="1 hour")).payload
        return await step.do("charge", lambda: {"charged": True})
"""
PREPARED = {
    "sendEvent": "ask",
    "getWaiting": "ask",
    "changeStatus": "ask",
    "changeStatuses": "ask",
}
"""Params of the instance that an operation is tried on; others have ended before."""
QUERIES = {"getStep": "?name=charge-1", "terminateInstances": "?status=paused"}


def described(op: Operation) -> Any:
    """What the document says of an operation."""
    found = [
        made
        for path in DOCUMENT["paths"].values()
        for made in path.values()
        if made["operationId"] == op.name
    ]
    assert len(found) == 1
    return found[0]


def check(schema: Any, value: Any) -> None:
    """Whether a value fits a schema of the document."""
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def form(value: Any) -> Any:
    """The fields of an answer without their values; payloads are anybody's."""
    if isinstance(value, dict):
        opaque = ("params", "output", "instances", "data", "payload")
        return {key: "any" if key in opaque else form(each) for key, each in value.items()}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return "value"


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    (folder / "shop.py").write_text(APP)
    headers = {"Authorization": "Bearer t"}
    async with start_embedded(folder / "data", app_path=folder / "shop.py") as runtime:
        app = make_app(runtime.control_plane, tokens=TokenBook({"t": "default"}), version="test")
        async with (
            HttpServer(app, SystemClock()) as server,
            aiohttp.ClientSession(headers=headers) as session,
        ):
            yield session, f"{server.url}/client/v4/accounts/default/workflows"


async def prepare(session: aiohttp.ClientSession, base: str, op: Operation) -> str:
    """The path of an operation, with the instance that it needs."""
    path = op.path.replace("{workflow_name}", "orders").replace("{event_type}", "approval")
    if "{version_id}" in path:
        found = await (await session.get(f"{base}/orders/versions")).json()
        path = path.replace("{version_id}", found["result"][0]["id"])
    if op.name not in ("createInstance", "createInstances"):
        params = PREPARED.get(op.name, "now")
        body = {"instance_id": "order-42", "params": json.dumps(params)}
        wait = "0ms" if op.name in PREPARED else "30s"
        made = await session.post(f"{base}/orders/instances?wait={wait}", json=body)
        assert made.status == 200
        if op.name == "getWaiting":
            one = f"{base}/orders/instances/order-42"
            await session.post(f"{one}/events/aproval")
            while (await (await session.get(one)).json())["result"]["status"] != "waiting":
                pass
    return path.replace("{instance_id}", "order-42") + QUERIES.get(op.name, "")


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.name)
async def test_examples_are_what_a_server_answers(tmp_path: Path, op: Operation) -> None:
    content = described(op)["responses"]["200"]["content"]
    async with serving(tmp_path) as (session, base):
        url = URL(base + await prepare(session, base, op), encoded=True)
        body = None if op.body is None else json.dumps(op.body_example).encode()
        async with session.request(op.method, url, data=body) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type in content
            if op.streamed:
                text = await answer.text()
                events = [json.loads(one) for one in re.findall("^data: (.*)$", text, re.M)]
                for event in [*events, op.example]:
                    check(content["text/event-stream"]["x-event"], event)
                assert set(op.example) in [set(event) for event in events]
                return
            found = await answer.json()
    told = content["application/json"]
    for value in (found, told["example"]):
        check(told["schema"], value)
    shown, answered = form(told["example"]["result"]), form(found["result"])
    if op.name == "getEvents":
        shown, answered = ({**one, "events": []} for one in (shown, answered))
    if op.name == "deleteInstances":
        assert found["result"]["errors"]
    assert shown == answered


@pytest.mark.parametrize(
    "op", [op for op in OPERATIONS if op.body is not None], ids=lambda op: op.name
)
def test_examples_of_bodies_fit_their_schema(op: Operation) -> None:
    told = described(op)["requestBody"]["content"]["application/json"]
    check(told["schema"], told["example"])


def test_every_route_is_described() -> None:
    routes = {(route.method, "/".join(("", *route.path))) for route in ROUTES}
    told = {
        (op.method.upper(), "/workflows" + re.sub(r"\{\w+\}", "{}", op.path)) for op in OPERATIONS
    }
    assert told == routes
