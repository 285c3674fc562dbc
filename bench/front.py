"""What the front alone costs: CPU of the API process and of the client for each call.

The shards are stand-ins in a process of their own, which answer everything a few milliseconds
later, as after a commit. So figures are of HTTP, admission, routing, shapes and transport only.
`--profile api` or `client` prints where the time of that process goes.
"""

from __future__ import annotations

import asyncio
import cProfile
import hashlib
import json
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

import typer
import uvloop

import toque
from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.server_http import HttpServer
from toque.api.service import ControlPlane
from toque.api.serving import settle
from toque.engines.views import InstanceView
from toque.gatekeeper.messages import (
    AccountInfo,
    AccountSnapshot,
    IdentitySnapshot,
    TokenRecord,
    WorkflowRecord,
)
from toque.runtime.clock import SystemClock
from toque.runtime.codec import pack
from toque.runtime.entropy import SystemEntropy
from toque.runtime.ids import Placement
from toque.runtime.link_socket import LinkServer, SocketLinks
from toque.runtime.messages import Call
from toque.runtime.rpc import Router, ShardServer

from . import processes

SECRET = b"bench"
TOKEN = "tq_benchbench12_" + "x" * 43
PLACEMENT = Placement(2, 1)
COMMIT_S = 0.003
BATCH = 100


class StandIn:
    """A shard that has one answer for each method."""

    def __init__(self) -> None:
        self.store = self
        self.epoch = 1
        self._held: list[tuple[Callable[..., None], int, bytes]] = []

    def verify_owner(self) -> None:
        """Nobody else owns it."""

    def deliver(self, call: Call, answer: Callable[..., None]) -> None:
        """Answer a little later."""
        if not self._held:
            asyncio.get_running_loop().call_later(COMMIT_S, self._commit)
        self._held.append((answer, call.id, self._answer(call)))

    def _commit(self) -> None:
        held, self._held = self._held, []
        for answer, number, body in held:
            answer(number, True, body)

    def _answer(self, call: Call) -> bytes:
        now = 1_700_000_000_123
        if call.kind == "Engine":
            instance_id = call.key.split("/", 2)[2]
            return pack(
                InstanceView(
                    instance_id, "r" * 32, "OneStep", "u" * 32, "v" * 32, "c" * 64, "complete",
                    "api", b'{"n":1}', b'{"ok":true}', None, now, now, now, now, now, 1,
                )
            )  # fmt: skip
        if call.kind == "Account":
            record = WorkflowRecord(
                "OneStep", "u" * 32, "OneStep", "app", "v" * 32, "c" * 64, now, now, 2, 1
            )
            return pack(AccountSnapshot(1, 50_000, [record]))
        if call.kind == "Identity":
            digest = hashlib.sha256(TOKEN.encode()).digest()
            token = TokenRecord("benchbench12", "default", "bench", "admin", digest, now, 0, 0)
            return pack(IdentitySnapshot(1, [AccountInfo("default", "", now)], [token]))
        return pack(None)


