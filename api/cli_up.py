"""`toque up`: the server for production, until a signal.

Tokens are those of the registry; at the first start an operator's is made and handed over. At the
end it is not ready first, goes on for a moment so that load balancers notice, then finishes what
is under way and ends all that it has started. Exit codes: 0 ended by a signal, 2 a setting or the
data directory is wrong (starting again would not help), else 1.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ..runtime import limits
from ..runtime.clock import SystemClock
from ..runtime.errors import InvalidArgument
from .app_http import ControlPlaneApp, make_app
from .auth import TokenBook
from .cli_flags import Flags, MadeOn, NoDashboard, flags_command, new_app
from .cli_machine import NumCpus, Resources, of_machine
from .cli_output import print_json
from .dashboard_http import dashboard_url
from .first_token import hand_over
from .front_http import keep_writing
from .fronts import Fronts, FrontSpec, default_count
from .logs import log_to_stderr
from .metrics_http import MetricsApp
from .notify_socket import Notifier
from .server_http import HttpServer, address_of, is_loopback
from .serving import Hosted, Listen, check_address, hosted_on, run_server, settle, told_of_address
from .wiring import Runtime

_LOOPBACK = "127.0.0.1"
_METRICS_PORT = "--metrics-port"
_log = logging.getLogger("toque.server")

app = new_app()


class LogFormat(StrEnum):
    """What the log looks like."""

    TEXT = "text"
    JSON = "json"


class UpOptions(NamedTuple):
    """What `toque up` was asked for.

    Attributes:
        metrics_port: serves metrics without a token, on loopback; None: nowhere.
        token_file: gets the first operator token; None: it is printed.
        behind_proxy: who reaches `host` comes by a proxy that speaks TLS.
        drain_s: how long it goes on after it has ceased to be ready.
        fronts: how many processes serve HTTP; None: as suits the machine.
        dashboard: whether to serve the page for operators.
    """

    hosted: Hosted
    host: str
    port: int
    metrics_port: int | None
    token_file: Path | None
    behind_proxy: bool
    drain_s: float
    as_json: bool
    fronts: int | None
    log_format: str
    dashboard: bool


@flags_command(app, left_out=("url", "token", "account", "profile"))
def up(
    flags: Flags,
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="APP.py", help="File with workflows, or its folder; none: deployed."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="IP address to listen on.")] = _LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8787,
    embedded: Annotated[bool, typer.Option(help="One process, without Ray.")] = False,
    shards: Annotated[
        int | None, typer.Option(min=1, max=limits.SHARDS_MAX, help="Data shards.")
    ] = None,
    control_shards: Annotated[
        int | None, typer.Option(min=1, max=limits.SHARDS_MAX, help="Control shards.")
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="Payload codec, 'module:attribute'; again for older ones, to read."),
    ] = None,
    first_token_file: Annotated[
        Path | None, typer.Option(help="Gets the first operator token; else it is printed.")
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy before it speaks TLS.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics on loopback without a token."),
    ] = None,
    drain: Annotated[
        float, typer.Option(min=0, max=300, help="Seconds to go on after it is not ready.")
    ] = 2.0,
    fronts: Annotated[
        int | None,
        typer.Option(
            min=1, max=limits.FRONTS_MAX, help="Processes that serve HTTP; as suits, if not given."
        ),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Of the log on stderr.")] = LogFormat.TEXT,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Ray cluster to use; all its nodes see DATA. None: starts its own."),
    ] = None,
    control_plane: Annotated[
        MadeOn | None, typer.Option(help="Of the account 'default' in a new directory.")
    ] = None,
    num_cpus: NumCpus = None,
    resources: Resources = None,
    no_dashboard: NoDashboard = False,
) -> None:
    """Serve workflows and accounts in production."""
    log_to_stderr(log_format)
    os.environ.pop("TOQUE_TOKEN", None)  # a client's; Ray's processes would hand it to every code
    data = _checked(flags.data, first_token_file, embedded and (fronts or 1) > 1)
    settings: dict[str, Any] = {"data_shards": shards, "control_shards": control_shards}
    settings |= {"control_plane": control_plane and control_plane.value}
    settings |= _of_ray(ray_address, embedded, num_cpus, resources)
    hosted = hosted_on(embedded, path, data, settings, tuple(codec or ()))
    options = UpOptions(
        hosted, address_of(host), port, metrics_port, first_token_file, behind_proxy, drain,
        flags.as_json, fronts, log_format, not no_dashboard,
    )  # fmt: skip
    raise typer.Exit(run_server(lambda listen: _serve(options, listen), as_json=flags.as_json))


def _of_ray(
    address: str | None, embedded: bool, num_cpus: int | None, resources: str | None
) -> dict[str, Any]:
    """The settings of a Ray cluster that is there, or of a local one."""
    settings = of_machine(num_cpus, resources, embedded, address)
    if address is None:
        return settings
    if embedded:
        raise InvalidArgument(
            "with --embedded there is no Ray; leave --ray-address or --embedded out."
        )
    return {**settings, "address": address}


def _checked(data: Path | None, first_token_file: Path | None, unreachable: bool) -> Path:
    """The data directory, when what was asked for can be had. `unreachable`: more front ends than
    can reach the shards."""
    if data is None:
        raise InvalidArgument("name the data directory: --data DIR (or TOQUE_DATA).")
    if first_token_file is not None and not first_token_file.parent.is_dir():
        raise InvalidArgument(
            f"--first-token-file {first_token_file}: there is no folder {first_token_file.parent}; "
            "make it, or name another file."
        )
    if unreachable:
        raise InvalidArgument(
            "with --embedded shards are in this process, which no other front end reaches; leave "
            "--fronts or --embedded out."
        )
    return data


async def _serve(options: UpOptions, listen: Listen) -> None:
    if options.port and options.port == options.metrics_port:
        raise InvalidArgument(
            f"--port and {_METRICS_PORT} both name {options.port}; give metrics another (0: any)."
        )
    opening = options.hosted.open()
    for host, port, flag in (
        (options.host, options.port, "--port"),
        (_LOOPBACK, options.metrics_port, _METRICS_PORT),
    ):
        if port:
            await check_address(host, port, flag)
    if not is_loopback(options.host) and not options.behind_proxy:
        _log.warning(
            "tokens and payloads travel to %s as clear text: put a proxy that speaks TLS before "
            "it, and say so with --behind-proxy.",
            options.host,
        )
    notifier = Notifier(os.environ)
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(opening)
        listen()  # again: Ray has put its own handlers in place
        served = make_app(
            runtime.control_plane,
            tokens=TokenBook({}),
            version=version("toque"),
            process=runtime.process,
            frames=runtime.router.calls_per_frame,
            dashboard=options.dashboard,
        )
        clock = SystemClock()
        count = _count(options, runtime)
        server = HttpServer(
            served, clock, options.host, options.port, loopback_only=False, shared=count > 1
        )
        await _start(stack, server, options.host, options.port)
        fronts = await _start_fronts(stack, options, runtime, served, server.port, count)
        metrics_url = None
        if options.metrics_port is not None:
            metrics = HttpServer(MetricsApp(served.metrics), clock, _LOOPBACK, options.metrics_port)
            await _start(stack, metrics, _LOOPBACK, options.metrics_port, _METRICS_PORT)
            metrics_url = f"{metrics.url}/metrics"
        first: list[str] = []

        def tell(token: str) -> None:
            first.append(token)
            _tell(options, runtime, server.url, metrics_url, first)

        # Only now: a start that fails after the token was noted as told would lock everybody out.
        await hand_over(
            runtime.control_plane.accounts, options.hosted.data, options.token_file, tell
        )
        if not first:
            _tell(options, runtime, server.url, metrics_url, first)
        settle()
        notifier.ready(f"serving at {server.url}")
        stack.callback(notifier.close)
        try:
            await asyncio.Event().wait()
        finally:
            fronts.drain()
            await _drain(options, served, notifier)


async def _start(
    stack: AsyncExitStack, server: HttpServer, host: str, port: int, flag: str = "--port"
) -> None:
    try:
        await stack.enter_async_context(server)
    except OSError as error:
        raise told_of_address(error, host, port, flag) from error


def _count(options: UpOptions, runtime: Runtime) -> int:
    """How many processes are to serve HTTP."""
    if runtime.shards is None:
        return 1
    return options.fronts or default_count(runtime.placement.data_shards, os.cpu_count() or 1)


async def _start_fronts(
    stack: AsyncExitStack,
    options: UpOptions,
    runtime: Runtime,
    served: ControlPlaneApp,
    port: int,
    count: int,
) -> Fronts:
    """Start the further front ends; they are ended with `stack`."""
    shards = runtime.shards
    if shards is None or count == 1:
        return Fronts(())
    served.metrics.share(shards.run_dir, 0, count)
    writing = asyncio.create_task(keep_writing(served, shards.run_dir))
    stack.callback(writing.cancel)
    fronts = Fronts(
        [
            FrontSpec(
                number,
                count,
                options.host,
                port,
                shards.data_dir,
                shards.run_dir,
                shards.token,
                shards.data_shards,
                shards.control_shards,
                options.log_format,
                shards.listen,
                options.dashboard,
            )
            for number in range(1, count)
        ]
    )
    stack.push_async_callback(fronts.close)
    await fronts.start()
    return fronts


async def _drain(options: UpOptions, served: ControlPlaneApp, notifier: Notifier) -> None:
    """Be ready no more, and go on for a while: whoever sends work here has to notice."""
    notifier.stopping("draining")
    served.begin_drain()
    _log.info("draining: not ready any more, ending in %g s", options.drain_s)
    await asyncio.sleep(options.drain_s)


def _tell(
    options: UpOptions, runtime: Runtime, url: str, metrics_url: str | None, first: list[str]
) -> None:
    if options.as_json:
        told = {"url": url, "metrics_url": metrics_url, "workflows": runtime.workflows}
        page = dashboard_url(url) if options.dashboard else None
        token = first[0] if first else None
        print_json({**told, "dashboard_url": page, "operator_token": token})
    else:
        names = ", ".join(runtime.workflows) or "deployed code"
        print(f"toque serves {names} at {url} ({options.hosted.runs_on}).")
        if options.dashboard:
            print(f"Dashboard: {dashboard_url(url)}")
        if metrics_url is not None:
            print(f"Metrics: {metrics_url}")
        if first:
            print(f"Operator token (shown this once): {first[0]}")
    sys.stdout.flush()
