"""`toque workflows`: what is deployed, and its versions.

One line a workflow for people; `-o ids` prints names.
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import cli_output as output
from .cli_bulk import confirm
from .cli_calls import Call, Workflow, server_command
from .cli_flags import new_app

app = new_app("Look at workflows.")


@server_command(app, "list")
async def list_workflows(call: Call) -> None:
    """List workflows."""
    found = await call.client.list_workflows()
    call.show(found, lambda: output.print_workflows(found), (each.name for each in found))


@server_command(app)
async def describe(call: Call, workflow: Workflow) -> None:
    """Show a workflow."""
    found = await call.client.get_workflow(workflow)
    call.show(found, lambda: output.print_workflows([found]), [found.name])


@server_command(app)
async def versions(call: Call, workflow: Workflow) -> None:
    """List a workflow's versions, newest first."""
    found = await call.client.versions(workflow)
    rows = [(each.id, each.class_name, each.created_on) for each in found]
    columns = ("VERSION", "CLASS", "CREATED")
    call.show(found, lambda: output.print_table(columns, rows), (each.id for each in found))


@server_command(app)
async def delete(
    call: Call,
    workflow: Workflow,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Remove a workflow with its instances; its name is free."""
    confirm(f"delete workflow {workflow} and all its instances", yes=yes)
    await call.client.delete_workflow(workflow)
    call.show({"name": workflow}, lambda: print(f"deleted {workflow}"), [workflow])
