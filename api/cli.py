"""The command line: `toque dev`, and commands that call a server.

Exit codes: 0 done, 1 error, 2 wrong usage, 4 not found, 130 interrupted. With `--json` the answer
is one JSON document on stdout, and an error one on stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ..runtime import limits
from ..runtime.codec import json_fault
from ..runtime.errors import InstanceNotFound, InvalidArgument, InvalidPayload, ToqueError
from . import cli_output as output
from .changes import BatchChanges, Change, StepRef
from .cli_config import DATA_DEFAULT, target
from .client import Client, InstanceLine
from .client_http import connect
from .requests import parse_duration

app = typer.Typer(
    name="toque",
    help="Durable workflows and their control plane.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
_data = ContextVar("data directory", default=DATA_DEFAULT)
instances = typer.Typer(help="Look at instances and act on them.", no_args_is_help=True)
workflows = typer.Typer(help="Look at workflows.", no_args_is_help=True)


@app.callback()
def _main(
    context: typer.Context,
    data: Annotated[
        Path, typer.Option(envvar="TOQUE_DATA", help="Data directory of the 'toque dev' to call.")
    ] = DATA_DEFAULT,
    shown: Annotated[
        bool, typer.Option("--version", is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if shown:
        print(f"toque {version('toque')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(output.EXIT_USAGE)
    _data.set(data)


app.add_typer(instances, name="instances")
app.add_typer(workflows, name="workflows")

Url = Annotated[str | None, typer.Option(envvar="TOQUE_URL", help="Server.")]
Token = Annotated[str | None, typer.Option(envvar="TOQUE_TOKEN", help="Bearer token.")]
Account = Annotated[str | None, typer.Option(envvar="TOQUE_ACCOUNT", help="Account.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Workflow = Annotated[str, typer.Argument(help="The workflow's name.")]
Id = Annotated[str, typer.Argument(help="The instance's id; 'latest': the newest.")]
Ids = Annotated[list[str], typer.Argument(help="Ids; 'latest': the newest; '-': from stdin.")]
Timeout = Annotated[str | None, typer.Option(help="How long to wait, for example 30s.")]


def _run(
    work: Callable[[Client], Awaitable[None]],
    url: str | None,
    token: str | None,
    account: str | None,
    as_json: bool,
) -> None:
    """Run `work` with a client; errors become one sentence and an exit code."""

    async def inner() -> None:
        found = target(url, token, account, _data.get())
        retry_for = limits.CLI_RETRY_FOR_MS / 1000
        async with connect(found.url, found.token, found.account, retry_for=retry_for) as client:
            await work(client)

    try:
        asyncio.run(inner())
    except KeyboardInterrupt:
        raise typer.Exit(output.EXIT_INTERRUPTED) from None
    except (ToqueError, TimeoutError) as error:
        raise typer.Exit(output.print_error(error, as_json=as_json)) from None


def _payload(text: str | None, what: str) -> Any:
    """A JSON argument; `-` is stdin, `@FILE` a file."""
    if text is None:
        return None
    try:
        raw = os.fsencode(text)
        if text == "-":
            raw = sys.stdin.buffer.read()
        elif text.startswith("@"):
            raw = Path(text[1:]).read_bytes()
        return msgspec.json.decode(raw)
    except OSError as error:
        problem = f"{what}: {error.strerror}: {text[1:]}"
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        told = json_fault(raw, error)
        problem = f"{what} is not JSON: {told}; for example '{{\"order\": 42}}'"
    raise typer.Exit(output.print_error(InvalidPayload(problem), as_json=False))


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_duration(text, "timeout") / 1000


async def _resolved(client: Client, workflow: str, instance_id: str) -> str:
    """The id, or that of the newest instance for `latest`."""
    if instance_id != "latest":
        return instance_id
    async for line in client.list_instances(workflow, per_page=1):
        return line.id
    return instance_id


@app.command()
def dev(
    path: Annotated[Path, typer.Argument(metavar="APP.py", help="File with workflows.")],
    embedded: Annotated[bool, typer.Option(help="One process, without Ray.")] = False,
    data: Annotated[Path, typer.Option(help="Data directory.")] = DATA_DEFAULT,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8787,
    limit: Annotated[int | None, typer.Option(min=1, help="Running instances at most.")] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=limits.SHARDS_MAX, help="Data shards.")
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="Payload codec, 'module:attribute'; again for older ones, to read."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve the workflows of a file on this machine."""
    # Not imported at the top: they bring the engine and Ray, which no other command needs.
    if embedded:
        start, runs_on = import_module(".wiring", __package__).start_embedded, "one process"
    else:
        start, runs_on = import_module(".wiring_ray", __package__).start_ray, "Ray"
    dev_module = import_module(".cli_dev", __package__)
    options = dev_module.DevOptions(
        start, runs_on, path, data, port, limit, shards, as_json, tuple(codec or ())
    )
    raise typer.Exit(dev_module.run_dev(options))


