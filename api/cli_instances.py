"""`toque instances`, and `toque create`: making instances, looking at them, acting on them.

What acts on several tells of each, and exits with an error if one is refused.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from ..runtime import limits
from ..runtime.errors import InvalidArgument
from . import cli_exits
from . import cli_output as output
from .changes import Change, StepRef
from .cli_bulk import Selection, bar, change, creates_of_file, statuses_of
from .cli_calls import (
    Call,
    Id,
    Timeout,
    Workflow,
    payload,
    resolved,
    seconds,
    server_command,
    waited,
)
from .cli_exits import print_interrupted
from .cli_flags import new_app
from .cli_live import follow as follow_events
from .client_values import CreateProgress, InstanceLine

app = new_app("Look at instances and act on them.")


@server_command(app)
async def create(
    call: Call,
    workflow: Workflow,
    instance_id: Annotated[str | None, typer.Option("--id", help="None: one is made.")] = None,
    params: Annotated[str | None, typer.Option(help="JSON, '@FILE', or '-' for stdin.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    timeout: Timeout = None,
) -> None:
    """Create an instance; with --wait, exit code 1 if it fails."""
    if timeout is not None and not wait:
        raise InvalidArgument("--timeout says how long --wait waits; give --wait too.")
    value = payload(params, "params")
    whole = seconds(timeout)
    # Not waited for in the same call: its id would not be known when the wait is broken off.
    try:
        instance = await call.client.create_instance(workflow, instance_id, value)
    except asyncio.CancelledError:  # Ctrl-C
        told = f"it may have been made: 'toque instances list {workflow}' shows it."
        print_interrupted(f"no answer has come yet; {told}", {}, as_json=call.as_json)
        raise
    if wait:
        await waited(call, instance, whole)
        status = await instance.status()  # whole, with its params and steps
        call.show(status, lambda: output.print_instance(workflow, status), [instance.id])
        if not status.success:
            raise typer.Exit(cli_exits.FAILED)
    else:
        call.show(instance.last, lambda: print(instance.id), [instance.id])


@server_command(app, "create-many")
async def create_many(
    call: Call,
    workflow: Workflow,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="One JSON object a line: id, params, retention; '-': stdin."
        ),
    ],
    parallel: Annotated[
        int, typer.Option(min=1, max=limits.CLIENT_CONNECTIONS_MAX, help="Requests at a time.")
    ] = limits.CLIENT_PARALLEL_CREATES_MAX,
) -> None:
    """Create an instance for each line of a file; ids in use are left as they are.

    All lines are checked before anything is made.
    """
    made = CreateProgress(0, 0, 0, None)
    with creates_of_file(file) as creates, bar("create", None) as tell:

        def note(told: CreateProgress) -> None:
            nonlocal made
            made = told
            tell(told.done)

        try:
            found = await call.client.create_instances(
                workflow, iter(creates), progress=note, parallel=parallel, raise_on_error=False
            )
        except BaseException:  # Ctrl-C too, and a file that was changed meanwhile
            output.print_partly_created(made)
            raise
    lines = [creates.numbers[one.index] for one in found]
    value = [
        {"index": one.index, "line": line, "id": one.id, "outcome": one.outcome, "error": why}
        for one, line in zip(found, lines, strict=True)
        for why in [None if one.error is None else str(one.error)]
    ]
    ids = (one.id for one in found if one.outcome == "created")
    call.show(value, lambda: output.print_created(found), ids)
    if not call.as_json:
        output.print_not_created(found, lines)
    bad = [one.error.number for one in found if one.error is not None]
    if bad:
        some_done = len(bad) < len(found)
        raise typer.Exit(cli_exits.exit_code_of_many(bad, some_done=some_done))


@server_command(app, "list")
async def list_instances(
    call: Call,
    workflow: Workflow,
    status: Annotated[
        list[str] | None, typer.Option(help="Only this; more with commas, or again.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Only those whose id begins so.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="Lines at most; 0: all.")] = 50,
    oldest_first: Annotated[bool, typer.Option("--oldest-first")] = False,
) -> None:
    """List instances, newest first."""
    found: list[InstanceLine] = []
    lines = call.client.list_instances(
        workflow,
        status=statuses_of(status),
        prefix=prefix,
        direction="asc" if oldest_first else "desc",
        per_page=min(limit or limits.PER_PAGE_MAX, limits.PER_PAGE_MAX),
    )
    has_more = False
    async for line in lines:
        if limit and len(found) == limit:
            has_more = True
            break
        found.append(line)
    call.show(found, lambda: output.print_lines(found), (each.id for each in found))
    if has_more and not call.as_json:
        sys.stderr.write(f"toque: there are more than {limit}; --limit 0 lists all.\n")


@server_command(app)
async def describe(
    call: Call,
    workflow: Workflow,
    instance_id: Id,
    follow: Annotated[bool, typer.Option("--follow", help="Show steps as they go on.")] = False,
    cursor: Annotated[int, typer.Option(min=0, help="With --follow: only later events.")] = 0,
) -> None:
    """Show an instance with its steps; with --follow, what happens until it has ended."""
    found = await resolved(call.client, workflow, instance_id)
    if follow:
        events = call.client.instance(workflow, found).events(cursor=cursor)
        await follow_events(call, f"{workflow} {found}", events)
        return
    status = await call.client.instance(workflow, found).status()
    call.show(status, lambda: output.print_instance(workflow, status), [found])


@server_command(app)
async def why(call: Call, workflow: Workflow, instance_id: Id) -> None:
    """Say why an instance does not go on."""
    found = await resolved(call.client, workflow, instance_id)
    waiting = await call.client.instance(workflow, found).why()
    call.show(waiting, lambda: output.print_waiting(waiting), [found])


@server_command(app, "wait")
async def wait_for(
    call: Call, workflow: Workflow, instance_id: Id, timeout: Timeout = None
) -> None:
    """Wait for an instance's end; exit code 1 if it is not complete."""
    found = await resolved(call.client, workflow, instance_id)
    status = await waited(call, call.client.instance(workflow, found), seconds(timeout))
    call.show(status, lambda: output.print_instance(workflow, status), [found])
    if not status.success:
        raise typer.Exit(cli_exits.FAILED)


