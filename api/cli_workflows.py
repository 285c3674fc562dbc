"""`toque workflows`: what is deployed.

One line a workflow for people; `-o ids` prints names.
"""

from __future__ import annotations

from . import cli_output as output
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
