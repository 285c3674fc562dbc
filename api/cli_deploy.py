"""`toque deploy`: bring new code to a server.

Tells each workflow with its version; new instances begin on it, running ones keep theirs.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..runtime.errors import BundleRefused
from .cli_calls import Call, server_command
from .cli_flags import new_app
from .cli_output import print_table
from .client_values import Script

app = new_app()


@server_command(app)
async def deploy(
    call: Call,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A Python file, or a folder.")],
    script: Annotated[
        str | None, typer.Option(help="The script's name; by default that of the path.")
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take names over that other scripts have.")
    ] = False,
) -> None:
    """Deploy the workflows of a file or a folder."""
    try:
        found = await call.client.deploy(path, script, take_over=take_over)
    except BundleRefused as error:
        raise _with_hint(path, error) from None
    call.show(found, lambda: _print(found), (each.name for each in found.workflows))


def _with_hint(path: Path, error: BundleRefused) -> BundleRefused:
    """Why the code does not import; and if it lacks what stands beside the file, what to do."""
    missing = _MISSING.search(str(error))
    if missing is None or not path.is_file():
        return error
    folder, name = path.resolve().parent, missing[1]
    if not (folder / f"{name}.py").is_file() and not (folder / name).is_dir():
        return error
    return BundleRefused(
        f"{error} {name!r} stands beside {path.name}, and a file is deployed alone: deploy its "
        f"folder, 'toque deploy {shlex.quote(str(path.parent))}'.",
        error.data,
    )


_MISSING = re.compile(r"No module named '([^'.]+)")


def _print(found: Script) -> None:
    rows = [
        (each.name, each.class_name, each.version_id, "new" if each.is_new else "as before")
        for each in found.workflows
    ]
    print(f"deployed {found.script}, code {found.code_hash[:12]}")
    print_table(("WORKFLOW", "CLASS", "VERSION", ""), rows)
    if found.left:
        print(
            f"No longer in the code, and left on their last version: {', '.join(found.left)}. "
            "'toque workflows delete' removes one with its instances."
        )
