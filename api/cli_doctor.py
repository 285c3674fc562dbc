"""`toque doctor`: what is wrong with a data directory, or with a server that runs.

A directory that is named with `--data` and that nobody has open is looked at under its lock, and
with `--fix` mended where that is safe. If it is in use, only the server that its own dev file names
is asked: any other is another's. Without `--data`, or with `--url`, the server that the settings
name is asked, with an operator's token; if they name none but what a `toque dev` has left, its
directory is looked at in the same way. `--accept-loss SHARD` lets the store of a stopped directory
go on without what it lacks, and keeps a record of it there. Exit codes: 0 nothing is wrong (any
more), 1 something is.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..runtime.chain_sqlite import accept_loss
from ..runtime.clock import SystemClock
from ..runtime.datadir import (
    DIR_FORMAT,
    SETTINGS_FILE,
    DataDir,
    check_store,
    read_format,
    read_settings,
)
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import DataDirFormat, DataDirInUse, InvalidArgument
from .cli_config import Sources, read_dev_file
from .cli_exits import FAILED
from .cli_flags import Flags, Output, flags_command, new_app
from .cli_output import print_json, print_table
from .client_http import connect
from .doctor import KINDS, Finding, Told, judge_running, told
from .doctor_http import parts_of
from .doctor_sqlite import Survey, mend
from .identity_cache import IDENTITY_PART

_PASSES_MAX = 3
_SHOWN_MAX = 200

app = new_app()


@flags_command(app)
def doctor(
    flags: Flags,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended safely.")] = False,
    accept: Annotated[
        str | None,
        typer.Option(
            "--accept-loss",
            metavar="SHARD",
            help="Let the store of a shard go on without what it lacks, for good.",
        ),
    ] = None,
) -> None:
    """Find what is wrong with a data directory or a server."""
    if accept is not None:
        if flags.data is None or flags.url is not None:
            raise InvalidArgument("--accept-loss is for a stopped directory; name it with --data.")
        what = accept_lost(flags.data, accept)
        print(f"accepted for shard {accept}: {what}.", file=sys.stderr)
    folder = flags.data if flags.url is None else None
    if folder is None and fix:
        raise InvalidArgument("--fix mends a stopped directory; name it with --data DIR.")
    if folder is None:
        folder = _left_behind(flags.settled())
    if folder is not None:
        try:
            found = look_at(folder, fix)
            if flags.data is None:
                print(f"no server has {folder} open: this is what it holds.", file=sys.stderr)
        except DataDirInUse as busy:
            if fix:
                raise  # what runs is not to be changed behind its back
            found = _holder_of(folder, busy)
    else:
        found = asyncio.run(_running(flags))
    _print(found, flags.output or Output.TABLE)
    raise typer.Exit(FAILED if any(not each.fixed and not each.note for each in found) else 0)


def _left_behind(settled: Sources) -> Path | None:
    """The directory that is meant when neither it nor a server is named: that of `toque dev`."""
    is_named = settled.value("url") is not None and not settled.url_is_of_dev
    folder = settled.dev.parent
    return folder if not is_named and (folder / SETTINGS_FILE).exists() else None


def look_at(folder: Path, fix: bool) -> list[Told]:
    """The faults of a stopped directory, mended if that is asked for.

    Raises:
        DataDirFormat: it is no data directory.
        DataDirInUse: somebody has it open.
    """
    if not (folder / SETTINGS_FILE).exists():
        raise DataDirFormat(f"{folder} is no data directory: it has no {SETTINGS_FILE}.")
    try:
        if 0 < read_format(folder) < DIR_FORMAT:
            note = Finding("format.older", str(folder), f"format {read_format(folder)}")
            return told([note], False)
        read_settings(folder)
    except DataDirFormat as error:
        return told([Finding("settings.damaged", str(folder / SETTINGS_FILE), str(error))], False)
    directory = DataDir.open(folder)
    try:
        survey = Survey(directory.path, directory.placement, SystemClock().now_ms())
        found = survey.findings()
        mended: list[Told] = []
        for _ in range(_PASSES_MAX if fix else 0):  # what was mended may show more
            able = [each for each in found if each.changes]
            if not able:
                break
            mend(directory.path, able)
            mended += told(able, fixed=True)
            found = survey.findings()
        return [*mended, *told(found, fixed=False)]
    finally:
        directory.close()


def accept_lost(folder: Path, shard: str) -> str:
    """Let a shard's store go on without what it lacks; returns what that is.

    Raises:
        InvalidArgument: there is no such shard, it lacks nothing, or it could not go on.
        DataDirFormat, DataDirInUse: see `DataDir.open`.
    """
    directory = DataDir.open(folder)
    try:
        if shard not in directory.placement.names():
            raise InvalidArgument(
                f"there is no shard {shard!r}; there are {', '.join(directory.placement.names())}."
            )
        check_store(directory.path, shard)
        lineage = bytes.fromhex(SystemEntropy().new_id())
        return accept_loss(directory.store_path(shard), lineage, SystemClock().now_ms())
    finally:
        directory.close()


def _holder_of(folder: Path, busy: DataDirInUse) -> list[Told]:
    """What the server that has the directory open tells of itself, if the directory says where."""
    dev = read_dev_file(folder)
    if dev is None:
        hint = "Or ask the server that runs, with --url and --token."
        raise DataDirInUse(f"{busy} {hint}", busy.data)
    print(f"{folder} is in use: this is what {dev.url}, which serves it, tells.", file=sys.stderr)
    return asyncio.run(_ask(dev.url, dev.token))


async def _running(flags: Flags) -> list[Told]:
    settled = flags.settled()
    return await _ask(settled.url, settled.value("token"), settled.value("retry_for") or 0)


async def _ask(url: str, token: str | None, retry_for: float | str = 0) -> list[Told]:
    parts = await parts_of(url, token)
    if parts.get(IDENTITY_PART) is False:  # whose token this is can't be found out now
        return told(judge_running(parts, {}), fixed=False)
    async with connect(url, token, retry_for=retry_for) as client:
        figures = await client.statistics()
    return told(judge_running(parts, figures), fixed=False)


def _print(found: list[Told], output: Output) -> None:
    if output is Output.JSON:
        print_json(found)
    elif output is Output.IDS:
        for each in found:
            print(each.code)
    else:
        rows = [
            (each.code, each.place, each.detail, each.meaning, _fix(each))
            for each in found[:_SHOWN_MAX]
        ]
        if rows:
            print_table(("CODE", "WHERE", "DETAIL", "MEANING", "FIX"), rows)
        if len(found) > _SHOWN_MAX:
            print(f"... and {len(found) - _SHOWN_MAX} more; -o json shows all.")
        if all(each.note for each in found):
            print("Nothing is wrong.")


def _fix(each: Told) -> str:
    if each.fixed:
        return "done"
    return f"--fix {each.fix}" if each.fix else KINDS[each.code].mending
