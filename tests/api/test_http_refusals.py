"""Bad input over real HTTP: a clear, typed refusal each, in the envelope, and nothing changed."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from yarl import URL

from toque.api.admin_http import _life_ms
from toque.api.admin_shapes import AccountLimitsBody, limits_change
from toque.api.changes import STATUS_CHANGES
from toque.api.deploy_shapes import WorkflowBody, limits_of
from toque.api.requests import RetentionBody, parse_create
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument, Overloaded

BASE = "/client/v4/accounts/default/workflows"
AUTH = {"Authorization": "Bearer dev-token"}


class Caller:
    """Sends raw requests and checks that every answer is in the envelope."""

    def __init__(self, session: aiohttp.ClientSession, url: str, port: int) -> None:
        self.session = session
        self.url = url
        self.port = port

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] = AUTH
    ) -> tuple[int, Any, Any]:
        url = URL(self.url + path, encoded=True)
        if isinstance(body, bytes):
            body = io.BytesIO(body)  # aiohttp warns of large bytes
        async with self.session.request(method, url, data=body, headers=headers) as answer:
            raw = await answer.read()
            found = json.loads(raw)
            assert set(found) >= {"success", "errors", "messages", "result"}
            assert found["success"] is (answer.status == 200)
            assert bool(found["errors"]) is not found["success"]
            return answer.status, found, answer.headers

    async def refused(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """`(status, number, code)` of a refusal."""
        status, found, _ = await self(method, path, body, **more)
        error = found["errors"][0]
        assert error["message"]
        return status, error["code"], error["toque"]["code"]

    async def raw(self, data: bytes) -> bytes:
        """What the server says to bytes on a socket, until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def calling(plane: Any) -> AsyncIterator[Caller]:
    async with plane.serving() as server, aiohttp.ClientSession() as session:
        yield Caller(session, server.url, server.port)


CREATE = f"{BASE}/orders/instances"
INVALID = (400, 10101, "request.invalid_argument")
BAD_ID = (400, 10401, "instance.invalid_id")
BAD_JSON = (400, 10102, "payload.invalid")
TOO_LARGE = (413, 10103, "payload.too_large")
NO_WORKFLOW = (404, 10200, "workflow.not_found")
NO_INSTANCE = (404, 10400, "instance.not_found")
NO_ROUTE = (404, 7000, "http.no_route")
NO_METHOD = (405, 7001, "http.method_not_allowed")
DEEP = b"[" * 65 + b"]" * 65

