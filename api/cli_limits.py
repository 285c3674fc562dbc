"""`toque limits`: how much an account, or one of its workflows, may do at once.

A change is in effect at once; `default` gives a limit back its default.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
import typer

from ..runtime.errors import InvalidArgument
from .cli_calls import Call, server_command
from .cli_flags import new_app
from .cli_output import print_table
from .client_admin import ACCOUNT_LIMITS
from .client_values import AccountLimits, WorkflowLimits

app = new_app("Show and change limits.")
Workflow = Annotated[str | None, typer.Argument(metavar="WORKFLOW", help="None: of the account.")]
DEFAULT = "default"
AUTO = "auto"


def _shown(call: Call, found: AccountLimits | WorkflowLimits) -> None:
    of_workflow = isinstance(found, WorkflowLimits)
    rows = [
        (name, _told(name, value, of_workflow))
        for name, value in msgspec.structs.asdict(found).items()
    ]
    call.show(found, lambda: print_table(("LIMIT", "VALUE"), rows), (name for name, _ in rows))


def _told(name: str, value: Any, of_workflow: bool) -> str:
    if value is None:
        return DEFAULT
    if of_workflow and name == "running_max" and value == 0:
        return "none of its own"
    return f"{value / 86_400_000:g} days" if name.endswith("retention") else str(value)


@server_command(app)
async def show(call: Call, workflow: Workflow = None) -> None:
    """Show the limits of the account, or of a workflow."""
    limits = call.client.limits
    _shown(call, await (limits.get() if workflow is None else limits.get_workflow(workflow)))


@server_command(app, "set")
async def set_limits(
    call: Call,
    workflow: Workflow = None,
    running_max: Annotated[str | None, typer.Option(help="Running instances at most.")] = None,
    creates_per_second: Annotated[str | None, typer.Option(help="Creates a second.")] = None,
    success_retention: Annotated[
        str | None, typer.Option(help="How long after success, for example '3 days'.")
    ] = None,
    error_retention: Annotated[str | None, typer.Option(help="How long after another end.")] = None,
    weight: Annotated[str | None, typer.Option(help="Of a workflow: its share.")] = None,
    souschefs: Annotated[
        str | None, typer.Option(help="Of a workflow: how many queue it; auto: as its load needs.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Of a workflow: steps at most.")] = None,
    queued_max: Annotated[
        str | None, typer.Option(help="Of a workflow: queued instances at most.")
    ] = None,
) -> None:
    """Change limits of the account, or of a workflow; those not named stay."""
    given = {
        "running_max": running_max,
        "creates_per_second": creates_per_second,
        "success_retention": success_retention,
        "error_retention": error_retention,
        "weight": weight,
        "souschefs": souschefs,
        "steps": steps,
        "queued_max": queued_max,
    }
    changes = {name: _value(name, text) for name, text in given.items() if text is not None}
    limits = call.client.limits
    if workflow is not None:
        _shown(call, await limits.set_workflow(workflow, **changes))
        return
    lost = [name for name in changes if name not in ACCOUNT_LIMITS]
    if lost:
        word = lost[0].replace("_", "-")
        raise InvalidArgument(
            f"--{word} is of a workflow: name it. Right: 'toque limits set orders --{word} 2'."
        )
    _shown(call, await limits.set(**changes))


def _value(name: str, text: str) -> Any:
    if text == DEFAULT:
        return None
    if name.endswith("retention"):
        return text
    if name == "souschefs" and text == AUTO:
        return text
    if not _WHOLE.fullmatch(text):
        also = f", {AUTO!r}" if name == "souschefs" else ""
        raise InvalidArgument(
            f"--{name.replace('_', '-')} {text!r:.80} must be a whole number from 0 on{also}, or "
            f"{DEFAULT!r} for the default again."
        )
    return int(text)


_WHOLE = re.compile(r"[0-9]{1,15}")