async def shards(folder: str) -> None:
    """The process of the stand-ins."""
    loop = asyncio.get_running_loop()
    servers = []
    for name in PLACEMENT.names():
        server = ShardServer(StandIn(), loop)
        links = LinkServer(name, 1, SECRET, SystemEntropy(), server.session)
        await links.listen(f"unix:{folder}/{name}.sock")
        servers.append(links)
    print("{}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


async def api(folder: str, port: int) -> None:
    """A process of a front end."""
    loop = asyncio.get_running_loop()
    entropy = SystemEntropy()
    links = SocketLinks(lambda shard: f"unix:{folder}/{shard}.sock", SECRET, loop, entropy)
    router = Router(PLACEMENT, links, loop)
    plane = ControlPlane(router, PLACEMENT, SystemClock(), entropy)
    app = make_app(plane, tokens=TokenBook({}), version="bench")
    async with HttpServer(app, SystemClock(), port=port, shared=True, joins=port > 0) as server:
        settle()
        print(json.dumps({"url": server.url, "port": server.port}), flush=True)
        await loop.run_in_executor(None, sys.stdin.read)
    await plane.close()
    router.close()


def run_role(role: str, folder: str, profile: str, port: int) -> None:
    """One of the other processes, until its input ends."""
    profiler = cProfile.Profile(time.process_time) if profile == role else None
    if profiler is not None:
        profiler.enable()
    uvloop.run(api(folder, port) if role == "api" else shards(folder))
    if profiler is not None:
        profiler.disable()
        shown = pstats.Stats(profiler, stream=sys.stderr)
        shown.sort_stats("tottime").print_stats(45)


def start(
    role: str, folder: str, profile: str, port: int = 0
) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Start one; gives it and what it told."""
    command = [sys.executable, "-m", "bench", "front", "--role", role, "--folder", folder]
    process = subprocess.Popen(
        [*command, "--profile", profile, "--port", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches who started it, and closes its input
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


async def burst(call: Callable[[], Awaitable[Any]], n: int, conc: int) -> float:
    """`n` calls; gives the median latency in ms."""
    numbers = iter(range(n))
    took: list[float] = []

    async def worker() -> None:
        for _ in numbers:
            began = time.perf_counter()
            await call()
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(worker() for _ in range(conc)))
    return statistics.median(took) * 1000


class Asked(NamedTuple):
    """What is to be measured; see `command`."""

    n: int
    conc: int
    only: str
    profile: str


async def measure(args: Asked, url: str, pids: list[int]) -> None:
    """All figures."""
    many = [{"params": {"n": n}} for n in range(BATCH)]
    async with toque.connect(url, TOKEN) as client:
        one = client.instance("OneStep", "one")
        calls: dict[str, tuple[Callable[[], Awaitable[Any]], int]] = {
            "create and wait": (
                lambda: client.create_instance("OneStep", params={"n": 1}, wait=30), 1),
            "create": (lambda: client.create_instance("OneStep", params={"n": 1}), 1),
            "status": (lambda: one.status(steps=False), 1),
            f"batch of {BATCH}, each": (lambda: client.create_instances("OneStep", many), BATCH),
        }  # fmt: skip
        print(f"{'call':<22}{'API us':>9}{'client us':>11}{'p50 ms':>9}")
        for name, (call, of) in calls.items():
            if args.only and args.only not in name:
                continue
            await burst(call, 400 // of, args.conc)
            n = args.n // of * (5 if of > 1 else 1)
            before, own = sum(map(processes.cpu_s, pids)), time.process_time()
            profiler = cProfile.Profile(time.process_time) if args.profile == "client" else None
            if profiler is not None:
                profiler.enable()
            p50 = await burst(call, n, args.conc if of == 1 else 4)
            if profiler is not None:
                profiler.disable()
                pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
            spent, own = sum(map(processes.cpu_s, pids)) - before, time.process_time() - own
            print(f"{name:<22}{spent / n / of * 1e6:>9.1f}{own / n / of * 1e6:>11.1f}{p50:>9.2f}",
                  flush=True)  # fmt: skip


def command(
    n: Annotated[int, typer.Option(min=400, help="Calls of each kind.")] = 6000,
    conc: Annotated[int, typer.Option(min=1, help="Calls in flight.")] = 64,
    only: Annotated[str, typer.Option(help="Kinds whose name holds this.")] = "",
    fronts: Annotated[int, typer.Option(min=1, help="API processes.")] = 1,
    uses_uvloop: Annotated[bool, typer.Option("--uvloop", help="In the client.")] = False,
    profile: Annotated[str, typer.Option(help="Where time goes: api or client.")] = "",
    role: Annotated[str, typer.Option(hidden=True)] = "",
    folder: Annotated[str, typer.Option(hidden=True)] = "",
    port: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """CPU of the API process and of the client for each call, the shards being stand-ins."""
    if role:
        run_role(role, folder, profile, port)
        return
    if profile not in ("", "api", "client"):
        raise typer.BadParameter(f"--profile takes api or client, not {profile!r}.")
    asked = Asked(n, conc, only, profile)
    with tempfile.TemporaryDirectory(prefix="tq") as made:
        running = []
        try:
            running.append(start("shards", made, profile)[0])
            front, told = start("api", made, profile)
            running.append(front)
            for _ in range(fronts - 1):
                running.append(start("api", made, profile, told["port"])[0])
            run = uvloop.run if uses_uvloop else asyncio.run
            run(measure(asked, told["url"], [each.pid for each in running[1:]]))
        finally:
            for process in reversed(running):
                process.communicate("")