NO_STEP = (404, 10420, "step.not_found")
MANY_IDS = b'{"instances":[' + b",".join([b'"x"'] * 101) + b"]}"
RESTART = b'{"status":"restart","from":%s}'
REFUSED = [
    ("POST", f"{BASE}/nothing/instances", b"{}", NO_WORKFLOW),
    ("GET", f"{BASE}/nothing", None, NO_WORKFLOW),
    ("GET", f"{BASE}/nothing/instances", None, NO_WORKFLOW),
    ("GET", f"{CREATE}/nobody", None, NO_INSTANCE),
    ("GET", f"{CREATE}/a%2Fb", None, NO_INSTANCE),
    ("PATCH", f"{CREATE}/nobody/status", b'{"status":"terminate"}', NO_INSTANCE),
    ("POST", f"{CREATE}/nobody/events/go", b"", NO_INSTANCE),
    # grammar
    ("POST", f"{BASE}/or%2Fders/instances", b"{}", BAD_ID),
    ("POST", f"{BASE}/{'x' * 65}/instances", b"{}", BAD_ID),
    ("POST", CREATE, b'{"instance_id":""}', BAD_ID),
    ("POST", CREATE, b'{"instance_id":"a b"}', BAD_ID),
    ("POST", CREATE, b'{"instance_id":"a/../b"}', BAD_ID),
    ("POST", CREATE, b'{"instance_id":"batch"}', BAD_ID),
    ("POST", CREATE, json.dumps({"instance_id": "x" * 257}), BAD_ID),
    ("GET", f"{CREATE}/%2E%2E", None, BAD_ID),
    ("GET", f"{CREATE}/%00", None, BAD_ID),
    ("GET", f"{CREATE}/%FF", None, BAD_ID),
    ("GET", f"{CREATE}/a%252Fb", None, BAD_ID),
    ("POST", f"{CREATE}/one/events/a.b", b"{}", BAD_ID),
    ("POST", f"{CREATE}/one/events/{'x' * 101}", b"{}", BAD_ID),
    # bodies
    ("POST", CREATE, b"{", BAD_JSON),
    ("POST", CREATE, b"\xff\xfe", BAD_JSON),
    ("POST", CREATE, b'{"params":{"a":}}', BAD_JSON),
    ("POST", CREATE, b'{"params":NaN}', BAD_JSON),
    ("POST", CREATE, b'{"params":"no json"}', BAD_JSON),
    ("POST", CREATE, b'{"params":"\\ud800"}', BAD_JSON),
    ("POST", CREATE, b'{"params":' + DEEP + b"}", BAD_JSON),
    ("POST", CREATE, b'{"params":' + b"[" * 50_000, BAD_JSON),
    ("POST", CREATE, b'{"params":["' + b"x" * limits.PAYLOAD_BYTES_MAX + b'"]}', TOO_LARGE),
    ("POST", CREATE, b'{"params":"' + b"x" * limits.BODY_BYTES_MAX + b'"}', TOO_LARGE),
    ("POST", CREATE, b'{"parms":{}}', INVALID),
    ("POST", CREATE, b'{"id":"x"}', INVALID),
    ("POST", CREATE, b'{"instance_id":7}', INVALID),
    ("POST", CREATE, b"[]", INVALID),
    ("POST", CREATE, b"null", INVALID),
    ("POST", CREATE, b'{"instance_retention":{"success":1}}', INVALID),
    ("POST", CREATE, b'{"instance_retention":{"success_retention":"soon"}}', INVALID),
    ("POST", CREATE, b'{"instance_retention":{"error_retention":-1}}', INVALID),
    ("POST", CREATE, b'{"instance_retention":{"error_retention":"31 days"}}', INVALID),
    ("POST", f"{CREATE}/batch", b"[]", INVALID),
    ("POST", f"{CREATE}/batch", b"{}", INVALID),
    ("POST", f"{CREATE}/batch", b"[" + b"{}," * 100 + b"{}]", INVALID),
    ("POST", f"{CREATE}/batch", b"[" + b"{}," * 100 + b"{}, not read", INVALID),
    ("POST", f"{CREATE}/batch", b'[{"instance_id":"ok"},{"instance_id":"not ok"}]', BAD_ID),
    ("POST", f"{CREATE}/one/events/go", b"{", BAD_JSON),
    ("POST", f"{CREATE}/one/events/go", DEEP, BAD_JSON),
    ("PATCH", f"{CREATE}/one/status", b'{"status":"explode"}', INVALID),
    ("PATCH", f"{CREATE}/one/status", b'{"status":"pause","rollback":true}', INVALID),
    ("PATCH", f"{CREATE}/one/status", b'{"status":"restart","rollback":true}', INVALID),
    ("PATCH", f"{CREATE}/one/status", b'{"status":"terminate","from":{"name":"a"}}', INVALID),
    ("PATCH", f"{CREATE}/one/status", RESTART % b'{"name":""}', BAD_ID),
    ("PATCH", f"{CREATE}/one/status", RESTART % b'{"count":1}', INVALID),
    ("PATCH", f"{CREATE}/one/status", RESTART % b'{"name":"a","n":1}', INVALID),
    ("PATCH", f"{CREATE}/one/status", RESTART % b'{"name":"a","count":0}', INVALID),
    ("PATCH", f"{CREATE}/one/status", RESTART % b'{"name":"a","type":"x"}', INVALID),
    ("PATCH", f"{CREATE}/one/status", RESTART % b'{"name":"nowhere"}', NO_STEP),
    ("POST", f"{CREATE}/batch/delete", b'{"instances":[]}', INVALID),
    ("POST", f"{CREATE}/batch/delete", b'{"ids":["one"]}', INVALID),
    ("POST", f"{CREATE}/batch/delete", b'{"instances":["one","not ok"]}', BAD_ID),
    ("POST", f"{CREATE}/batch/delete", MANY_IDS, INVALID),
    ("POST", f"{CREATE}/batch/status", b'{"instances":["one"]}', INVALID),
    ("POST", f"{CREATE}/batch/status", b'{"instances":["one"],"status":"explode"}', INVALID),
    ("POST", f"{CREATE}/batch/status", b'{"instances":["a b"],"status":"pause"}', BAD_ID),
    ("PUT", f"{CREATE}/terminate?status=complete", None, INVALID),
    ("PUT", f"{CREATE}/terminate?status=asleep", None, INVALID),
    ("PUT", f"{CREATE}/terminate?status=", None, INVALID),
    ("PUT", f"{CREATE}/terminate?status=,", None, INVALID),
    ("DELETE", f"{CREATE}/nobody", None, NO_INSTANCE),
    ("PATCH", f"{CREATE}/one/status", b'{"status":"terminate","x":1}', INVALID),
    ("PATCH", f"{CREATE}/one/status", b"{}", INVALID),
    ("PATCH", f"{CREATE}/one/status", b"", BAD_JSON),
    # queries
    ("POST", f"{CREATE}?wait=soon", b"{}", INVALID),
    ("POST", f"{CREATE}?wait=-1s", b"{}", INVALID),
    ("POST", f"{CREATE}?wait=11m", b"{}", INVALID),
    ("POST", f"{CREATE}?wiat=1s", b"{}", INVALID),
    ("GET", f"{CREATE}?page=0", None, INVALID),
    ("GET", f"{CREATE}?page=-1", None, INVALID),
    ("GET", f"{CREATE}?page=x", None, INVALID),
    ("GET", f"{CREATE}?page=%D9%A3", None, INVALID),
    ("GET", f"{CREATE}?page=99999999999999999999", None, INVALID),
    ("GET", f"{CREATE}?per_page=0", None, INVALID),
    ("GET", f"{CREATE}?per_page=501", None, INVALID),
    ("GET", f"{CREATE}?page=1&page=2", None, INVALID),
    ("GET", f"{CREATE}?status=sleeping", None, INVALID),
    ("GET", f"{CREATE}?direction=up", None, INVALID),
    ("GET", f"{CREATE}?date_start=yesterday", None, INVALID),
    ("GET", f"{CREATE}?cursor=abc", None, INVALID),
    ("GET", f"{CREATE}?cursor=%C3%A4", None, INVALID),
    ("GET", f"{CREATE}?%FF=1", None, INVALID),
    ("GET", f"{CREATE}/one?order=up", None, INVALID),
    ("GET", f"{BASE}?per_page=0", None, INVALID),
    # paths and methods
    ("GET", f"{BASE}//", None, NO_ROUTE),
    ("GET", f"{CREATE}//", None, NO_ROUTE),
    ("GET", f"{CREATE}/one/nothing", None, NO_ROUTE),
    ("POST", f"{CREATE}/one/events/go/on", b"{}", NO_ROUTE),
    ("GET", "/client/v4/accounts/default/nothing", None, NO_ROUTE),
    ("GET", "/client/v4/accounts/default/nothing/", None, NO_ROUTE),
    ("GET", "/client/v4/user", None, NO_ROUTE),
    ("GET", "/", None, NO_ROUTE),
    ("PATCH", f"{BASE}/orders", None, NO_METHOD),
    ("PUT", CREATE, b"{}", NO_METHOD),
    ("GET", f"{CREATE}/batch/", None, NO_METHOD),
    ("POST", "/healthz", None, NO_METHOD),
]  # fmt: skip


