"""Runs the test that the command line asked for, and writes what came of it.

The first signal ends the test in good order and what there was is written; the next one ends it at
once. Everything that was started is ended in either case.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import uvloop
from rich.console import Console

from ..api.cli_config import Sources
from ..api.cli_exits import FAILED, INTERRUPTED
from ..api.cli_output import print_json
from ..api.client_http import connect
from ..runtime import limits
from ..runtime.errors import InvalidArgument
from ..runtime.files import temporary_of
from .command import HOW_TO_INSTALL, Request
from .fleet import Access
from .options import CHAOS, Options, resolved
from .progress import Progress
from .result import Result, write_result
from .run import INTERRUPTED as STOPPED
from .run import Opening, Watcher, run_on
from .summary import print_summary
from .targets_http import Fresh, embedded_target, http_target, server_target

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def execute(request: Request) -> int:
    """Run it; gives the exit code."""
    options = resolved(request.scenario, **request.given)
    check_files(request.out, request.html)
    if request.html is not None:
        _check_libraries()
    opening = _opening(request, options)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, _watcher(request) as watcher:
        result = runner.run(_until_signal(opening, options, watcher))
    return told(request, result)


def told(request: Request, result: Result) -> int:
    """Write the files and print the result; gives the exit code.

    A file that can't be written keeps neither the other one nor what is printed back.

    Raises:
        InvalidArgument: at the end, if one could not be written.
    """
    faults: list[InvalidArgument] = []
    if request.out is not None:
        with _kept(faults):
            write_result(result, request.out)
    if request.html is not None:
        with _kept(faults):
            import_module(".report", __package__).write_report(result, request.html)
    if request.flags.as_json:
        print_json(result)
    else:
        print_summary(result)
    if faults:
        raise InvalidArgument(" ".join(map(str, faults)))
    return verdict(result)


@contextmanager
def _kept(faults: list[InvalidArgument]) -> Iterator[None]:
    try:
        yield
    except InvalidArgument as error:
        faults.append(error)


def verdict(result: Result) -> int:
    """The exit code of a result."""
    if result.stopped_early == STOPPED:
        return INTERRUPTED
    return 0 if all(each.met for each in result.slos) else FAILED


@contextmanager
def _watcher(request: Request) -> Iterator[Watcher]:
    if request.quiet or request.flags.as_json:
        yield Watcher()
        return
    with Progress(Console(file=sys.stderr)) as progress:
        yield progress


async def _until_signal(opening: Opening, options: Options, watcher: Watcher) -> Result:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    running = asyncio.ensure_future(run_on(opening, options, stop=stop, watcher=watcher))

    def heard() -> None:
        if stop.is_set() or not watcher.has_begun:  # there is nothing yet to end in good order
            running.cancel()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, heard)
    try:
        return await running
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _check_libraries() -> None:
    """Refuse what can't be drawn before anything is sent; they are loaded when that is over."""
    for name in ("jinja2", "matplotlib"):
        if find_spec(name) is None:
            raise InvalidArgument(f"the report needs {name}: {HOW_TO_INSTALL}")


def check_files(out: Path | None, html: Path | None) -> None:
    """Refuse files that can't be written, by opening them, before anything is sent.

    Raises:
        InvalidArgument: and says which, and why.
    """
    if out is not None and html is not None and out.resolve() == html.resolve():
        raise InvalidArgument(
            f"--out and --html both name {out}, and one would replace the other; name two files."
        )
    for path in (out, html):
        if path is not None and not path.parent.is_dir():
            raise InvalidArgument(f"{path}: there is no folder {path.parent}; make it first.")
        if path is not None:
            try:
                _try_to_write(path)
            except OSError as error:
                raise InvalidArgument(
                    f"{path} can't be written: {error.strerror}. Name another file."
                ) from None


def _try_to_write(path: Path) -> None:
    """Open the file and the one that is put in its place, and leave both as they were."""
    for each in (path, temporary_of(path)):
        is_new = not each.exists()
        each.open("ab").close()
        if is_new:
            each.unlink()


def _opening(request: Request, options: Options) -> Opening:
    flags = request.flags
    of_server = "" if request.shards is None else "--shards"
    if not request.ray:
        of_server = "--server-embedded"
    if request.embedded:
        if request.fresh or flags.url is not None:
            raise InvalidArgument("--embedded is a target of its own; leave --url and --fresh out.")
        if of_server:
            raise InvalidArgument(f"with --embedded no server is started; leave {of_server} out.")
        return embedded_target()
    found = flags.settled()
    connections = max(1, -(-options.in_flight // options.processes))
    url = None if request.fresh else found.value("url")
    if url is None:
        if request.fresh and flags.url is not None:
            raise InvalidArgument("--fresh starts a server; leave --url out.")
        if options.scenario == CHAOS and not request.ray:
            raise InvalidArgument("chaos needs processes to kill: leave --server-embedded out.")
        if request.shards is not None and not 1 <= request.shards <= limits.SHARDS_MAX:
            raise InvalidArgument(f"--shards must be 1 to {limits.SHARDS_MAX}.")
        return server_target(Fresh(request.ray, request.shards), connections)
    if of_server:
        raise InvalidArgument(
            f"{of_server} is of a server that is started, and {url} is one that runs; leave it "
            "out, or start one with --fresh."
        )
    return http_target(_access(found, url, connections), _data(found))


def _access(found: Sources, url: str, connections: int) -> Access:
    token, account = found.value("token"), found.value("account") or ""
    connect(url, token, account)  # it refuses what can't be one
    return Access(url, token, account, connections)


def _data(found: Sources) -> Path | None:
    data = found.value("data")
    return None if data is None else Path(data)
