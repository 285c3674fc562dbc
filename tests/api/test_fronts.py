"""Further front ends: real processes on one port, before shards that a test stands in for."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import get
from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.front_figures import (
    FrontFigures,
    RouteFigures,
    counted_on,
    front_ended,
    merged_routes,
    read_figures,
    write_figures,
)
from toque.api.front_http import keep_writing
from toque.api.fronts import Fronts, FrontSpec, default_count
from toque.api.server_http import HttpServer
from toque.api.wiring import Runtime
from toque.gatekeeper.messages import AccountInfo, IdentitySnapshot, TokenRecord
from toque.runtime import limits
from toque.runtime.clock import SystemClock
from toque.runtime.codec import pack
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import ShardUnavailable, ToqueError, to_wire
from toque.runtime.histogram import BUCKETS
from toque.runtime.ids import Placement
from toque.runtime.link_socket import LinkServer, SocketLinks
from toque.runtime.messages import Call
from toque.runtime.process import ProcessMeter
from toque.runtime.rpc import Router, ShardServer


class Nobody:
    """An application that serves nothing."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Nobody asks."""

    def drain(self) -> None:
        """Nothing is under way."""


SECRET = b"a secret"
TOKEN = "tq_" + "a" * 12 + "_" + "x" * 43
WHO = "/toque/v1/whoami"
COUNT = 3


class StandIn:
    """A shard that knows one token and nothing else."""

    epoch = 1

    def __init__(self) -> None:
        self.store = self

    def verify_owner(self) -> None:
        """It is."""

    def deliver(self, call: Call, answer: Callable[[int, bool, bytes], None]) -> None:
        if call.kind != "Identity":
            answer(call.id, False, pack(to_wire(ShardUnavailable("nothing is here"))))
            return
        digest = hashlib.sha256(TOKEN.encode()).digest()
        token = TokenRecord("a" * 12, "*", "boss", "admin", digest, 1, 0, 0)
        answer(call.id, True, pack(IdentitySnapshot(1, [AccountInfo("default", "", 1)], [token])))


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[str, Fronts]]:
    """A first front end of this process, and two more."""
    loop = asyncio.get_running_loop()
    placement = Placement(1, 1)
    servers = []
    for name in placement.names():
        shard = ShardServer(StandIn(), loop)  # type: ignore[arg-type]
        server = LinkServer(name, 1, SECRET, SystemEntropy(), shard.session)
        await server.listen(f"unix:{folder}/{name}.sock")
        servers.append(server)
    links = SocketLinks(lambda name: f"unix:{folder}/{name}.sock", SECRET, loop, SystemEntropy())
    runtime = Runtime(Router(placement, links, loop), None, None, ProcessMeter(loop))
    app = make_app(
        runtime.control_plane, tokens=TokenBook({}), version="x", process=runtime.process
    )
    app.metrics.share(str(folder), 0, COUNT)
    async with HttpServer(app, SystemClock(), shared=True) as http:
        specs = [
            FrontSpec(number, COUNT, "127.0.0.1", http.port, str(folder), str(folder), SECRET, 1, 1)
            for number in range(1, COUNT)
        ]
        writing = asyncio.create_task(keep_writing(app, str(folder)))
        fronts = Fronts(specs)
        try:
            await fronts.start()
            yield http.url, fronts
        finally:
            await fronts.close()
            writing.cancel()
    await runtime.close()
    for server in servers:
        await server.close()


async def until(held: Callable[[], bool]) -> None:
    while not held():
        await asyncio.sleep(0)


