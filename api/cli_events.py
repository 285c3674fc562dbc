"""`toque events`: what has happened to an instance, and what happens.

One line an event; with `-o json` one JSON document a line.
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import cli_output as output
from .cli_calls import Call, Id, Workflow, resolved, server_command
from .cli_flags import new_app
from .cli_live import follow as follow_events

app = new_app("Show what happens to instances.")
Types = Annotated[
    list[str] | None, typer.Option("--type", help="Only events of this type; repeatable.")
]
Cursor = Annotated[int, typer.Option(min=0, help="Only those after this number.")]


@server_command(app, "list")
async def list_events(
    call: Call, workflow: Workflow, instance_id: Id, types: Types = None, cursor: Cursor = 0
) -> None:
    """List what has happened to an instance so far."""
    found = await resolved(call.client, workflow, instance_id)
    events = call.client.instance(workflow, found).events(
        cursor=cursor, types=types or (), follow=False
    )
    async for event in events:
        output.print_event(event, as_json=call.as_json)


@server_command(app)
async def follow(
    call: Call, workflow: Workflow, instance_id: Id, types: Types = None, cursor: Cursor = 0
) -> None:
    """Show what has happened to an instance, then what happens, until it has ended."""
    found = await resolved(call.client, workflow, instance_id)
    events = call.client.instance(workflow, found).events(cursor=cursor, types=types or ())
    await follow_events(call, f"{workflow} {found}", events)
