"""`toque config`: which settings are in effect, where each comes from, and changes of one's own.

A token is never shown whole.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..runtime.errors import ToqueError
from .cli_config import config_path
from .cli_flags import Flags, Output, flags_command, new_app
from .cli_output import print_json, print_table
from .settings import SETTINGS, hidden
from .settings_file import Changed, check_key, set_value, unset_value

app = new_app("Show settings and where they come from; change your own.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The setting's name.")]


@flags_command(app)
def show(flags: Flags) -> None:
    """Show each setting, and where its value comes from."""
    sources = flags.settled()
    rows = [(name, _shown(name, value), origin) for name, (value, origin) in sources.found.items()]
    if sources.value("output") == Output.JSON:
        print_json({name: {"value": value, "from": origin} for name, value, origin in rows})
    elif sources.value("output") == Output.IDS:
        for name, *_ in rows:
            print(name)
    else:
        print_table(
            ("SETTING", "VALUE", "FROM", "MEANING"),
            ((n, v or "-", o, SETTINGS[n].help) for n, v, o in rows),
        )


@flags_command(app)
def path(flags: Flags) -> None:
    """Show the files that settings are read from."""
    sources = flags.settled()
    found = {
        "project": None if sources.project is None else str(sources.project),
        "config": str(sources.config),
        "dev": str(sources.dev),
    }
    if sources.value("output") == Output.JSON:
        print_json(found)
    else:
        for name, file in found.items():
            print(f"{name:<8} {file or '- (toque.toml, or [tool.toque] in pyproject.toml)'}")


@flags_command(app, "set", left_out=("url", "token", "account", "data"))
def set_(
    flags: Flags,
    key: Key,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="Its value; '-' reads it from stdin.")
    ],
) -> None:
    """Set a setting in a profile of your own file, --profile or the one in use.

    A token is best given on stdin: what stands on a command line is seen by others.
    """
    check_key(key)
    if value == "-":
        value = sys.stdin.readline().strip()
    if key == "data":  # a path is meant from here, and read from where the file is
        value = str(Path(value).absolute())
    file = config_path()
    changed = set_value(file, _profile(flags), key, value)
    _tell(flags, file, key, changed)


@flags_command(app, "unset", left_out=("url", "token", "account", "data"))
def unset(flags: Flags, key: Key) -> None:
    """Take a setting out of a profile of your own file."""
    file = config_path()
    _tell(flags, file, key, unset_value(file, _profile(flags), key))


def _profile(flags: Flags) -> str | None:
    """The profile in use, or the one that is to be made."""
    try:
        return flags.settled().value("profile")
    except ToqueError:
        return flags.profile or os.environ.get("TOQUE_PROFILE") or None


def _tell(flags: Flags, file: Path, key: str, changed: Changed) -> None:
    told: dict[str, Any] = {
        "key": key,
        "value": _shown(key, changed.now),
        "before": _shown(key, changed.before),
        "profile": changed.profile,
        "selected": changed.selected,
        "file": str(file),
    }
    if flags.as_json:
        print_json(told)
        return
    if flags.output is Output.IDS:
        print(key)
        return
    where = f"profile {changed.profile!r} of {file}" if changed.profile else str(file)
    before = "" if changed.before is None else f" (it was {told['before']})"
    print(f"{key} is {told['value'] or 'not set any more'} in {where}{before}.")
    if changed.selected:
        print(f"Commands use profile {changed.profile!r} from now on.")
    wins = None if changed.now is None else _what_wins(flags, key, changed)
    if wins is not None:
        print(wins)


def _what_wins(flags: Flags, key: str, changed: Changed) -> str | None:
    """What keeps commands from using what was just set."""
    try:
        value, origin = flags.settled().found[key]
    except ToqueError as error:
        return f"No command can use it yet: {error}"
    if value == changed.now:
        return None
    return f"It is not in effect: {origin} has {_shown(key, value) or 'none'}."


def _shown(key: str, value: str | None) -> str | None:
    return hidden(value) if key == "token" and value else value