async def test_every_refusal_is_typed_and_changes_nothing(plane: Any) -> None:
    wrong = []
    async with calling(plane) as call:
        await call("POST", CREATE, b'{"instance_id":"one"}')
        before = dict(plane.router.engines)
        for method, path, body, expected in REFUSED:
            found = await call.refused(method, path, body)
            if found != expected:
                wrong.append((method, path[:120], (body or b"")[:60], found))
        assert plane.router.engines == before
        assert not plane.router.engine("one").events
    assert not wrong


async def test_refusals_say_what_would_be_right(plane: Any) -> None:
    async with calling(plane) as call:
        _, found, headers = await call("PUT", CREATE, b"{}")
        assert headers["Allow"] == "POST, GET"
        _, found, _ = await call("POST", CREATE, b'{"parms":{}}')
        assert "parms" in found["errors"][0]["message"]
        assert "params" in found["errors"][0]["toque"]["data"]["known"]
        _, found, _ = await call("PATCH", f"{CREATE}/one/status", b'{"status":"stop"}')
        assert found["errors"][0]["toque"]["data"] == {"supported": list(STATUS_CHANGES)}


async def test_duplicates_and_finished_instances(plane: Any) -> None:
    async with calling(plane) as call:
        assert (await call("POST", CREATE, b'{"instance_id":"one"}'))[0] == 200
        exists = (400, 10405, "instance.already_exists")
        assert await call.refused("POST", CREATE, b'{"instance_id":"one"}') == exists
        plane.router.finish("one")
        ended = (400, 10406, "instance.finished")
        assert await call.refused("POST", f"{CREATE}/one/events/go", b"") == ended
        ended = (400, 10407, "instance.invalid_transition")
        body = b'{"status":"terminate"}'
        assert await call.refused("PATCH", f"{CREATE}/one/status", body) == ended


