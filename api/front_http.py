"""A further front end, as a process: see `fronts`.

    python -m toque.api.front_http      reads its `FrontSpec` from standard input

It ends when its standard input does. Signals are for who started it: a service manager sends them
to all, and the end in order is told over standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
import uvloop

from ..runtime import limits
from ..runtime.clock import SystemClock
from ..runtime.entropy import SystemEntropy
from ..runtime.link_socket import SocketLinks
from ..runtime.process import ProcessMeter
from ..runtime.rpc import Router
from .app_http import ControlPlaneApp, make_app
from .auth import TokenBook
from .front_figures import write_figures
from .fronts import ALIVE, DRAIN, READY, FrontSpec
from .logs import log_to_stderr
from .server_http import HttpServer
from .serving import settle
from .shard_code import bundles_of
from .wiring import Runtime


def main() -> None:
    """Serve until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=FrontSpec)
    log_to_stderr(spec.log_format)
    uvloop.run(_serve(spec))


async def _serve(spec: FrontSpec) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin.buffer)
    links = SocketLinks(spec.socket_address, spec.secret, loop, SystemEntropy())
    process = ProcessMeter(loop)
    process.start()
    router = Router(spec.placement, links, loop)
    runtime = Runtime(router, None, bundles_of(Path(spec.data_dir)), process)
    app = make_app(
        runtime.control_plane,
        tokens=TokenBook({}),
        version=version("toque"),
        process=process,
        frames=router.calls_per_frame,
        dashboard=spec.dashboard,
    )
    app.metrics.share(spec.run_dir, spec.number, spec.count)
    server = HttpServer(app, SystemClock(), spec.host, spec.port, loopback_only=False, joins=True)
    async with server:
        writing = loop.create_task(keep_writing(app, spec.run_dir))
        _say(READY)
        living = loop.create_task(_live())
        settle()
        while line := await told.readline():
            if line == DRAIN:
                app.begin_drain()
        writing.cancel()
        living.cancel()
    process.close()
    await runtime.close()


async def _live() -> None:
    """Give a sign of life, once a second."""
    while True:
        await asyncio.sleep(limits.HEARTBEAT_PERIOD_MS / 1000)
        _say(ALIVE)


def _say(line: bytes) -> None:
    with contextlib.suppress(OSError):  # who started this process has gone; standard input ends too
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


async def keep_writing(app: ControlPlaneApp, folder: str) -> None:
    """Write this front end's figures for the others, once a second."""
    while True:
        write_figures(folder, app.metrics.own())
        await asyncio.sleep(limits.METRICS_KEPT_MS / 1000)


if __name__ == "__main__":
    main()
