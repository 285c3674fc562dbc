"""`toque loadtest`: put a control plane under load, and judge it by objectives.

What runs it is imported when a test is run, so the help needs none of it, and a missing extra is
told in a sentence. Exit codes: 0; 1: an objective was missed; 2: wrong usage; 130: Ctrl-C, after
what there was has been written; others as for every command.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ..api.cli_flags import Flags, flags_command, new_app
from ..api.requests import parse_duration
from ..runtime import limits
from ..runtime.errors import InvalidArgument
from .command import HOW_TO_INSTALL, Request

app = new_app("Put a control plane under load and measure it.")
_TARGET = "What is put under load"
_OUTCOME = "Outcome"


class Arrivals(StrEnum):
    """When operations are due."""

    EVEN = "even"
    POISSON = "poisson"


class Work(StrEnum):
    """What instances of the test's own do."""

    ONE_STEP = "one-step"
    TEN_STEPS = "ten-steps"
    EVENT = "event"
    HOLD = "hold"


class Wake(StrEnum):
    """How waiters are woken."""

    ALL = "all"
    ONE = "one"


class WaitsFor(StrEnum):
    """What waiters wait for."""

    EVENT = "event"
    SLEEP = "sleep"


@dataclasses.dataclass(frozen=True, slots=True)
class Common:
    """Options of every scenario."""

    fresh: Annotated[
        bool, typer.Option(help="Start a server, whatever is set.", rich_help_panel=_TARGET)
    ] = False
    embedded: Annotated[
        bool, typer.Option(help="A runtime in this process, no HTTP.", rich_help_panel=_TARGET)
    ] = False
    ray: Annotated[
        bool,
        typer.Option(
            "--ray/--server-embedded",
            " /--no-ray",
            help="Whether the server that is started is on Ray, or as with 'toque dev --embedded'.",
            rich_help_panel=_TARGET,
        ),
    ] = True
    shards: Annotated[
        int | None,
        typer.Option(help="Data shards of the server that is started.", rich_help_panel=_TARGET),
    ] = None
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="Objective, such as p99_start_ms=100 or error_rate=0.01; again for more.",
            rich_help_panel=_OUTCOME,
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="File for the result, JSON.", rich_help_panel=_OUTCOME)
    ] = None
    html: Annotated[
        Path | None, typer.Option(help="File for the report, HTML.", rich_help_panel=_OUTCOME)
    ] = None
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=_OUTCOME)
    ] = False
    in_flight: Annotated[int | None, typer.Option(help="Calls under way at most.")] = None
    processes: Annotated[int, typer.Option(help="Processes that send.")] = 1
    drain: Annotated[str, typer.Option(help="How long to wait for the ends at most.")] = "60s"
    seed: Annotated[str, typer.Option(help="Of all that is drawn.")] = "1"
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave instances that have not ended as they are.")
    ] = False


@dataclasses.dataclass(frozen=True, slots=True)
class Created:
    """Options of scenarios that create what one likes."""

    work: Annotated[Work | None, typer.Option(help="What the test's own instances do.")] = None
    hold: Annotated[
        str | None, typer.Option(help="How long 'hold' holds a slot, for example 200ms.")
    ] = None
    workflow: Annotated[str | None, typer.Option(help="A workflow of yours instead.")] = None
    params: Annotated[str, typer.Option(help="Its params, JSON.")] = "null"
    limit: Annotated[
        int | None, typer.Option(help="Running instances of it at most, for the test.")
    ] = None


Count = Annotated[int | None, typer.Option("--count", "-n", help="Instances.")]
Rate = Annotated[float | None, typer.Option(help="Operations a second.")]
Duration = Annotated[str | None, typer.Option(help="For how long, for example 30s.")]
When = Annotated[Arrivals, typer.Option(help="When operations are due.")]
Waited = Annotated[bool, typer.Option("--wait", help="Creates wait for the end, in one request.")]


def _run(flags: Flags, scenario: str, common: Common, created: Created | None, **own: Any) -> None:
    given = {} if created is None else dataclasses.asdict(created)
    given["hold_s"] = given.pop("hold", None)
    given |= {
        "slo": common.slo,
        "in_flight": common.in_flight,
        "processes": common.processes,
        "drain_s": common.drain,
        "seed": common.seed,
        "keep": common.keep,
        **own,
    }
    plain = {name: _plain(name, value) for name, value in given.items()}
    request = Request(
        flags,
        scenario,
        plain,
        common.fresh,
        common.embedded,
        common.ray,
        common.shards,
        common.out,
        common.html,
        common.quiet,
    )
    raise typer.Exit(_module(".execute").execute(request))


def _plain(name: str, value: Any) -> Any:
    """An option as a plain value; durations in seconds."""
    if isinstance(value, StrEnum):
        return value.value
    if name.endswith("_s") and value is not None:
        return parse_duration(value, f"--{name.removesuffix('_s').replace('_', '-')}") / 1000
    return value


def _module(name: str) -> Any:
    """A module that needs the extra, or `InvalidArgument` that says how to get it."""
    try:
        return import_module(name, __package__)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("toque"):
            raise
        raise InvalidArgument(f"the load test needs {error.name}: {HOW_TO_INSTALL}") from None


@flags_command(app)
def burst(
    flags: Flags,
    common: Common,
    created: Created,
    count: Count = None,
    wait: Waited = False,
    duration: Annotated[str | None, typer.Option(help="How long at most.")] = None,
) -> None:
    """Create so many as fast as answers come (2,000)."""
    _run(flags, "burst", common, created, count=count, wait=wait, duration_s=duration)