async def test_without_the_right_token_nothing_is_learned(plane: Any) -> None:
    unauthorized = (401, 10000, "auth.unauthorized")
    forbidden = (403, 9109, "auth.forbidden")
    async with calling(plane) as call:
        await call("POST", CREATE, b'{"instance_id":"one"}')
    for headers in (
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic dev-token"},
        {"Authorization": "dev-token"},
    ):
        async with calling(plane) as call:  # a server of its own: failures are counted in all
            for path in (BASE, f"{CREATE}/one", f"{BASE}/no/such", "/openapi.json", "/nothing"):
                assert await call.refused("GET", path, headers=headers) == unauthorized
    async with calling(plane) as call:
        other = {"Authorization": "Bearer other-token"}
        for account in ("default", "nobody", "..", "%64efault", ""):
            path = f"/client/v4/accounts/{account}/workflows"
            assert await call.refused("GET", path, headers=other) == forbidden
        own = "/client/v4/accounts/other/workflows"
        assert (await call("GET", own, headers=other))[1]["result"] == []
        found = await call.refused("GET", f"{own}/orders/instances/one", headers=other)
        assert found == NO_WORKFLOW
        _, _, headers = await call("GET", BASE, headers={})
        assert headers["WWW-Authenticate"] == "Bearer"


async def test_ids_with_slashes_are_one_path_segment(plane: Any) -> None:
    async with calling(plane) as call:
        await call("POST", CREATE, b'{"instance_id":"folder/7/status"}')
        at = f"{CREATE}/folder%2F7%2fstatus"
        for path in (at, at + "/"):
            assert (await call("GET", path))[1]["result"]["id"] == "folder/7/status"
        assert (await call("POST", at + "/events/go/", b'{"a":1}'))[0] == 200
        assert (await call("PATCH", at + "/status", b'{"status":"terminate"}'))[0] == 200
        assert await call.refused("GET", f"{CREATE}/folder/7/status") == NO_ROUTE


async def test_trailing_slashes_make_no_difference(plane: Any) -> None:
    async with calling(plane) as call:
        for path in (BASE, f"{BASE}/orders", CREATE):
            assert (await call("GET", path))[1] == (await call("GET", path + "/"))[1]
        assert (await call("POST", CREATE + "/", b""))[0] == 200


async def test_a_busy_or_broken_system_says_when_to_come_back(plane: Any) -> None:
    async with calling(plane) as call:
        plane.router.fail("create", Overloaded("full"))
        status, found, headers = await call("POST", CREATE, b"")
        assert (status, found["errors"][0]["code"]) == (503, 10500)
        assert headers["Retry-After"] == "1"
        plane.router.fail("create", KeyError("secret"))
        status, found, _ = await call("POST", CREATE, b"")
        assert (status, found["errors"][0]["code"]) == (500, 10001)
        assert "secret" not in json.dumps(found)


