"""`toque dev`: the whole system for one app file, on this machine, until Ctrl-C.

It serves HTTP on loopback with one development token, which is kept in the data directory (for
its owner's eyes only) beside the url, so that other commands find both. What goes wrong is told
in one sentence, with an exit code as of `toque up`.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ..runtime import limits
from ..runtime.clock import SystemClock
from ..runtime.entropy import SystemEntropy
from .app_http import make_app
from .auth import ADMIN, OPERATOR, Principal, TokenBook
from .cli_config import DATA_DEFAULT, DevFile, read_dev_file, write_dev_file
from .cli_flags import Flags, MadeOn, NoDashboard, flags_command, new_app
from .cli_machine import NumCpus, Resources, of_machine
from .cli_output import print_json
from .dashboard_http import dashboard_url
from .logs import log_to_stderr
from .server_http import HttpServer
from .serving import Hosted, Listen, check_address, hosted_on, run_server, settle
from .wiring import Runtime

_HOST = "127.0.0.1"

app = new_app()


@flags_command(app, left_out=("url", "token", "account", "profile"))
def dev(
    flags: Flags,
    path: Annotated[
        Path, typer.Argument(metavar="APP.py", help="File with workflows, or its folder.")
    ],
    embedded: Annotated[bool, typer.Option(help="One process, without Ray.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8787,
    limit: Annotated[int | None, typer.Option(min=1, help="Running instances at most.")] = None,
    creates: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=limits.CREATES_PER_SECOND_MAX,
            help="Creates a second, where limits were not set (300, and 100 of a workflow).",
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=limits.SHARDS_MAX, help="Data shards.")
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="Payload codec, 'module:attribute'; again for older ones, to read."),
    ] = None,
    control_plane: Annotated[
        MadeOn | None, typer.Option(help="Of the account 'default' in a new directory.")
    ] = None,
    num_cpus: NumCpus = None,
    resources: Resources = None,
    no_dashboard: NoDashboard = False,
) -> None:
    """Serve the workflows of a file on this machine."""
    data = Path(flags.settled().value("data") or DATA_DEFAULT)
    settings: dict[str, Any] = {"running_max": limit, "data_shards": shards}
    settings["control_plane"] = control_plane and control_plane.value
    if creates is not None:
        settings["creates_per_second"] = (creates, creates)
    settings |= of_machine(num_cpus, resources, embedded)
    hosted = hosted_on(embedded, path, data, settings, tuple(codec or ()))
    raise typer.Exit(run_dev(DevOptions(hosted, port, flags.as_json, not no_dashboard)))


class DevOptions(NamedTuple):
    """What `toque dev` was asked for."""

    hosted: Hosted
    port: int
    as_json: bool
    dashboard: bool


def run_dev(options: DevOptions) -> int:
    """Serve until a signal comes; gives the exit code."""
    log_to_stderr()
    return run_server(lambda listen: _serve(options, listen), as_json=options.as_json)


async def _serve(options: DevOptions, listen: Listen) -> None:
    opening = options.hosted.open()
    if options.port:
        await check_address(_HOST, options.port)
    async with opening as runtime:
        listen()  # again: Ray has put its own handlers in place
        known = read_dev_file(options.hosted.data)
        token = known.token if known is not None else SystemEntropy().new_id()
        app = make_app(
            runtime.control_plane,
            tokens=TokenBook({token: Principal(OPERATOR, ADMIN, "dev", "toque dev")}),
            version=version("toque"),
            process=runtime.process,
            frames=runtime.router.calls_per_frame,
            dashboard=options.dashboard,
        )
        async with HttpServer(app, SystemClock(), _HOST, options.port) as server:
            found = DevFile(server.url, token)
            path = await asyncio.to_thread(write_dev_file, options.hosted.data, found)
            _tell(options, runtime, server.url, path)
            settle()
            await asyncio.Event().wait()


def _tell(options: DevOptions, runtime: Runtime, url: str, dev_file: Path) -> None:
    if options.as_json:
        told = {"url": url, "workflows": runtime.workflows, "dev_file": str(dev_file)}
        print_json({**told, "dashboard_url": dashboard_url(url) if options.dashboard else None})
    else:
        names = ", ".join(runtime.workflows) or "no workflows"
        print(f"toque serves {names} at {url} ({options.hosted.runs_on}; token in {dev_file}).")
        if options.dashboard:
            print(f"Dashboard: {dashboard_url(url)}")
        example = next(iter(runtime.workflows), "WORKFLOW")
        params = " --params '{...}'" if example in runtime.takes_params else ""
        where = options.hosted.data
        data = "" if where == DATA_DEFAULT else f" --data {shlex.quote(str(where))}"
        print(f"Try: toque{data} create {example}{params} --wait    Ctrl-C ends it.")
    sys.stdout.flush()
