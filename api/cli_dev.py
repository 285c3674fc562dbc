"""`toque dev`: the whole system for one app file, on this machine, until Ctrl-C.

It serves HTTP on loopback with one development token, which is kept in the data directory (for
its owner's eyes only) beside the url, so that other commands find both. What goes wrong is told
in one sentence, with exit code 1.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, NamedTuple

import typer
import uvloop

from ..engines.workflow import is_loading
from ..runtime import limits
from ..runtime.clock import SystemClock
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import InvalidArgument, ToqueError, WorkflowLoadError
from .app_http import make_app
from .auth import ADMIN, OPERATOR, Principal, TokenBook
from .cli_config import ACCOUNT_DEFAULT, DATA_DEFAULT, DevFile, read_dev_file, write_dev_file
from .cli_exits import FAILED, INTERRUPTED, print_error
from .cli_flags import Flags, flags_command, new_app
from .cli_output import print_json
from .server_http import HttpServer
from .wiring import Runtime, start_embedded

_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Start = Callable[..., AbstractAsyncContextManager[Runtime]]


app = new_app()


@flags_command(app, left_out=("url", "token", "account", "profile"))
def dev(
    flags: Flags,
    path: Annotated[Path, typer.Argument(metavar="APP.py", help="File with workflows.")],
    embedded: Annotated[bool, typer.Option(help="One process, without Ray.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8787,
    limit: Annotated[int | None, typer.Option(min=1, help="Running instances at most.")] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=limits.SHARDS_MAX, help="Data shards.")
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="Payload codec, 'module:attribute'; again for older ones, to read."),
    ] = None,
) -> None:
    """Serve the workflows of a file on this machine."""
    start: Start = start_embedded
    if not embedded:  # not imported at the top: it brings Ray, which the other way does without
        start = import_module(".wiring_ray", __package__).start_ray
    runs_on = "one process" if embedded else "Ray"
    data = flags.data or DATA_DEFAULT
    options = DevOptions(
        start, runs_on, path, data, port, limit, shards, flags.as_json, tuple(codec or ())
    )
    raise typer.Exit(run_dev(options))


class DevOptions(NamedTuple):
    """What `toque dev` was asked for.

    Attributes:
        start: `wiring.start_embedded` or `wiring_ray.start_ray`.
        runs_on: how that is called to people.
        codecs: names of the payload codecs; the first one writes.
    """

    start: Start
    runs_on: str
    path: Path
    data: Path
    port: int
    running_max: int | None
    data_shards: int | None
    as_json: bool
    codecs: tuple[str, ...] = ()


def run_dev(options: DevOptions) -> int:
    """Serve until a signal comes; gives the exit code."""
    as_json = options.as_json
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_until_signal(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except ToqueError as error:
        print_error(error, as_json=as_json)
    except OSError as error:
        print_error(_told(error, options), as_json=as_json)
    return FAILED


def _told(error: OSError, options: DevOptions) -> ToqueError:
    if error.errno == errno.EADDRINUSE:
        return InvalidArgument(
            f"port {options.port} is in use; choose another with --port (0: any free one)."
        )
    where = f" ({error.filename})" if error.filename else ""
    return ToqueError(f"{error.strerror or error}{where}")


async def _until_signal(options: DevOptions) -> int:
    """Run `_serve`; the first signal ends it in order, the next one at once.

    The app file is imported on this very thread, where a signal can only be noticed by raising.
    """
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.default_int_handler)
        if is_loading(frame):
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(serving.cancel)

    def listen() -> None:
        for number in _SIGNALS:
            signal.signal(number, stop)

    serving = loop.create_task(_serve(options, listen))
    listen()
    try:
        await serving
    except asyncio.CancelledError:
        if not serving.cancelled():
            raise
    return 0


async def _serve(options: DevOptions, listen: Callable[[], None]) -> None:
    if not options.path.is_file():
        raise WorkflowLoadError(f"{options.path}: no such file.")
    await _check_port(options.port)
    starting = options.start(
        options.data,
        app_path=options.path,
        running_max=options.running_max,
        data_shards=options.data_shards,
        codecs={ACCOUNT_DEFAULT: list(options.codecs)} if options.codecs else None,
    )
    async with starting as runtime:
        listen()  # again: Ray has put its own handlers in place
        known = read_dev_file(options.data)
        token = known.token if known is not None else SystemEntropy().new_id()
        app = make_app(
            runtime.control_plane,
            tokens=TokenBook({token: Principal(OPERATOR, ADMIN, "dev", "toque dev")}),
            version=version("toque"),
        )
        async with HttpServer(app, SystemClock(), port=options.port) as server:
            found = DevFile(server.url, token)
            path = await asyncio.to_thread(write_dev_file, options.data, found)
            _tell(options, runtime, server.url, path)
            await asyncio.Event().wait()


async def _check_port(port: int) -> None:
    """Raise now what binding would raise once the runtime is up."""
    if port:
        listener = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, "127.0.0.1", port
        )
        listener.close()
        await listener.wait_closed()


def _tell(options: DevOptions, runtime: Runtime, url: str, dev_file: Path) -> None:
    if options.as_json:
        print_json({"url": url, "workflows": runtime.workflows, "dev_file": str(dev_file)})
    else:
        names = ", ".join(runtime.workflows) or "no workflows"
        print(f"toque serves {names} at {url} ({options.runs_on}; token in {dev_file}).")
        example = next(iter(runtime.workflows), "WORKFLOW")
        params = " --params '{...}'" if example in runtime.takes_params else ""
        data = "" if options.data == DATA_DEFAULT else f" --data {shlex.quote(str(options.data))}"
        print(f"Try: toque{data} create {example}{params} --wait    Ctrl-C ends it.")
    sys.stdout.flush()