async def test_the_same_key_makes_one_instance(plane: Any) -> None:
    async with calling(plane) as call:
        headers = {**AUTH, "Idempotency-Key": "k1"}
        first = await call("POST", CREATE, b"", headers)
        assert (await call("POST", CREATE, b"", headers))[1] == first[1]
        other = await call("POST", CREATE, b"", {**AUTH, "Idempotency-Key": "k2"})
        assert other[1]["result"]["id"] != first[1]["result"]["id"]
        bad = {**AUTH, "Idempotency-Key": "x" * 129}
        assert await call.refused("POST", CREATE, b"", headers=bad) == INVALID


async def test_oversized_bodies_are_refused_while_they_are_read(plane: Any) -> None:
    head = f"POST {CREATE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer dev-token\r\n"
    async with calling(plane) as call:
        # announced, and never sent: refused without waiting for it
        answer = await call.raw(f"{head}Content-Length: {2**40}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer.lower()
        # not announced: refused as soon as the limit is passed
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        sent = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 18
        assert (await call.raw(sent)).startswith(b"HTTP/1.1 413 ")
        # `Expect` is answered by the refusal, not by an invitation
        answer = await call.raw(
            f"{head}Expect: 100-continue\r\nContent-Length: {2**30}\r\n\r\n".encode()
        )
        assert answer.startswith(b"HTTP/1.1 413 ")
    assert not plane.router.engines


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000,
        b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 35_000 + b"\r\n",
    ],
    ids=["tls", "no path", "version", "bytes", "length", "smuggling", "endless", "wide", "long"],
)
async def test_what_is_no_http_is_refused(plane: Any, data: bytes) -> None:
    async with calling(plane) as call:
        head, _, body = (await call.raw(data)).partition(b"\r\n\r\n")
        large = len(data) > limits.HEAD_BYTES_MAX
        assert head.startswith(b"HTTP/1.1 431 " if large else b"HTTP/1.1 400 ")
        error = json.loads(body)["errors"][0]["toque"]["code"]
        assert error == ("http.head_too_large" if large else "http.malformed")
        assert (await call("GET", BASE))[0] == 200


async def test_health(plane: Any) -> None:
    parts = ["c0", "d0", "d1", "d2", "account", "gatekeeper", "identity"]
    async with plane.serving() as server, aiohttp.ClientSession(server.url) as session:
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ready"})
        async with session.get("/readyz", headers=AUTH) as answer:
            told = await answer.json()
            assert told["parts"] == dict.fromkeys(parts, True)


async def test_who_is_not_ready_says_why_to_those_with_a_token_only(plane: Any) -> None:
    plane.router.fail("probe", Overloaded("full"))
    async with plane.serving() as server, aiohttp.ClientSession(server.url) as session:
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.json()) == (503, {"status": "not ready"})
        async with session.get("/readyz", headers={"Authorization": "Bearer wrong"}) as answer:
            assert (answer.status, await answer.json()) == (503, {"status": "not ready"})
        async with session.get("/readyz", headers=AUTH) as answer:
            assert answer.status == 503
            assert list((await answer.json())["parts"].values()).count(False) == 1


async def test_the_document_is_served_with_an_example_of_each_answer(plane: Any) -> None:
    async with (
        plane.serving() as server,
        aiohttp.ClientSession(server.url) as session,
        session.get("/openapi.json", headers=AUTH) as answer,
    ):
        document = await answer.json()
    assert len(document["paths"]) > 20
    for operations in document["paths"].values():
        for operation in operations.values():
            for answer in operation["responses"].values():
                content = answer.get("content", {}).get("application/json")
                assert content is None or "example" in content


async def test_a_client_that_leaves_ends_its_wait(plane: Any) -> None:
    async with calling(plane) as call:
        await call("POST", CREATE, b'{"instance_id":"one"}')
        reader, writer = await asyncio.open_connection("127.0.0.1", call.port)
        writer.write(
            f"GET {CREATE}/one?wait=9m HTTP/1.1\r\nHost: x\r\n"
            "Authorization: Bearer dev-token\r\n\r\n".encode()
        )
        while plane.router.calls["wait"] == 0:
            await asyncio.sleep(0)
        waiting = [t for t in asyncio.all_tasks() if "_answer" in repr(t.get_coro())]
        assert len(waiting) == 1
        writer.close()
        await asyncio.wait(waiting, timeout=5)
        assert all(task.done() for task in waiting)
        assert await reader.read() == b""


