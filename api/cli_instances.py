"""`toque instances`, and `toque create`: making instances, looking at them, acting on them.

What acts on several tells of each, and exits with an error if one is refused.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ..runtime import limits
from ..runtime.errors import InstanceNotFound, InvalidArgument
from . import cli_exits
from . import cli_output as output
from .changes import BatchChanges, Change, StepRef
from .cli_calls import (
    Call,
    Id,
    Ids,
    Timeout,
    Workflow,
    ids_of,
    payload,
    resolved,
    seconds,
    server_command,
)
from .cli_flags import new_app
from .client_values import InstanceLine

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
    first = min(limits.WAIT_DEFAULT_MS / 1000 if whole is None else whole, _WAIT_MAX_S)
    instance = await call.client.create_instance(
        workflow, instance_id, value, wait=first if wait else None
    )
    status = instance.last
    if wait and (status is None or not status.finished):
        await instance.wait(None if whole is None else max(0.0, whole - first))
    if wait:
        status = await instance.status()  # whole, with its params and steps
    if wait and status is not None:
        told = status
        call.show(status, lambda: output.print_instance(workflow, told), [instance.id])
        if not status.success:
            raise typer.Exit(cli_exits.FAILED)
    else:
        call.show(status, lambda: print(instance.id), [instance.id])


_WAIT_MAX_S = limits.WAIT_MAX_MS / 1000


@server_command(app, "list")
async def list_instances(
    call: Call,
    workflow: Workflow,
    status: Annotated[list[str] | None, typer.Option(help="Only this; repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Lines at most; 0: all.")] = 50,
    oldest_first: Annotated[bool, typer.Option("--oldest-first")] = False,
) -> None:
    """List instances, newest first."""
    found: list[InstanceLine] = []
    lines = call.client.list_instances(
        workflow,
        status=status or (),
        direction="asc" if oldest_first else "desc",
        per_page=min(limit or limits.PER_PAGE_MAX, limits.PER_PAGE_MAX),
    )
    async for line in lines:
        found.append(line)
        if len(found) == limit:
            break
    call.show(found, lambda: output.print_lines(found), (each.id for each in found))


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
        async for event in call.client.instance(workflow, found).events(cursor=cursor):
            output.print_event(event, as_json=call.as_json)
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
    status = await call.client.instance(workflow, found).wait(seconds(timeout))
    call.show(status, lambda: output.print_instance(workflow, status), [found])
    if not status.success:
        raise typer.Exit(cli_exits.FAILED)


@server_command(app)
async def pause(call: Call, workflow: Workflow, ids: Ids) -> None:
    """Have instances do nothing more; steps in flight end first."""
    await _change(call, workflow, ids, Change("pause"))


@server_command(app)
async def resume(call: Call, workflow: Workflow, ids: Ids) -> None:
    """Have paused instances go on."""
    await _change(call, workflow, ids, Change("resume"))


@server_command(app)
async def terminate(
    call: Call,
    workflow: Workflow,
    ids: Ids,
    rollback: Annotated[bool, typer.Option("--rollback", help="Undo first what was done.")] = False,
) -> None:
    """End instances at once."""
    await _change(call, workflow, ids, Change("terminate", rollback))


@server_command(app)
async def restart(
    call: Call,
    workflow: Workflow,
    ids: Ids,
    from_step: Annotated[
        str | None, typer.Option(help="Keep what began before the step of this name.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Which use of the step's name.")] = 1,
    step_type: Annotated[str, typer.Option(help="do, sleep or waitForEvent.")] = "do",
) -> None:
    """Have instances begin again, with the same id and params."""
    step = None if from_step is None else StepRef(from_step, count, step_type)
    await _change(call, workflow, ids, Change("restart", from_step=step))


@server_command(app)
async def cancel(call: Call, workflow: Workflow, ids: Ids) -> None:
    """Have instances clean up and end."""
    await _change(call, workflow, ids, Change("cancel"))


@server_command(app)
async def delete(call: Call, workflow: Workflow, ids: Ids) -> None:
    """Remove instances; their ids are free at once."""
    await _change(call, workflow, ids, None)


async def _change(call: Call, workflow: str, ids: list[str], change: Change | None) -> None:
    """Change (None: delete) instances and tell of each; an exit code if one is refused."""
    found = [await resolved(call.client, workflow, each) for each in ids_of(ids)]
    done = BatchChanges([], [])
    for start in range(0, len(found), limits.CHANGE_BATCH_MAX):
        part = found[start : start + limits.CHANGE_BATCH_MAX]
        if change is None:
            one = await call.client.delete_instances(workflow, part)
        else:
            one = await call.client.change_instances(workflow, part, change)
        done.changed.extend(one.changed)
        done.errors.extend(one.errors)
    call.show(done, lambda: output.print_changes(done), (each for each, _ in done.changed))
    if done.errors:
        missing = all(error.code == InstanceNotFound.number for error in done.errors)
        raise typer.Exit(cli_exits.NOT_FOUND if missing else cli_exits.FAILED)


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
