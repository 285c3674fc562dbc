"""The OpenAPI document says what a real server does: its examples are asked for and compared.

For each route: the example of its answer and the answer of a server over a whole runtime both fit
the schema, and have the same fields all the way down. So no example can lag behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import jsonschema
import msgspec
import pytest
from yarl import URL

from toque.api.app_http import ControlPlaneApp, make_app
from toque.api.auth import TokenBook
from toque.api.openapi import OPERATIONS, Operation, key_of, openapi_document
from toque.api.server_http import HttpServer
from toque.api.wiring import Runtime, start_embedded
from toque.engines.archive import Bundle
from toque.runtime.clock import SystemClock
from toque.runtime.ids import EntityRef, old_key

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
INSTANCE = "{instance_id}"
NEEDS_INSTANCE = ("listInstances", "deleteInstances", "changeStatuses", "terminateInstances")
API = "/client/v4/accounts/default/workflows"
MIGRATION = "/toque/v1/accounts/{account_id}/migration"


class Api(NamedTuple):
    """A server and a client of it."""

    app: ControlPlaneApp
    session: aiohttp.ClientSession
    url: str
    runtime: Runtime

    async def result(self, method: str, path: str, body: Any = None) -> Any:
        """The result of a call that succeeds."""
        url = URL(self.url + path, encoded=True)
        async with self.session.request(method, url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            return (await answer.json())["result"]


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
        opaque = ("params", "output", "instances", "data", "payload", "ended")
        return {key: "any" if key in opaque else form(each) for key, each in value.items()}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return "value"


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Api]:
    (folder / "shop.py").write_text(APP)
    headers = {"Authorization": "Bearer t"}
    async with start_embedded(folder / "data", app_path=folder / "shop.py") as runtime:
        app = make_app(runtime.control_plane, tokens=TokenBook({"t": "*"}), version="test")
        async with (
            HttpServer(app, SystemClock()) as server,
            aiohttp.ClientSession(headers=headers) as session,
        ):
            yield Api(app, session, server.url, runtime)


async def prepare(api: Api, op: Operation) -> str:
    """The path of an operation, with all that it needs."""
    words = {"account_id": "default", "workflow_name": "orders", "event_type": "approval"}
    words |= {"instance_id": "order-42", "script_name": "shop.py"}
    if "{version_id}" in op.path:
        words["version_id"] = (await api.result("GET", f"{API}/orders/versions"))[0]["id"]
    if op.name in ("listAccounts", "listTokens", "revokeToken", "reachedAccounts", "memberships"):
        await api.result("POST", "/toque/v1/accounts", {"id": "shop"})
        body = {"name": "n", "scope": "read"}
        made = await api.result("POST", "/toque/v1/accounts/default/tokens", body)
        words["token_id"] = made["id"]
    if op.path.startswith(MIGRATION):
        words["account_id"] = "moves"
        await prepare_migration(api, op)
    if INSTANCE in op.path or op.name in NEEDS_INSTANCE:
        await prepare_instance(api, op)
    return op.path.format_map(words) + QUERIES.get(op.name, "")


async def prepare_migration(api: Api, op: Operation) -> None:
    """An account on V1 that is to be moved in a minute."""
    await api.result("POST", "/toque/v1/accounts", {"id": "moves"})
    call = api.runtime.router.call
    await call(EntityRef("Account", "moves"), "set_plane", "v1")
    await call(EntityRef("AccountOld", old_key("moves")), "begin")
    if op.name not in ("planMigration", "startMigration"):
        await api.result("POST", "/toque/v1/accounts/moves/migration", {"start_in": "1 minute"})


async def prepare_instance(api: Api, op: Operation) -> None:
    wait = "0ms" if op.name in PREPARED else "30s"
    body = {"instance_id": "order-42", "params": json.dumps(PREPARED.get(op.name, "now"))}
    await api.result("POST", f"{API}/orders/instances?wait={wait}", body)
    if op.name == "getWaiting":
        one = f"{API}/orders/instances/order-42"
        await api.result("POST", f"{one}/events/aproval")
        while (await api.result("GET", one))["status"] != "waiting":
            pass


def body_of(op: Operation) -> bytes | None:
    if op.body is None:
        return None
    if op.body is bytes:
        source = APP.replace('"orders"', '"returns"') + "\n# another deploy\n"
        return Bundle({"shop.py": source.encode()}).to_zip()
    return json.dumps(op.body_example).encode()


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.name)
async def test_examples_are_what_a_server_answers(tmp_path: Path, op: Operation) -> None:
    content = described(op)["responses"]["200"]["content"]
    async with serving(tmp_path) as api:
        url = URL(api.url + await prepare(api, op), encoded=True)
        async with api.session.request(op.method, url, data=body_of(op)) as answer:
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
    compare(op, told["example"]["result"], found["result"])


def compare(op: Operation, example: Any, result: Any) -> None:
    """Both have the same fields."""
    shown, answered = form(example), form(result)
    if op.name == "getEvents":
        shown, answered = ({**one, "events": []} for one in (shown, answered))
    if op.name == "shards":  # by name; counters are each shard's own affair
        assert set(example["d0"]) <= set(result["d0"])
        return
    if op.name == "doctor":  # this server is well
        assert result == []
        return
    if op.name == "deleteInstances":
        assert result["errors"]
    assert shown == answered


@pytest.mark.parametrize(
    "op", [op for op in OPERATIONS if op.body_example is not None], ids=lambda op: op.name
)
def test_examples_of_bodies_fit_their_schema(op: Operation) -> None:
    told = described(op)["requestBody"]["content"]["application/json"]
    check(told["schema"], told["example"])


async def test_every_route_is_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as api:
        served = {
            key_of(route.method, "/" + "/".join(path)) for path, route in api.app.api.routes()
        }
        own = {route.path for route in api.app.routes}  # type: ignore[attr-defined]
    assert {key_of(op.method, op.path) for op in OPERATIONS} == served
    assert {*(op.path for op in OPERATIONS), *own - {"/openapi.json"}} == set(DOCUMENT["paths"])


def test_each_operation_names_the_scope_that_it_needs() -> None:
    needed = {op.name: described(op)["security"] for op in OPERATIONS}
    assert needed["getInstance"] == [{"token": ["read"]}]
    assert needed["createInstance"] == [{"token": ["write"]}]
    assert needed["deploy"] == [{"token": ["admin"]}]
    assert needed["createAccount"] == [{"token": ["operator", "admin"]}]


def test_no_number_of_a_body_is_too_large_for_what_lies_behind() -> None:
    """MessagePack ends at 64 bits: a larger number would fail inside."""
    for op in OPERATIONS:
        if op.body in (None, Any, bytes):
            continue
        _, components = msgspec.json.schema_components([op.body], ref_template="{name}")
        for schema in integers(components):
            assert schema["maximum"] == 2**53 - 1, op.name


def integers(schema: Any) -> Iterator[Any]:
    """The schemas of whole numbers within a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "integer":
            yield schema
        yield from (found for each in schema.values() for found in integers(each))
    elif isinstance(schema, list):
        yield from (found for each in schema for found in integers(each))
