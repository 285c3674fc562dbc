"""`toque config`: which settings are in effect, and where each comes from.

A token is never shown whole.
"""

from __future__ import annotations

from .cli_flags import Flags, Output, flags_command, new_app
from .cli_output import print_json, print_table
from .settings import SETTINGS, hidden

app = new_app("Show settings and where they come from.")


@flags_command(app)
def show(flags: Flags) -> None:
    """Show each setting, and where its value comes from."""
    sources = flags.settled()
    rows = []
    for name, (value, origin) in sources.found.items():
        shown = hidden(value) if name == "token" and value else value
        rows.append((name, shown, origin))
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
