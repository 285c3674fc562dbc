"""`toque whoami`: whom the token stands for.

Answers which account and scope a command would act with.
"""

from __future__ import annotations

from .cli_calls import Call, server_command
from .cli_flags import new_app
from .cli_output import print_table

app = new_app()


@server_command(app)
async def whoami(call: Call) -> None:
    """Show the account, scope and name of your token."""
    found = await call.client.whoami()
    rows = [(found.account, found.scope, found.name or "-", found.token_id or "-")]
    columns = ("ACCOUNT", "SCOPE", "NAME", "TOKEN")
    call.show(found, lambda: print_table(columns, rows), [found.token_id])