@server_command(app)
async def pause(call: Call, workflow: Workflow, selection: Selection) -> None:
    """Have instances do nothing more; steps in flight end first."""
    await change(call, workflow, selection, Change("pause"), "pause")


@server_command(app)
async def resume(call: Call, workflow: Workflow, selection: Selection) -> None:
    """Have paused instances go on."""
    await change(call, workflow, selection, Change("resume"), "resume")


@server_command(app)
async def terminate(
    call: Call,
    workflow: Workflow,
    selection: Selection,
    rollback: Annotated[bool, typer.Option("--rollback", help="Undo first what was done.")] = False,
) -> None:
    """End instances at once."""
    await change(call, workflow, selection, Change("terminate", rollback), "terminate")


@server_command(app)
async def restart(
    call: Call,
    workflow: Workflow,
    selection: Selection,
    from_step: Annotated[
        str | None, typer.Option(help="Keep what began before the step of this name.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Which use of the step's name.")] = 1,
    step_type: Annotated[
        str, typer.Option(help="do, sleep, waitForEvent, startChild, child.")
    ] = "do",
) -> None:
    """Have instances begin again, with the same id and params."""
    step = None if from_step is None else StepRef(from_step, count, step_type)
    await change(call, workflow, selection, Change("restart", from_step=step), "restart")


@server_command(app)
async def cancel(call: Call, workflow: Workflow, selection: Selection) -> None:
    """Have instances clean up and end."""
    await change(call, workflow, selection, Change("cancel"), "cancel")


@server_command(app)
async def delete(call: Call, workflow: Workflow, selection: Selection) -> None:
    """Remove instances; their ids are free at once."""
    await change(call, workflow, selection, None, "delete")


@server_command(app, "send-event")
async def send_event(
    call: Call,
    workflow: Workflow,
    instance_id: Id,
    event_type: Annotated[str, typer.Argument(metavar="TYPE", help="The event's type.")],
    payload_text: Annotated[
        str | None, typer.Option("--payload", help="JSON, '@FILE', or '-'.")
    ] = None,
) -> None:
    """Send an event to an instance."""
    value = payload(payload_text, "payload")
    found = await resolved(call.client, workflow, instance_id)
    await call.client.instance(workflow, found).send_event(event_type, value)
    facts = {"id": found, "type": event_type}
    call.show(facts, lambda: print(f"sent {event_type} to {found}"), [found])
