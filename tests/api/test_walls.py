"""Nobody gets into an account that isn't his: every route, with every kind of token.

The walk takes its routes from the application itself, so that a route can't be left out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from toque.api.app_http import ControlPlaneApp, make_app
from toque.api.auth import TokenBook
from toque.api.dispatch_http import ACCOUNT
from toque.api.failures import Failures
from toque.api.server_http import HttpServer
from toque.api.wiring import Runtime, start_embedded
from toque.runtime import limits
from toque.runtime.clock import ManualClock, SystemClock

APP = """
import toque


class Order(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        return await step.do("work", lambda: event.payload)
"""
OPEN = {"/healthz", "/readyz"}
MINE = "client/v4/accounts/{account}/workflows/Order/instances"
UNAUTHORIZED = (401, 10000, "auth.unauthorized")
FORBIDDEN = (403, 9109, "auth.forbidden")
SECRET = "of-the-other-account"


class World:
    """A runtime with two accounts, tokens of all kinds, and its server."""

    def __init__(self, runtime: Runtime, app: ControlPlaneApp, session: Any) -> None:
        self.runtime = runtime
        self.app = app
        self.session = session
        self.tokens: dict[str, str] = {}

    async def make(self, name: str, account: str, scope: str, **more: Any) -> str:
        made = await self.runtime.control_plane.accounts.create_token(account, name, scope, **more)
        self.tokens[name] = made.text
        return made.record.id

    async def __call__(
        self, method: str, path: str, token: str | None, body: Any = None
    ) -> tuple[int, Any]:
        """Status and decoded answer; `token` is the name of one, or a text."""
        headers = {}
        if token is not None:
            headers["Authorization"] = f"Bearer {self.tokens.get(token, token)}"
        url = URL(f"{self.session.base}{path}", encoded=True)
        async with self.session.request(method, url, headers=headers, json=body) as answer:
            text = await answer.text()
            assert not any(known in text for known in self.tokens.values())
            return answer.status, json.loads(text) if text.startswith(("{", "[")) else text

    async def refused(self, method: str, path: str, token: str | None) -> tuple[int, int, str]:
        status, answer = await self(method, path, token)
        assert answer["success"] is False
        assert SECRET not in json.dumps(answer)
        return status, answer["errors"][0]["code"], answer["errors"][0]["toque"]["code"]

    async def fingerprint(self) -> Any:
        """What there is of the account `default`."""
        found = []
        for path in ("/toque/v1/accounts/default", "/toque/v1/accounts/default/tokens"):
            found.append(await self("GET", path, "admin"))
        for path in ("", "/Order", "/Order/instances", "/Order/instances/mine"):
            found.append(await self("GET", f"/client/v4/accounts/default/workflows{path}", "admin"))
        return found


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    path = folder / "app.py"
    path.write_text(APP)
    async with start_embedded(folder / "data", app_path=path, running_max=0) as runtime:
        await runtime.deploy("other", 0)  # nothing of it runs, so no worker is started
        plane = runtime.control_plane
        app = make_app(plane, tokens=TokenBook({}), version="test", failures=Failures(100_000))
        async with (
            HttpServer(app, SystemClock()) as server,
            aiohttp.ClientSession() as session,
        ):
            session.base = server.url  # type: ignore[attr-defined]
            found = World(runtime, app, session)
            for scope in ("read", "write", "admin"):
                await found.make(scope, "default", scope)
                await found.make(f"other {scope}", "other", scope)
                await found.make(f"operator {scope}", "*", scope)
            revoked = await found.make("revoked", "default", "admin")
            await plane.accounts.revoke_token("default", revoked)
            await found.make("expired", "default", "admin", expires_in_ms=1_000)
            app.admission._clock = later = ManualClock()
            later.advance(SystemClock().now_ms() - later.now_ms() + 2_000)
            await runtime.client("default").create_instance("Order", "mine", {"n": 1})
            await runtime.client("other").create_instance("Order", SECRET, {"n": SECRET})
            yield found


def shown(path: tuple[str, ...], account: str = "default") -> str:
    """A path with its parameters filled in."""
    words = {ACCOUNT: account, "{}": "nothing"}
    return "/" + "/".join(words.get(word, word) for word in path)


async def test_every_route_refuses_whoever_may_not(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        before = await call.fingerprint()
        secret = call.tokens["admin"]
        walked = 0
        for path, route in call.app.api.routes():
            where = shown(path)
            told = f"{route.method} {where}"
            for token in (None, "nonsense", secret[:-1], secret + "x", "tq_", "revoked", "expired"):
                assert await call.refused(route.method, where, token) == UNAUTHORIZED, told
            below = {"read": (), "write": ("read",), "admin": ("read", "write")}[route.scope]
            for scope in below:
                who = f"operator {scope}" if route.operator else scope
                assert await call.refused(route.method, where, who) == FORBIDDEN, told
            if route.operator:
                assert await call.refused(route.method, where, "admin") == FORBIDDEN, told
            if ACCOUNT in path:
                for account in ("default", "nobody", "*", "%2A", "def%61ult"):
                    there = shown(path, account)
                    found = await call.refused(route.method, there, "other admin")
                    assert found == FORBIDDEN, told
            walked += 1
        assert walked > 25
        assert await call.fingerprint() == before


async def test_every_route_lets_in_whoever_may(tmp_path: Path) -> None:
    """Else the walk above would pass with nothing but refusals."""
    async with world(tmp_path) as call:
        for path, route in call.app.api.routes():
            who = f"operator {route.scope}" if route.operator else route.scope
            status, _ = await call(route.method, shown(path), who)
            assert status not in (401, 403, 405, 500), f"{route.method} {shown(path)}: {status}"


async def test_an_operators_mistyped_account_is_refused_and_not_made(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        walked = 0
        for path, route in call.app.api.routes():
            if ACCOUNT not in path:
                continue
            found = await call.refused(route.method, shown(path, "typo"), "operator admin")
            assert found == (404, 10600, "account.not_found"), f"{route.method} {shown(path)}"
            walked += 1
        assert walked > 25
        known = (await call("GET", "/toque/v1/accounts", "operator read"))[1]["result"]
        assert [account["id"] for account in known] == ["default", "other"]
        made, _ = await call("POST", "/toque/v1/accounts", "operator admin", {"id": "typo"})
        listed = "/client/v4/accounts/typo/workflows"
        status, found = await call("GET", listed, "operator read")
        assert (made, status, found["result"]) == (200, 200, [])  # nothing had got in before


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_what_goes_on_for_long_ends_with_its_token(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOKEN_CHECK_MS", 10)
    async with world(tmp_path) as call, asyncio.timeout(20):
        made = await call.make("passing", "default", "write", expires_in_ms=3_600_000)
        headers = {"Authorization": f"Bearer {call.tokens['passing']}"}
        mine = f"/{MINE.format(account='default')}"
        async with (
            call.session.get(
                f"{call.session.base}{mine}/mine/subscribe", headers=headers
            ) as stream,
            asyncio.TaskGroup() as tasks,
        ):
            await stream.content.readuntil(b"workflow_queued\n")
            long = [
                tasks.create_task(call(method, f"{mine}{path}", "passing"))
                for method, path in (
                    ("GET", "/mine?wait=9m"),
                    ("GET", "/mine/events?wait=9m&cursor=99"),
                    ("POST", "?wait=9m"),
                )
            ]
            while call.app.api.in_flight < len(long) + 1:
                await asyncio.sleep(0)
            if how == "revoked":
                await call.runtime.control_plane.accounts.revoke_token("default", made)
            else:
                call.app.admission._clock.advance(3_600_000)  # type: ignore[attr-defined]
            assert b'event: error\ndata: {"code":"auth.unauthorized"' in await stream.read()
        assert [task.result()[0] for task in long] == [401, 401, 401]
        assert call.app.endpoints.streams == 0


STREAM = """
import toque


@toque.workflow
async def pour(event, step):
    async def water():
        for _ in range(160):
            yield bytes(262_144)

    await step.do("pour", water)
"""


async def test_a_stream_ends_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "TOKEN_CHECK_MS", 0)
    path = tmp_path / "app.py"
    path.write_text(STREAM)
    async with asyncio.timeout(60), start_embedded(tmp_path / "data", app_path=path) as runtime:
        plane = runtime.control_plane
        await runtime.client().run_instance("pour", "one")
        made = await plane.accounts.create_token("default", "passing", "read")
        headers = {"Authorization": f"Bearer {made.text}"}
        where = "/client/v4/accounts/default/workflows/pour/instances/one/step?name=pour-1"
        app = make_app(plane, tokens=TokenBook({}), version="test")
        async with (
            HttpServer(app, SystemClock()) as server,
            aiohttp.ClientSession(server.url, headers=headers) as session,
        ):
            for is_revoked in (False, True):
                async with session.get(where) as answer:
                    assert answer.status == 200
                    got = len(await answer.content.readexactly(1))
                    if is_revoked:
                        await plane.accounts.revoke_token("default", made.record.id)
                    with contextlib.suppress(aiohttp.ClientPayloadError):
                        async for part in answer.content.iter_any():
                            got += len(part)
                    assert (got == 160 * 262_144) is not is_revoked
    assert "a stream breaks off" in caplog.text


async def test_all_that_is_no_table_needs_a_token_too(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        paths = {getattr(route, "path", "") for route in call.app.routes}
        assert paths > OPEN
        for path in (paths - OPEN) | {"/", "/nothing", "/client/v4", "/toque/v1", "/client/v4/x"}:
            assert await call.refused("GET", path, None) == UNAUTHORIZED, path
            assert await call.refused("GET", path, "revoked") == UNAUTHORIZED, path
        for path in ("/healthz", "/healthz/", "/readyz/"):
            for method in ("GET", "HEAD"):
                assert (await call(method, path, None))[0] in (200, 503), path
        assert (await call("GET", "/nothing/", "admin"))[0] == 404
        assert await call.refused("GET", "/metrics", "admin") == FORBIDDEN  # they show all accounts
        for token in (None, "revoked", "nonsense"):
            assert await call("GET", "/readyz", token) == (200, {"status": "ready"})
            assert await call("GET", "/healthz", token) == (200, {"status": "ok"})


async def test_another_accounts_data_never_shows(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        hidden = (SECRET, '"other"')
        for path, route in call.app.api.routes():
            if route.method != "GET" or route.operator:
                continue
            words = iter(("Order", SECRET, "x"))
            where = "/" + "/".join(
                next(words) if word == "{}" else "default" if word == ACCOUNT else word
                for word in path
            )
            _, answer = await call("GET", where, "admin")
            text = json.dumps(answer).replace(f"'{SECRET}'", "")  # an error names what was asked
            assert not any(word in text for word in hidden), where
        base = "/client/v4/accounts/default/workflows/Order"
        _, listed = await call("GET", f"{base}/instances", "admin")
        assert [row["id"] for row in listed["result"]] == ["mine"]
        assert listed["result_info"]["total_count"] == 1
        _, found = await call("GET", base, "admin")
        assert sum(found["result"]["instances"].values()) == 1
        _, accounts = await call("GET", "/client/v4/accounts", "read")
        assert [row["id"] for row in accounts["result"]] == ["default"]
        assert accounts["result_info"]["total_count"] == 1
        _, members = await call("GET", "/client/v4/memberships", "read")
        assert [row["account"]["id"] for row in members["result"]] == ["default"]
        _, everybody = await call("GET", "/client/v4/accounts", "operator read")
        assert [row["id"] for row in everybody["result"]] == ["default", "other"]
        # an id of one account is free in the other, and changes made there stay there
        status, _ = await call("POST", f"{base}/instances", "write", {"instance_id": SECRET})
        assert status == 200
        status, _ = await call("DELETE", f"{base}/instances/{SECRET}", "write")
        assert status == 200
        theirs = f"/client/v4/accounts/other/workflows/Order/instances/{SECRET}"
        status, found = await call("GET", theirs, "other read")
        assert (status, found["result"]["params"]) == (200, {"n": SECRET})


async def test_no_file_and_no_log_holds_a_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with world(tmp_path) as call:
            status, made = await call("POST", "/toque/v1/accounts", "operator admin", {"id": "new"})
            assert status == 200
            async with call.session.post(
                f"{call.session.base}/toque/v1/accounts/new/tokens",
                headers={"Authorization": f"Bearer {call.tokens['operator admin']}"},
                json={"name": "ci", "scope": "write"},
            ) as answer:
                made = (await answer.json())["result"]
            call.tokens["made"] = made["token"]
            assert (await call("GET", "/toque/v1/whoami", "made"))[1]["result"] == {
                "account": "new", "scope": "write", "token_id": made["id"], "name": "ci"
            }  # fmt: skip
            for token in call.tokens:
                await call("GET", "/client/v4/accounts/default/workflows/x%00", token)
            secrets = [text.split("_")[2].encode() for text in call.tokens.values()]
            files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
            held = b"".join(path.read_bytes() for path in files)
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    held += b"".join(path.read_bytes() for path in files)
    assert made["id"].encode() in held  # the right place was looked at
    assert not any(secret in held for secret in secrets)
    assert not any(secret.decode() in caplog.text for secret in secrets)
