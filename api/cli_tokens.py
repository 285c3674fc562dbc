"""`toque tokens`: who is let in, and how far.

A token's text is printed once, by the command that makes it. What is listed holds no secret.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .cli_calls import Call, server_command
from .cli_flags import new_app
from .cli_output import print_table
from .client_admin import OPERATOR

app = new_app("Make, list and revoke tokens.")
Operator = Annotated[
    bool, typer.Option("--operator", help="Tokens of operators, which reach every account.")
]


def _account(operator: bool) -> str | None:
    return OPERATOR if operator else None


@server_command(app, "list")
async def list_tokens(call: Call, operator: Operator = False) -> None:
    """List tokens, without their secrets."""
    found = await call.client.tokens.list(account=_account(operator))
    columns = ("ID", "NAME", "SCOPE", "ACCOUNT", "CREATED", "EXPIRES")
    rows = [(t.id, t.name, t.scope, t.account, t.created_on, t.expires_on or "-") for t in found]
    call.show(found, lambda: print_table(columns, rows), (each.id for each in found))


@server_command(app)
async def create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name for people.")],
    scope: Annotated[
        str, typer.Option(help="read, write or admin; each may do what those before it may.")
    ] = "write",
    expires_in: Annotated[
        str | None, typer.Option(help="How long it is valid, for example '30 days'.")
    ] = None,
    operator: Operator = False,
) -> None:
    """Make a token and print it; it is never shown again."""
    made = await call.client.tokens.create(
        name, scope, expires_in=expires_in, account=_account(operator)
    )

    def told() -> None:
        print(made.token)
        until = f" until {made.expires_on}" if made.expires_on else ""
        sys.stderr.write(
            f"toque: token {made.id} may {made.scope} in account {made.account}{until}. "
            "Keep it: it is not shown again.\n"
        )

    call.show(made, told, [made.id])


@server_command(app)
async def revoke(
    call: Call,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The tokens' ids.")],
    operator: Operator = False,
) -> None:
    """Make tokens invalid, everywhere within a second."""
    for each in ids:
        await call.client.tokens.revoke(each, account=_account(operator))
    call.show(ids, lambda: print(f"revoked {', '.join(ids)}"), ids)
