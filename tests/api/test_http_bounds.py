"""Bounds of the HTTP front: what is under way, what is held, how long a body may take; noise.

Nothing of it breaks the server, and callers are told what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import random
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from yarl import URL

from toque.api import server_http
from toque.api.app_http import make_app
from toque.api.auth import Principal, TokenBook
from toque.api.server_http import HttpServer, _Cycle, _OneWrite
from toque.gatekeeper.messages import AccountInfo
from toque.runtime import limits

CREATE = "/client/v4/accounts/default/workflows/orders/instances"
AUTH = {"Authorization": "Bearer dev-token"}


async def test_past_the_bound_of_requests_callers_are_told_to_come_back(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUESTS_IN_FLIGHT_MAX", 2)
    plane.router.hold["create"] = asyncio.Event()
    async with (
        plane.serving() as server,
        aiohttp.ClientSession(server.url, headers=AUTH) as session,
    ):
        held = [asyncio.ensure_future(session.post(CREATE, data=b"{}")) for _ in range(2)]
        while plane.router.calls["create"] < 2:
            await asyncio.sleep(0)
        async with session.post(CREATE, data=b"{}") as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        plane.router.hold["create"].set()
        for request in held:
            async with await request as answer:
                assert answer.status == 200
        async with session.post(CREATE, data=b"{}") as answer:
            assert answer.status == 200


async def test_past_the_bound_of_held_bytes_too(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_BYTES_IN_FLIGHT_MAX", 100_000)
    large = json.dumps({"params": ["x" * 60_000]}).encode()
    plane.router.hold["create"] = asyncio.Event()
    async with (
        plane.serving() as server,
        aiohttp.ClientSession(server.url, headers=AUTH) as session,
    ):
        held = asyncio.ensure_future(session.post(CREATE, data=large))
        while plane.router.calls["create"] < 1:
            await asyncio.sleep(0)
        async with session.post(CREATE, data=large) as answer:
            assert (await answer.json())["errors"][0]["code"] == 10500
        plane.router.hold["create"].set()
        async with await held as answer:
            assert answer.status == 200
        async with session.post(CREATE, data=large) as answer:
            assert answer.status == 200


async def test_a_body_that_does_not_come_is_given_up(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_READ_MAX_MS", 20)
    async with plane.serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            f"POST {CREATE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer dev-token\r\n"
            'Content-Length: 100\r\n\r\n{"par'.encode()
        )
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert not plane.router.engines


async def _said(port: int, data: bytes) -> bytes:
    """What the server says to bytes on a connection, until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_head_that_does_not_come_is_given_up(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_READ_MAX_MS", 20)
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with plane.serving() as server:
        assert await _said(server.port, b"") == b""
        assert await _said(server.port, b"\r\n") == b""
        late = await _said(server.port, whole[:-3])
        assert late.startswith(b"HTTP/1.1 408 ")
        assert json.loads(late.partition(b"\r\n\r\n")[2])["errors"][0]["code"] == 7002
        second = await _said(server.port, whole + whole[:10])
        assert second.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in second
        # what only looks like the start of a request is no reason to stay
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(whole)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_a_silent_connection_is_closed(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_IDLE_MAX_MS", 0)
    monkeypatch.setattr(limits, "HEAD_READ_MAX_MS", 60_000)
    async with plane.serving() as server:
        said = await _said(server.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200 ")


async def test_past_the_bound_of_connections_the_next_is_told(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 2)
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    async with plane.serving() as server:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for reader, writer in held:
            writer.write(whole + b"\r\n")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        refused = await _said(server.port, whole + b"\r\n")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["errors"][0]["code"] == 10500
        for reader, writer in held:
            writer.close()
            await reader.read()
        served = await _said(server.port, whole + b"Connection: close\r\n\r\n")
        assert served.startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_goes_before_its_answer_leaves_no_trace(plane: Any) -> None:
    async with plane.serving() as server:
        lost: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: lost.append(found))
        plane.router.hold["create"] = asyncio.Event()
        for reset in (True, False):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            calls = plane.router.calls["create"]
            writer.write(
                f"POST {CREATE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer dev-token\r\n"
                "Content-Length: 2\r\n\r\n{}".encode()
            )
            while plane.router.calls["create"] == calls:
                await asyncio.sleep(0)
            writer.transport.abort() if reset else writer.close()
            plane.router.hold["create"].set()
            assert await _said(
                server.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
    assert not lost


def test_what_is_written_as_the_transport_closes_is_dropped() -> None:
    class Closed:
        def is_closing(self) -> bool:
            return True

        def write(self, data: bytes) -> None:
            raise RuntimeError("unable to perform operation; the handler is closed")

    loop = asyncio.new_event_loop()
    wrapped = _OneWrite(Closed(), loop, lambda: None)
    wrapped.write(b"late")
    lost: list[Any] = []
    loop.set_exception_handler(lambda _, found: lost.append(found))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert not lost


async def test_an_offered_upgrade_is_passed_over(
    plane: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with plane.serving() as server:
        said = await _said(
            server.port,
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
            b"Upgrade: websocket\r\n\r\n",
        )
    assert said.startswith(b"HTTP/1.1 200 ")
    assert not caplog.records


async def test_one_address_has_no_more_than_its_part_of_the_connections(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 8)
    monkeypatch.setattr(limits, "LINGER_QUIET_MS", 1)
    monkeypatch.setattr(server_http, "is_local", lambda address: address == "127.0.0.9")
    lines = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with plane.serving() as server, contextlib.AsyncExitStack() as opened:

        async def said(address: str, *, stays: bool = True) -> bytes:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, local_addr=(address, 0)
            )
            opened.callback(writer.close)
            writer.write(lines)
            status = await reader.readline()
            if not stays:
                writer.close()
                await writer.wait_closed()
            return status

        ok, full = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 503 Service Unavailable\r\n"
        assert [await said("127.0.0.2") for _ in range(5)] == [ok] * 4 + [full]
        assert await said("127.0.0.3", stays=False) == ok, "others have room"
        assert [await said("127.0.0.9") for _ in range(3)] == [ok] * 3, "a proxy on this machine"


async def test_who_sends_no_requests_does_not_write_the_log_full(
    plane: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_LINES_MAX", 4)
    monkeypatch.setattr(limits, "LOG_WINDOW_MS", 3_600_000)
    monkeypatch.setattr(limits, "LINGER_QUIET_MS", 1)
    async with plane.serving() as server:
        for _ in range(10):
            assert (await _said(server.port, b"\x00nothing\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert lines[-1].endswith("(more like it are left out for 3600 s)")


WORDS = [
    "workflows", "orders", "instances", "batch", "status", "events", "x", "a%2Fb", "%", "%zz",
    "%00", "..", ".", "", "%F0%9F%90%9D", "%3F", "*", "accounts", "'", '"', "%2e%2e", "%FF",
]  # fmt: skip
NAMES = ["page", "per_page", "status", "cursor", "wait", "order", "simple", "date_end", "q"]
VALUES = ["1", "0", "-1", "x", "", "1ms", "asc", "true", "0001-01-01", "9999-12-31", "%FF"]
FIELDS = ["instance_id", "params", "status", "rollback", "from", "zzz"]
JSONS = [
    None, True, 0, -1, 1e308, 2**70, "", "x", "terminate", "{}", "[1", "\0", [], {}, [[1]],
    {"a": {}}, "x" * 300,
]  # fmt: skip


def noise(rnd: random.Random) -> tuple[str, str, bytes]:
    """A request that is nearly right."""
    path = CREATE.rsplit("/", rnd.randrange(4))[0]
    path += "".join(f"/{rnd.choice(WORDS)}" for _ in range(rnd.randrange(5)))
    if rnd.random() < 0.5:
        path += f"?{rnd.choice(NAMES)}={rnd.choice(VALUES)}"
    one = {rnd.choice(FIELDS): rnd.choice(JSONS) for _ in range(rnd.randrange(3))}
    body = rnd.choice([json.dumps(one), json.dumps([one]), json.dumps(rnd.choice(JSONS)), ""])
    raw = rnd.randbytes(rnd.randrange(40)) if rnd.random() < 0.2 else body.encode()
    return rnd.choice(["GET", "POST", "PATCH", "PUT", "DELETE"]), path, raw


async def test_noise_never_breaks_the_server_nor_the_envelope(plane: Any) -> None:
    rnd = random.Random(7)
    statuses = set()
    workflows = plane.router.workflows["default"]
    registered = dict(workflows)
    async with (
        plane.serving() as server,
        aiohttp.ClientSession(headers=AUTH) as session,
    ):
        for _ in range(600):
            method, path, body = noise(rnd)
            if workflows != registered:  # one was deleted
                workflows.update(registered)
                plane.router.generation += 1
            url = URL(server.url + path, encoded=True)
            async with session.request(method, url, data=body) as answer:
                found = json.loads(await answer.read())
                assert answer.status < 500, (method, path, body, found)
                assert found["success"] is (answer.status == 200)
                statuses.add(answer.status)
    assert statuses >= {200, 400, 404, 405}


@pytest.mark.parametrize("token", ["", "Authorization: Bearer wrong\r\n"], ids=["none", "wrong"])
async def test_whoever_is_not_let_in_is_refused_before_any_body(plane: Any, token: str) -> None:
    """So slow bodies of strangers hold neither memory nor one of the requests under way."""
    async with plane.serving() as server:
        for method, path in (("POST", CREATE), ("POST", "/toque/v1/accounts"), ("PUT", "/x")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(
                f"{method} {path} HTTP/1.1\r\nHost: x\r\n{token}".encode()
                + b"Content-Length: 1000\r\n\r\n"
            )
            head = await reader.readuntil(b"\r\n\r\n")  # though no byte of a body was sent
            assert head.startswith(b"HTTP/1.1 401 ")
            writer.close()
    assert not plane.router.engines


async def test_failures_are_slowed_and_a_valid_token_of_the_same_address_passes(plane: Any) -> None:
    async with plane.serving() as server, aiohttp.ClientSession(server.url) as session:
        wrong = {"Authorization": "Bearer wrong"}
        statuses = []
        for _ in range(limits.AUTH_FAILURES_BURST + 3):
            async with session.get(CREATE, headers=wrong) as answer:
                statuses.append(answer.status)
                said = answer.headers.get("Retry-After")
        assert set(statuses[: limits.AUTH_FAILURES_BURST]) == {401}
        assert (statuses[-1], said) == (429, "1")
        async with session.get(CREATE, headers={"Authorization": "Bearer dev-token"}) as answer:
            assert answer.status == 200
        async with session.get("/readyz") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"id":' * 20_000, b"{", b"[]", b'{"id":7}', b'{"x":1}', b"\xff"],
    ids=["deep", "nested", "open", "list", "type", "field", "bytes"],
)
async def test_bodies_of_the_admin_routes_are_checked_too(plane: Any, body: bytes) -> None:
    admin = TokenBook({"op": Principal("*")})
    app = make_app(plane.service, tokens=admin, version="test")
    plane.router.accounts["default"] = AccountInfo("default", "", 1)
    async with (
        HttpServer(app, plane.clock) as server,
        aiohttp.ClientSession(server.url, headers={"Authorization": "Bearer op"}) as session,
    ):
        for method, path in (
            ("POST", "/toque/v1/accounts"),
            ("POST", "/toque/v1/accounts/default/tokens"),
            ("PATCH", "/toque/v1/accounts/default/workflows/orders/limits"),
        ):
            async with session.request(method, path, data=body) as answer:
                assert answer.status == 400, path
                assert (await answer.json())["errors"][0]["code"] in (10101, 10102)
    await plane.service.close()


async def test_requests_leave_nothing_to_the_garbage_collector(plane: Any) -> None:
    plane.router.finishes_at_once = True
    async with plane.client() as client:

        async def some(count: int) -> int:
            gc.collect()
            gc.disable()
            try:
                for _ in range(count):
                    await client.create_instance("orders", params={"n": 1}, wait=5)
                    await client.create_instance("orders", params={"n": 1})
                return gc.collect()
            finally:
                gc.enable()

        await some(5)
        assert await some(20) < 100


async def test_a_known_path_still_looks_at_account_and_method(plane: Any) -> None:
    plane.router.add_workflow("orders", "other")
    other = CREATE.replace("/default/", "/other/")
    async with (
        plane.serving() as server,
        aiohttp.ClientSession(server.url) as session,
    ):
        for _ in range(2):
            for path, headers, status in (
                (CREATE, AUTH, 200),
                (f"{CREATE}/", AUTH, 200),
                (other, AUTH, 403),
                (CREATE, {"Authorization": "Bearer no"}, 401),
            ):
                async with session.post(path, data=b"{}", headers=headers) as answer:
                    assert answer.status == status, path
            async with session.put(CREATE, headers=AUTH) as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "POST, GET")


@pytest.mark.parametrize("why", ["nobody reads", "gone", "head", "last", "begun", None])
def test_a_whole_answer_is_sent_at_once_only_where_that_is_right(why: str | None) -> None:
    written: list[bytes] = []
    loop = asyncio.new_event_loop()
    transport = SimpleNamespace(write=written.append, is_closing=lambda: False)
    wrapped = _OneWrite(transport, loop, lambda: None)
    flow = FlowControl(transport)  # type: ignore[arg-type]
    cycle = _Cycle(
        {"method": "HEAD" if why == "head" else "GET"},  # type: ignore[arg-type]
        wrapped, flow, logging.getLogger(), logging.getLogger(), False, [], asyncio.Event(),
        False, why != "last", lambda: written.append(b"."),
    )  # fmt: skip
    cycle.json_head = b"content-length: "
    cycle.disconnected = why == "gone"
    cycle.response_started = why == "begun"
    if why == "nobody reads":
        flow.pause_writing()
    assert cycle.whole(404, b"{}") is (why is None)
    whole = [b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", b"."]
    assert written == (whole if why is None else [])
    assert cycle.response_complete is (why is None)
    loop.close()