@flags_command(app)
def steady(
    flags: Flags,
    common: Common,
    created: Created,
    rate: Rate = None,
    duration: Duration = None,
    arrivals: When = Arrivals.EVEN,
    wait: Waited = False,
) -> None:
    """Create at a rate for a time, each timed from when it was due (50 a second, 30 s)."""
    _run(
        flags, "steady", common, created,
        rate=rate, duration_s=duration, arrivals=arrivals, wait=wait,
    )  # fmt: skip


@flags_command(app)
def ramp(
    flags: Flags,
    common: Common,
    created: Created,
    rate: Annotated[float | None, typer.Option(help="The first rate.")] = None,
    duration: Annotated[str | None, typer.Option(help="How long each rate lasts.")] = None,
    growth: Annotated[float, typer.Option(help="Each rate by the one before.")] = 1.5,
    rate_max: Annotated[float, typer.Option(help="The last rate.")] = 5_000.0,
    arrivals: When = Arrivals.EVEN,
) -> None:
    """Raise the rate until an objective is missed, and tell the last one that held."""
    _run(
        flags, "ramp", common, created,
        rate=rate, duration_s=duration, growth=growth, rate_max=rate_max, arrivals=arrivals,
    )  # fmt: skip


@flags_command(app)
def queue(flags: Flags, common: Common, created: Created, count: Count = None) -> None:
    """Queue so many under a running limit, list them page by page, drain (2,000; limit 50)."""
    _run(flags, "queue", common, created, count=count)


@flags_command(app)
def waiters(
    flags: Flags,
    common: Common,
    count: Count = None,
    waits_for: Annotated[WaitsFor, typer.Option(help="What they wait for.")] = WaitsFor.EVENT,
    wake: Annotated[Wake, typer.Option(help="Events to all at once, or one by one.")] = Wake.ALL,
    duration: Annotated[str | None, typer.Option(help="How long to go on waking at most.")] = None,
) -> None:
    """Let so many wait, then wake them (1,000)."""
    _run(
        flags, "waiters", common, None,
        count=count, waits_for=waits_for, wake=wake, duration_s=duration,
    )  # fmt: skip


@flags_command(app, "noisy-neighbour")
def noisy_neighbour(
    flags: Flags,
    common: Common,
    count: Annotated[int | None, typer.Option("--count", "-n", help="The noisy one's.")] = None,
    quiets: Annotated[int, typer.Option(help="Quiet workflows.")] = 3,
    rate: Annotated[float | None, typer.Option(help="Creates a second of each of them.")] = None,
    duration: Duration = None,
    arrivals: When = Arrivals.EVEN,
    hold: Annotated[str | None, typer.Option(help="How long each holds a slot.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Running instances of the account at most, for the test.")
    ] = None,
) -> None:
    """Queue 1,000 of one workflow beside three that ask for little, at 20 slots."""
    _run(
        flags, "noisy-neighbour", common, None,
        count=count, quiet=quiets, rate=rate, duration_s=duration, arrivals=arrivals,
        hold_s=hold, limit=limit,
    )  # fmt: skip


@flags_command(app)
def chaos(
    flags: Flags,
    common: Common,
    rate: Rate = None,
    duration: Duration = None,
    arrivals: When = Arrivals.EVEN,
    kill_every: Annotated[str, typer.Option(help="To the next kill, on average.")] = "10s",
    kills: Annotated[int, typer.Option(help="At most.")] = 100,
    retry_for: Annotated[
        str | None, typer.Option(help="How long to repeat what failed for now (30s).")
    ] = None,
) -> None:
    """Create at a rate while shard processes are killed (20 a second, 60 s)."""
    _run(
        flags, "chaos", common, None,
        rate=rate, duration_s=duration, arrivals=arrivals, kill_every_s=kill_every, kills=kills,
        retry_for_s=retry_for,
    )  # fmt: skip


@flags_command(app)
def mixed(
    flags: Flags,
    common: Common,
    rate: Rate = None,
    duration: Duration = None,
    arrivals: When = Arrivals.EVEN,
    mix: Annotated[
        str | None, typer.Option(help="Weights: create=6,create-wait=2,status=4,list=1,...")
    ] = None,
) -> None:
    """Create, read, send events and change, by weight (50 a second, 30 s)."""
    _run(
        flags, "mixed", common, None, rate=rate, duration_s=duration, arrivals=arrivals, mix=mix
    )  # fmt: skip


# --- results that were written ---

_NOWHERE = ("url", "token", "account", "profile", "data")
_Page = Annotated[Path | None, typer.Option(help="File for the page, HTML.")]


@flags_command(app, left_out=_NOWHERE)
def report(
    flags: Flags,
    result: Annotated[Path, typer.Argument(metavar="RESULT.json", help="What --out wrote.")],
    html: _Page = None,
) -> None:
    """Show a result that was written, and make its report."""
    found = _module(".reading")
    raise typer.Exit(found.report_on(result, found.Asked(html, flags.as_json)))


@flags_command(app, left_out=_NOWHERE)
def compare(
    flags: Flags,
    first: Annotated[Path, typer.Argument(metavar="FIRST.json", help="A result.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND.json", help="One to compare with it.")],
    html: _Page = None,
    noise: Annotated[
        float, typer.Option(help="Share that is no difference at least.")
    ] = limits.COMPARE_NOISE_FLOOR,
    force: Annotated[
        bool, typer.Option("--force", help="Though they were not got in the same way.")
    ] = False,
) -> None:
    """Compare two results; exit code 1 if the second is worse in any figure."""
    found = _module(".reading")
    asked = found.Asked(html, flags.as_json)
    raise typer.Exit(found.compare_both(first, second, noise, force, asked))
