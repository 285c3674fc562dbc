"""A server process, from its first line to its last: what `toque dev` and `toque up` share.

The first signal (SIGINT, SIGTERM) ends it in good order, the next one at once. What goes wrong is
told in one sentence. All that was started is ended, in the opposite order.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import uvloop

from ..engines.archive import entry_of
from ..engines.workflow import is_loading
from ..runtime import limits
from ..runtime.errors import (
    AddressInUse,
    AuthorError,
    BundleInvalid,
    CallerError,
    DataDirInUse,
    ToqueError,
    WorkflowLoadError,
)
from .cli_config import ACCOUNT_DEFAULT
from .cli_exits import FAILED, INTERRUPTED, USAGE, print_error
from .wiring import Runtime, start_embedded

Start = Callable[..., AbstractAsyncContextManager[Runtime]]
Listen = Callable[[], None]
Serve = Callable[[Listen], Awaitable[None]]
"""Serves until it is cancelled. Calls what it is given when others may have taken the signals."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Hosted(NamedTuple):
    """What a server hosts, and on what.

    Attributes:
        start: `wiring.start_embedded` or `wiring_ray.start_ray`.
        runs_on: how that is called to people.
        path: the app file, or a folder with it; None: only code that is deployed.
        data: the data directory.
        settings: more arguments of `start`.
        codecs: names of the payload codecs; the first one writes.
    """

    start: Start
    runs_on: str
    path: Path | None
    data: Path
    settings: Mapping[str, Any]
    codecs: tuple[str, ...] = ()

    def open(self) -> AbstractAsyncContextManager[Runtime]:
        """The runtime, to be entered.

        Raises:
            WorkflowLoadError: there is no such file, or no such file in the folder.
        """
        return self.start(
            self.data,
            app_path=None if self.path is None else app_file(self.path),
            codecs={ACCOUNT_DEFAULT: list(self.codecs)} if self.codecs else None,
            **self.settings,
        )


def app_file(path: Path) -> Path:
    """The app file that a path names: itself, or the one of a folder that a deploy would import.

    Raises:
        WorkflowLoadError: there is none, or it can't be told.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise WorkflowLoadError(f"{path}: no such file or folder.")
    try:
        return path / entry_of(sorted(each.name for each in path.glob("*.py")))
    except BundleInvalid as error:
        raise WorkflowLoadError(
            f"{path}: {str(error).partition(' Name it')[0]} Name a file."
        ) from None


def hosted_on(
    embedded: bool,
    path: Path | None,
    data: Path,
    settings: Mapping[str, Any],
    codecs: tuple[str, ...],
) -> Hosted:
    """As `Hosted`, on Ray or in one process; Ray is imported only if it is meant."""
    if embedded:
        return Hosted(start_embedded, "one process", path, data, settings, codecs)
    start = import_module(".wiring_ray", __package__).start_ray
    return Hosted(start, "Ray", path, data, settings, codecs)


def run_server(serve: Serve, *, as_json: bool) -> int:
    """Serve until a signal comes; gives the exit code.

    Args:
        serve: see `Serve`.
        as_json: tell errors as JSON.
    """
    error: BaseException
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_until_signal(serve))
    except KeyboardInterrupt:
        return INTERRUPTED
    except ToqueError as raised:
        error = raised
    except OSError as raised:
        where = f" ({raised.filename})" if raised.filename else ""
        error = ToqueError(f"{raised.strerror or raised}{where}")
    print_error(error, as_json=as_json)
    return start_code(error)


def start_code(error: BaseException) -> int:
    """What a service manager needs to know: USAGE if to start it again can't help, else FAILED."""
    passes = isinstance(error, (AddressInUse, DataDirInUse))
    return USAGE if isinstance(error, (CallerError, AuthorError)) and not passes else FAILED


async def _until_signal(serve: Serve) -> int:
    """Run `serve`; the first signal ends it in order, the next one at once.

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

    serving = loop.create_task(_awaited(serve(listen)))
    listen()
    try:
        await serving
    except asyncio.CancelledError:
        if not serving.cancelled():
            raise
    return 0


def settle() -> None:
    """Have a process that is up collect garbage seldom: what it started with lives as long as it.

    For processes of toque's own only. Requests leave no cycles, so collections find little.
    """
    gc.set_threshold(*limits.GC_THRESHOLDS)
    gc.freeze()


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def check_address(host: str, port: int, flag: str = "--port") -> None:
    """Raise now what binding would raise once the runtime is up.

    Raises:
        AddressInUse: somebody listens there.
        OSError: this machine has no such address.
    """
    try:
        listener = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    except OSError as error:
        raise told_of_address(error, host, port, flag) from error
    listener.close()
    await listener.wait_closed()


def told_of_address(error: OSError, host: str, port: int, flag: str = "--port") -> Exception:
    """What to raise for an error of binding."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"port {port} is in use; choose another with {flag} (0: any free one).",
            {"host": host, "port": port},
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ToqueError(f"this machine has no address {host}; name one of its own with --host.")
    return error
