"""`toque accounts`: the tenants of a server.

Making and listing them needs an operator's token; `toque dev` has one.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .cli_calls import Call, server_command
from .cli_flags import MadeOn, new_app
from .cli_output import print_table
from .client_values import Account

app = new_app("Make and list accounts.")
_COLUMNS = ("ID", "NAME", "PLANE", "CREATED")


def _shown(call: Call, found: list[Account], value: object) -> None:
    rows = [
        (each.id, each.name or "-", each.control_plane or "-", each.created_on or "-")
        for each in found
    ]
    call.show(value, lambda: print_table(_COLUMNS, rows), (each.id for each in found))


@server_command(app, "list")
async def list_accounts(call: Call) -> None:
    """List accounts."""
    found = await call.client.accounts.list()
    _shown(call, found, found)


@server_command(app)
async def create(
    call: Call,
    id: Annotated[str | None, typer.Argument(metavar="ID", help="None: one is made.")] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    control_plane: Annotated[
        MadeOn, typer.Option(help="Where it begins; v1 is what 'migrate' starts from.")
    ] = MadeOn.V2,
) -> None:
    """Make an account."""
    made = await call.client.accounts.create(id, name, control_plane=control_plane.value)
    _shown(call, [made], made)


@server_command(app)
async def show(
    call: Call,
    id: Annotated[str | None, typer.Argument(metavar="ID", help="None: your own.")] = None,
) -> None:
    """Show an account."""
    found = await call.client.accounts.get(id)
    _shown(call, [found], found)