@pytest.mark.parametrize("times", [2, 3])
async def test_a_body_far_too_large_gets_a_readable_answer(plane: Any, times: int) -> None:
    size = 10 * limits.MIB * times
    head = f"POST {CREATE}/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer dev-token\r\n"
    async with calling(plane) as call:
        reader, writer = await asyncio.open_connection("127.0.0.1", call.port)
        writer.write(f"{head}Content-Length: {size}\r\n\r\n".encode())
        for _ in range(size // limits.MIB):  # as most clients do: first all is sent
            writer.write(b" " * limits.MIB)
            await writer.drain()
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["errors"][0]
    assert error["toque"]["code"] == "payload.too_large"


PAYLOAD_REFUSED = (400, 10102, "payload.invalid")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"params":"ada"}', r'{"params": "\"ada\""}'),
        (b'{"params":""}', "it is empty"),
        (b'{"params":"\xff"}', "UTF-8"),
        (b'{"params":["\xff"]}', "UTF-8"),
        (b'{"params":["\\ud800"]}', "half of a surrogate pair"),
        (b'{"params":"[\\"\\\\udc00\\"]"}', "half of a surrogate pair"),
        (b'{"instance_id":"\xff"}', "UTF-8"),
        (b" ", "it is empty"),
    ],
)
async def test_params_that_are_no_json_are_told_of(plane: Any, body: bytes, told: str) -> None:
    async with calling(plane) as call:
        for path, sent in ((CREATE, body), (f"{CREATE}/batch", b"[" + body + b"]")):
            if not body.strip():
                sent = body
            assert await call.refused("POST", path, sent) == PAYLOAD_REFUSED
            message = (await call("POST", path, sent))[1]["errors"][0]["message"]
            assert told in message
            assert "truncated" not in message
    assert not plane.router.engines


async def test_params_as_a_string_are_json_text(plane: Any) -> None:
    async with calling(plane) as call:
        for n, (sent, kept) in enumerate(
            ((b'"123"', b"123"), (b'"{\\"a\\": 1}"', b'{"a": 1}'), (rb'"\"ada\""', b'"ada"'))
        ):
            await call("POST", CREATE, b'{"instance_id":"i%d","params":%b}' % (n, sent))
            assert plane.router.engine(f"i{n}").view.params == kept


TEXTS = (
    "Right: '5 minutes', '30s', '500 ms', or a number (no text) of milliseconds, such as 300000."
)


def test_a_duration_in_a_body_is_refused_with_what_is_right_there() -> None:
    """A number means milliseconds there, and seconds in Python."""
    far, month = 900 * limits.DAY_MS, "it must be at most 30 days."
    bodies: list[tuple[Callable[[Any], Any], str, str]] = [
        (_created, "success_retention", month),
        (_limited, "success_retention", month),
        (_registered, "error_retention", month),
        (_life_ms, "expires_in", ""),
    ]
    for take, name, most in bodies:
        for wrong in ("3 dogs", "300"):
            with pytest.raises(InvalidArgument) as refused:
                take(wrong)
            assert f"{name} is '{wrong}', which is no duration. {TEXTS}" in refused.value.message
        for given, told in ("900 days", "'900 days'"), (far, f"{far} (900 days)"):
            if most:
                with pytest.raises(InvalidArgument) as refused:
                    take(given)
                assert f"{name} is {told}; {most}" in refused.value.message
    with pytest.raises(InvalidArgument, match=r"4 \(4 ms\); it must be at least 1 s. \(A number i"):
        _life_ms(4)


def _created(given: Any) -> Any:
    body = {"instance_retention": {"success_retention": given}}
    return parse_create(json.dumps(body).encode())


def _limited(given: Any) -> Any:
    return limits_change(AccountLimitsBody(success_retention=given))


def _registered(given: Any) -> Any:
    kept = RetentionBody(error_retention=given)
    return limits_of(WorkflowBody("Order", "shop", default_retention=kept))