async def test_front_ends_share_an_address_and_tell_the_figures_of_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as (url, fronts):
        for _ in range(10 * COUNT):  # the kernel chooses whose
            status, page = await asyncio.to_thread(get, f"{url}/dashboard/")
            assert (status, "<title>toque</title>" in str(page)) == (200, True)

        async def asked(path: str) -> tuple[int, object]:
            while True:  # on a slow machine the stand-ins may answer too late
                found = await asyncio.to_thread(get, url + path, TOKEN)
                if found[0] != 503:
                    return found

        def served() -> list[int]:
            known = read_figures(str(tmp_path), COUNT, -1)
            return sorted(sum(r.statuses.get(200, 0) for r in one.routes) for one in known)

        for _ in range(40):  # each a connection of its own
            assert (await asked(WHO))[0] == 200
        await until(lambda: sum(served()) == 40)
        assert len(served()) == COUNT
        assert served()[-2] > 0, "one of them serves all"

        told = str((await asked("/metrics"))[1])
        found = re.search(r'toque_http_requests_total\{.*whoami",status="200"} (\d+)', told)
        assert found is not None
        assert float(found[1]) == 40
        assert set(re.findall(r'cpu_seconds_total\{process="(api[-\d]*)"', told)) == {
            "api", "api-1", "api-2",
        }  # fmt: skip

        first = fronts.pids[0]
        os.kill(first, signal.SIGTERM)  # a service manager's: not for it
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(fronts.pids) == 2 and first not in fronts.pids)
        for _ in range(20):
            assert (await asked(WHO))[0] == 200
        await until(lambda: sum(served()) >= 60)  # what the dead one had counted is not lost
        fronts.drain()
        pids = fronts.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_front_end_that_can_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRONT_START_MAX_MS", 50)
    spec = FrontSpec(1, 2, "127.0.0.1", 1, str(tmp_path), str(tmp_path), SECRET, 1, 1)
    assert "secret" not in repr(spec)
    fronts = Fronts([spec], ("/bin/cat", "/nowhere/at/all"))
    with pytest.raises(ToqueError, match="did not start"):
        await fronts.start()
    assert fronts.pids == []


async def test_a_front_end_without_a_sign_of_life_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FRONT_SILENCE_MAX_MS", "FRONT_RESTART_MS", "FRONT_END_MAX_MS"):
        monkeypatch.setattr(limits, name, 20)
    spec = FrontSpec(1, 2, "127.0.0.1", 1, str(tmp_path), str(tmp_path), SECRET, 1, 1)
    fronts = Fronts([spec], ("/bin/sh", "-c", "echo ready; exec sleep 1000"))
    try:
        await fronts.start()
        (silent,) = fronts.pids
        await until(lambda: bool(fronts.pids) and silent not in fronts.pids)
    finally:
        await fronts.close()


async def test_who_can_not_start_a_process_just_now_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("FRONT_RESTART_MS", "FRONT_END_MAX_MS"):
        monkeypatch.setattr(limits, name, 20)
    command, script = tmp_path / "front", tmp_path / "front.new"
    spec = FrontSpec(1, 2, "127.0.0.1", 1, str(tmp_path), str(tmp_path), SECRET, 1, 1)
    fronts = Fronts([spec], (str(command),))
    starting = asyncio.create_task(fronts.start())
    try:
        await until(lambda: "can't be started" in caplog.text)
        script.write_text("#!/bin/sh\necho ready; exec cat\n")
        script.chmod(0o755)
        script.rename(command)
        await starting
    finally:
        await fronts.close()


async def test_nobody_joins_a_server_by_chance() -> None:
    async with HttpServer(Nobody(), SystemClock(), shared=True) as first:
        second = HttpServer(Nobody(), SystemClock(), port=first.port, shared=True)
        with pytest.raises(OSError, match="in use"):
            await second.start()
        async with HttpServer(Nobody(), SystemClock(), port=first.port, joins=True):
            pass


def test_figures_of_several_are_added_by_route(tmp_path: Path) -> None:
    took = [3, *[1] * BUCKETS]
    one = FrontFigures(1, None, None, 2, [RouteFigures("GET", "/a", {200: 1, 404: 2}, took)])
    two = FrontFigures(2, None, None, 0, [RouteFigures("GET", "/a", {200: 5}, took)])
    for each in (one, two):
        write_figures(str(tmp_path), each)
    assert read_figures(str(tmp_path), 4, 1) == [two]
    (tmp_path / "front-3").write_bytes(b"\xc1")  # of nobody's format
    assert read_figures(str(tmp_path), 4, 0) == [one, two]
    front_ended(str(tmp_path), 1)
    (kept,) = read_figures(str(tmp_path), 2, -1)
    assert (kept.routes, kept.in_flight) == (one.routes, 0)
    assert counted_on(two, kept).routes[0].statuses == {200: 6, 404: 2}
    (route,) = merged_routes([one, two])
    assert route.statuses == {200: 6, 404: 2}
    assert route.took_us == [6, *[2] * BUCKETS]


def test_how_many_suit_a_machine() -> None:
    assert [default_count(shards, 16) for shards in (1, 2, 4, 8, 64)] == [1, 1, 2, 3, 8]
    assert default_count(64, 1) == 1
