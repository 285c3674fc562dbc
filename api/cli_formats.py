"""`toque formats`: which formats this version knows, and which a data directory has.

It changes nothing, and works on a directory that is in use. `--data` names the directory; without
it only what is known is told.
"""

from __future__ import annotations

import typer

from ..migration.formats import DIR_UPGRADES, STORE_UPGRADES
from ..runtime.datadir import DIR_FORMAT
from ..runtime.schema_sqlite import STORE_FORMAT
from .cli_exits import FAILED
from .cli_flags import Flags, Output, flags_command, new_app
from .cli_output import print_json, print_table
from .formats_sqlite import formats_of

app = new_app()


@flags_command(app)
def formats(flags: Flags) -> None:
    """Show the formats that this version knows, and those of a directory."""
    found = [] if flags.data is None else formats_of(flags.data)
    known = [
        *(("directory", str(upgrade.to), "before", upgrade.what) for upgrade in DIR_UPGRADES),
        *(
            ("store", str(upgrade.to), "after" if upgrade.after else "before", upgrade.what)
            for upgrade in STORE_UPGRADES
        ),
    ]
    output = flags.output or Output.TABLE
    if output is Output.JSON:
        keys = ("of", "format", "runs", "what")
        print_json(
            {
                "newest": {"directory": DIR_FORMAT, "store": STORE_FORMAT},
                "upgrades": [dict(zip(keys, row, strict=True)) for row in known],
                "found": found,
            }
        )
    elif output is Output.IDS:
        for each in found:
            print(each.place)
    else:
        print_table(("OF", "FORMAT", "UPGRADE RUNS", "WHAT IT CHANGES"), known)
        if found:
            rows = [(each.place, str(each.format or "?"), each.state) for each in found]
            print_table(("FOUND", "FORMAT", "STATE"), rows)
    if any(not each.is_fine for each in found):
        raise typer.Exit(FAILED)
