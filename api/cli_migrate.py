"""`toque migrate`: accounts move from V1 to V2, by themselves once it was begun.

Accounts are named one by one, in a file (one a line), or all that are on V1. The server makes the
moves; the command only asks, so it may end at any time. With `--per-minute` each account is given
its own time to begin, which the server keeps.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..runtime import limits
from ..runtime.errors import InvalidArgument, ToqueError
from . import cli_exits
from .cli_bulk import confirm
from .cli_calls import Call, ids_of, server_command
from .cli_flags import new_app
from .cli_output import print_json, print_table
from .client_values import Migration, MigrationPlan, OldInstances

T = TypeVar("T")
app = new_app("Move accounts from V1 to V2.")
_LOOK_S = 1.0
_COUNTS = ("unborn", "queued", "running", "waiting", "paused", "ended")
_WAY = ("none", "planned", "frozen", "adopted", "routed", "healed", "drained", "retired")


@dataclass(frozen=True)
class Chosen:
    """Which accounts a command is about."""

    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ACCOUNT", help="Accounts; '-': from stdin. None: your own."),
    ] = None
    file: Annotated[Path | None, typer.Option(help="More of them, one a line.")] = None
    everyone: Annotated[bool, typer.Option("--all", help="All that are on V1, or move.")] = False

    async def of(self, call: Call, *, still: bool = False) -> list[str]:
        """Their ids; each once, in the order in which they were given.

        Args:
            call: the server.
            still: of all only those that are not being moved.
        """
        if self.everyone and (self.names or self.file):
            raise InvalidArgument("name accounts, or say --all; not both.")
        if self.everyone:
            known = [account.id for account in await call.client.accounts.list()]
            found = [await call.client.migrations.status(account) for account in known]
            chosen = (each for each in found if each.finished or not still)
            return [each.account for each in chosen if each.plane != "v2" or not each.finished]
        if not self.names and self.file is None:
            return [call.client.backend.account]
        given = ids_of(self.names or [])
        if self.file is not None:
            given += _words_of(self.file)
        if not given:
            where = "stdin" if self.file is None else str(self.file)
            raise InvalidArgument(f"{where} names no account, so nothing is done.")
        return list(dict.fromkeys(given))


def _words_of(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"{file} is no text in UTF-8. Right: a file with an account on each line."
        ) from None


class Refusal(NamedTuple):
    """An account whose command was refused, and why."""

    account: str
    error: ToqueError


@server_command(app)
async def plan(call: Call, chosen: Chosen) -> None:
    """Show what a move would do and what speaks against it; changes nothing."""
    plans, refused = await _asked(await chosen.of(call), call.client.migrations.plan)
    ready = (each.account for each in plans if each.possible)
    call.show(plans, lambda: _print_plans(plans), ready)
    _tell_refused(refused)
    if not all(each.possible for each in plans):
        raise typer.Exit(cli_exits.CONFLICT)


@server_command(app)
async def start(
    call: Call,
    chosen: Chosen,
    per_minute: Annotated[
        float | None, typer.Option(help="Begin so many a minute, the first now.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: don't ask.")] = False,
) -> None:
    """Begin to move accounts. They go on by themselves."""
    if per_minute is not None and not 0 < per_minute <= 60_000:
        raise InvalidArgument("--per-minute is more than 0, at most 60000. Right: --per-minute 2.")
    accounts = await chosen.of(call, still=True)
    gap_s = 0.0 if per_minute is None else 60 / per_minute
    last_s, most_s = gap_s * (len(accounts) - 1), limits.MIGRATION_START_MAX_MS / 1000
    if last_s > most_s:
        raise InvalidArgument(
            f"at --per-minute {per_minute:g} the last of {len(accounts)} accounts would begin "
            f"{last_s / 86_400:.1f} days hence; the most is {most_s / 86_400:.0f} days. Right: "
            f"--per-minute {math.ceil((len(accounts) - 1) * 60_000 / most_s) / 1000:g}, or fewer."
        )
    if chosen.everyone and accounts:
        confirm(f"move {len(accounts)} accounts from V1 to V2", yes=yes)
    begin_s = {account: gap_s * place for place, account in enumerate(accounts)}
    await _each(
        call, accounts,
        lambda each: call.client.migrations.start(each, start_in=begin_s[each] or None),
    )  # fmt: skip


@server_command(app)
async def status(call: Call, chosen: Chosen) -> None:
    """Show how migrations stand."""
    found, refused = await _asked(await chosen.of(call), call.client.migrations.status)
    call.show(found, lambda: _print_status(found), (each.account for each in found))
    _tell_refused(refused)


@server_command(app)
async def watch(
    call: Call,
    chosen: Chosen,
    until: Annotated[
        str, typer.Option(help="The state to wait for: routed, healed, drained or retired.")
    ] = "drained",
) -> None:
    """Show how migrations go on, until all have come so far or have been aborted.

    Exit code 1 if one was aborted.
    """
    if until not in _WAY[4:]:
        raise InvalidArgument(f"--until is {', '.join(_WAY[4:])}, not {until!r}.")
    accounts = await chosen.of(call)
    ends = await _watch(call, accounts, until)
    if any(each.state in ("aborted", "none") for each in ends):
        raise typer.Exit(cli_exits.FAILED)


@server_command(app)
async def pause(call: Call, chosen: Chosen) -> None:
    """Have migrations hold: before the freeze, while they heal, or while they drain."""
    await _each(call, await chosen.of(call), call.client.migrations.pause)


@server_command(app)
async def resume(call: Call, chosen: Chosen) -> None:
    """Have migrations go on."""
    await _each(call, await chosen.of(call), call.client.migrations.resume)


@server_command(app)
async def abort(call: Call, chosen: Chosen) -> None:
    """Take migrations back: V1 serves the accounts again; not after the first create on V2."""
    await _each(call, await chosen.of(call), call.client.migrations.abort)


async def _each(
    call: Call, accounts: list[str], change: Callable[[str], Awaitable[Migration]]
) -> None:
    """Do it for each, and tell of each."""
    done, refused = await _asked(accounts, change)
    call.show(done, lambda: _print_status(done), (each.account for each in done))
    _tell_refused(refused)


async def _asked(
    accounts: list[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[list[T], list[Refusal]]:
    """What each gave; who is refused stops no other, and is told at the end."""
    found: list[T] = []
    refused: list[Refusal] = []
    for account in accounts:
        try:
            found.append(await ask(account))
        except ToqueError as error:
            if len(accounts) == 1:
                raise
            refused.append(Refusal(account, error))
    return found, refused


def _tell_refused(refused: list[Refusal]) -> None:
    """Tell who was refused; and end with an exit code if anybody was."""
    for each in refused:
        sys.stderr.write(f"toque: {each.account}: {each.error}\n")
    if refused:
        raise typer.Exit(max(cli_exits.exit_code(each.error) for each in refused))


# --- watching -------------------------------------------------------------------------------


def has_come(found: Migration, until: str) -> bool:
    """Whether a migration needs no more watching."""
    if found.state in ("none", "aborted", "retired"):
        return True
    return found.state in _WAY and _WAY.index(found.state) >= _WAY.index(until)


def drained(found: Migration) -> tuple[int, int]:
    """How many of the instances that V1 left to V2 have ended, and how many there were."""
    if found.at_freeze is None or found.instances is None:
        return 0, 0
    total = max(found.at_freeze.live, found.instances.live)
    return total - found.instances.live, total


async def _watch(call: Call, accounts: list[str], until: str) -> list[Migration]:
    console = Console(stderr=True)
    shown: dict[str, TaskID] = {}
    told: dict[str, tuple[str, ...]] = {}
    columns = (
        TextColumn("{task.fields[account]}"), TextColumn("{task.description}"), BarColumn(),
        TextColumn("{task.fields[counts]}"), TimeElapsedColumn(),
    )  # fmt: skip
    live = console.is_terminal and not call.as_json
    with Progress(*columns, console=console, disable=not live) as progress:
        for account in accounts:
            shown[account] = progress.add_task("", account=escape(account), counts="", total=None)
        while True:
            found = [await call.client.migrations.status(name) for name in accounts]
            for each in found:
                done, total = drained(each)
                progress.update(
                    shown[each.account], description=_word(each), completed=done,
                    total=total or None, counts=_counts(each.instances),
                )  # fmt: skip
                line = (each.account, _word(each), _counts(each.instances), each.trouble or "")
                if not live and told.get(each.account) != line:
                    told[each.account] = line
                    _tell(call, each, line)
            if all(has_come(each, until) for each in found):
                return found
            await asyncio.sleep(_LOOK_S)


def _tell(call: Call, found: Migration, line: Iterable[str]) -> None:
    """One change, at once."""
    if call.as_json:
        print_json(found)
    else:
        print("  ".join(word for word in line if word), flush=True)


# --- printing -------------------------------------------------------------------------------


def _word(found: Migration) -> str:
    if found.holds:
        return f"{found.state}, holds"
    return f"{found.state}, will hold" if found.paused and not found.finished else found.state


def _counts(found: OldInstances | None) -> str:
    if found is None:
        return "-"
    counts = ((name, getattr(found, name)) for name in _COUNTS)
    return " ".join(f"{name}={count}" for name, count in counts if count) or "nothing left"


def _print_status(found: list[Migration]) -> None:
    rows = [
        (
            each.account,
            each.plane or "-",
            _word(each),
            each.states[-1].since if each.states else "-",
            _counts(each.instances),
            "yes" if each.abortable else "no" if each.migration_id else "-",
            each.trouble or "",
        )
        for each in found
    ]
    print_table(("ACCOUNT", "PLANE", "STATE", "SINCE", "OF V1", "ABORTABLE", "TROUBLE"), rows)


def _print_plans(plans: list[MigrationPlan]) -> None:
    for each in plans:
        verdict = "can be moved" if each.possible else "can't be moved now"
        print(f"{each.account}: {verdict}")
        for text in each.objections:
            print(f"  against it: {text}")
        for number, text in enumerate(each.steps, 1):
            print(f"  {number}. {text}")