@app.command()
def create(
    workflow: Workflow,
    instance_id: Annotated[str | None, typer.Option("--id", help="None: one is made.")] = None,
    params: Annotated[str | None, typer.Option(help="JSON, '@FILE', or '-' for stdin.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    timeout: Timeout = None,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Create an instance; with --wait, exit code 1 if it does not complete."""
    if timeout is not None and not wait:
        refused = InvalidArgument("--timeout says how long --wait waits; give --wait too.")
        raise typer.Exit(output.print_error(refused, as_json=as_json))
    payload = _payload(params, "params")

    async def work(client: Client) -> None:
        seconds = _seconds(timeout)
        first = limits.WAIT_DEFAULT_MS / 1000 if seconds is None else seconds
        most = limits.WAIT_MAX_MS / 1000
        instance = await client.create_instance(
            workflow, instance_id, payload, wait=min(first, most) if wait else None
        )
        status = instance.last
        if wait and (status is None or not status.finished):
            left = None if seconds is None else max(0.0, seconds - min(first, most))
            status = await instance.wait(left)
        if wait:
            status = await instance.status()  # whole, with its params and steps
        if as_json:
            output.print_json(status)
        elif wait and status is not None:
            output.print_instance(workflow, status)
        else:
            print(instance.id)
        if wait and status is not None and not status.success:
            raise typer.Exit(output.EXIT_ERROR)

    _run(work, url, token, account, as_json)


@instances.command("list")
def list_instances(
    workflow: Workflow,
    status: Annotated[list[str] | None, typer.Option(help="Only this; repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Lines at most; 0: all.")] = 50,
    oldest_first: Annotated[bool, typer.Option("--oldest-first")] = False,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """List instances, newest first."""

    async def work(client: Client) -> None:
        found: list[InstanceLine] = []
        lines = client.list_instances(
            workflow,
            status=status or (),
            direction="asc" if oldest_first else "desc",
            per_page=min(limit or limits.PER_PAGE_MAX, limits.PER_PAGE_MAX),
        )
        async for line in lines:
            found.append(line)
            if len(found) == limit:
                break
        output.print_json(found) if as_json else output.print_lines(found)

    _run(work, url, token, account, as_json)


@instances.command()
def describe(
    workflow: Workflow,
    instance_id: Id,
    follow: Annotated[bool, typer.Option("--follow", help="Show steps as they go on.")] = False,
    cursor: Annotated[int, typer.Option(min=0, help="With --follow: only later events.")] = 0,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Show an instance with its steps; with --follow, what happens until it has ended."""

    async def work(client: Client) -> None:
        found = await _resolved(client, workflow, instance_id)
        if follow:
            async for event in client.instance(workflow, found).events(cursor=cursor):
                output.print_event(event, as_json=as_json)
            return
        status = await client.instance(workflow, found).status()
        output.print_json(status) if as_json else output.print_instance(workflow, status)

    _run(work, url, token, account, as_json)


@instances.command()
def why(
    workflow: Workflow,
    instance_id: Id,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Say why an instance does not go on."""

    async def work(client: Client) -> None:
        found = await _resolved(client, workflow, instance_id)
        waiting = await client.instance(workflow, found).why()
        output.print_json(waiting) if as_json else output.print_waiting(waiting)

    _run(work, url, token, account, as_json)


@instances.command("wait")
def wait_for(
    workflow: Workflow,
    instance_id: Id,
    timeout: Timeout = None,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Wait for an instance's end; exit code 1 if it is not complete."""

    async def work(client: Client) -> None:
        found = await _resolved(client, workflow, instance_id)
        status = await client.instance(workflow, found).wait(_seconds(timeout))
        output.print_json(status) if as_json else output.print_instance(workflow, status)
        if not status.success:
            raise typer.Exit(output.EXIT_ERROR)

    _run(work, url, token, account, as_json)


@instances.command()
def pause(
    workflow: Workflow,
    ids: Ids,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Have instances do nothing more; steps in flight end first."""
    _run(_changing(workflow, ids, Change("pause"), as_json), url, token, account, as_json)


@instances.command()
def resume(
    workflow: Workflow,
    ids: Ids,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Have paused instances go on."""
    _run(_changing(workflow, ids, Change("resume"), as_json), url, token, account, as_json)


@instances.command()
def terminate(
    workflow: Workflow,
    ids: Ids,
    rollback: Annotated[bool, typer.Option("--rollback", help="Undo first what was done.")] = False,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """End instances at once."""
    change = Change("terminate", rollback)
    _run(_changing(workflow, ids, change, as_json), url, token, account, as_json)


@instances.command()
def restart(
    workflow: Workflow,
    ids: Ids,
    from_step: Annotated[
        str | None, typer.Option(help="Keep what began before the step of this name.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Which use of the step's name.")] = 1,
    step_type: Annotated[str, typer.Option(help="do, sleep or waitForEvent.")] = "do",
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Have instances begin again, with the same id and params."""
    step = None if from_step is None else StepRef(from_step, count, step_type)
    change = Change("restart", from_step=step)
    _run(_changing(workflow, ids, change, as_json), url, token, account, as_json)


@instances.command()
def cancel(
    workflow: Workflow,
    ids: Ids,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Have instances clean up and end."""
    _run(_changing(workflow, ids, Change("cancel"), as_json), url, token, account, as_json)


@instances.command()
def delete(
    workflow: Workflow,
    ids: Ids,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Remove instances; their ids are free at once."""
    _run(_changing(workflow, ids, None, as_json), url, token, account, as_json)


def _changing(
    workflow: str, ids: list[str], change: Change | None, as_json: bool
) -> Callable[[Client], Awaitable[None]]:
    """What changes (None: deletes) instances and tells of each; exit code 1 if one is refused."""

    async def work(client: Client) -> None:
        found = [await _resolved(client, workflow, each) for each in _ids_of(ids)]
        done = BatchChanges([], [])
        for start in range(0, len(found), limits.CHANGE_BATCH_MAX):
            part = found[start : start + limits.CHANGE_BATCH_MAX]
            if change is None:
                one = await client.delete_instances(workflow, part)
            else:
                one = await client.change_instances(workflow, part, change)
            done.changed.extend(one.changed)
            done.errors.extend(one.errors)
        output.print_json(done) if as_json else output.print_changes(done)
        if done.errors:
            missing = all(error.code == InstanceNotFound.number for error in done.errors)
            raise typer.Exit(output.EXIT_NOT_FOUND if missing else output.EXIT_ERROR)

    return work


def _ids_of(ids: list[str]) -> list[str]:
    """The ids; `-` stands for those on stdin, one a line."""
    found: list[str] = []
    for each in ids:
        found += sys.stdin.read().split() if each == "-" else [each]
    return found


@instances.command("send-event")
def send_event(
    workflow: Workflow,
    instance_id: Id,
    event_type: Annotated[str, typer.Argument(help="The event's type.")],
    payload: Annotated[str | None, typer.Option(help="JSON, '@FILE', or '-'.")] = None,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Send an event to an instance."""
    value = _payload(payload, "payload")

    async def work(client: Client) -> None:
        found = await _resolved(client, workflow, instance_id)
        await client.instance(workflow, found).send_event(event_type, value)
        _done(as_json, f"sent {event_type} to {found}", {"id": found, "type": event_type})

    _run(work, url, token, account, as_json)


@workflows.command("list")
def list_workflows(
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """List workflows."""

    async def work(client: Client) -> None:
        found = await client.list_workflows()
        output.print_json(found) if as_json else output.print_workflows(found)

    _run(work, url, token, account, as_json)


@workflows.command("describe")
def describe_workflow(
    workflow: Workflow,
    url: Url = None,
    token: Token = None,
    account: Account = None,
    as_json: Json = False,
) -> None:
    """Show a workflow."""

    async def work(client: Client) -> None:
        found = await client.get_workflow(workflow)
        output.print_json(found) if as_json else output.print_workflows([found])

    _run(work, url, token, account, as_json)


def _done(as_json: bool, sentence: str, facts: dict[str, str]) -> None:
    output.print_json(facts) if as_json else print(sentence)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
