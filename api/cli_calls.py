"""Commands that call a server: a client, the way to print, and the arguments they share.

A command is an `async` function whose first parameter is the `Call`; `server_command` registers
it with the shared options and runs it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from ..runtime.codec import json_fault
from ..runtime.errors import (
    InvalidArgument,
    InvalidPayload,
    ServerUnreachable,
    ToqueError,
    Unauthorized,
    WorkflowNotFound,
)
from .cli_config import DATA_DEFAULT, Sources
from .cli_exits import NotInTime, print_interrupted
from .cli_flags import Flags, Output, flags_command
from .cli_output import print_json
from .client import Client
from .client_http import connect
from .client_instance import Instance
from .client_values import InstanceStatus
from .requests import parse_duration
from .settings import hidden

Work = TypeVar("Work", bound=Callable[..., Awaitable[None]])
Workflow = Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The instance's id; 'latest': the newest.")]
Timeout = Annotated[str | None, typer.Option(help="How long to wait, for example 30s.")]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """What a command works with.

    Attributes:
        client: of the server and account that the settings name.
        output: how to print.
    """

    client: Client
    output: Output

    @property
    def as_json(self) -> bool:
        """Whether what is found is printed as JSON."""
        return self.output is Output.JSON

    def show(self, value: Any, table: Callable[[], None], ids: Iterable[str] = ()) -> None:
        """Print what was found as it was asked for.

        Args:
            value: what `-o json` prints.
            table: prints it for people.
            ids: what `-o ids` prints, one a line.
        """
        if self.output is Output.JSON:
            print_json(value)
        elif self.output is Output.IDS:
            for each in ids:
                print(each)
        else:
            table()


def server_command(
    app: typer.Typer, name: str | None = None, **more: Any
) -> Callable[[Work], Work]:
    """Register an async function as a command; its first parameter gets the `Call`."""

    def register(work: Work) -> Work:
        def command(flags: Flags, **options: Any) -> None:
            asyncio.run(_called(flags, work, options))

        command.__name__, command.__doc__ = work.__name__, work.__doc__
        flags_command(app, name, own=work, **more)(command)
        return work

    return register


async def _called(flags: Flags, work: Callable[..., Awaitable[None]], options: Any) -> None:
    found = flags.settled()
    output = Output(found.value("output") or Output.TABLE)
    client = connect(
        found.url,
        found.value("token"),
        found.value("account") or "",
        retry_for=found.value("retry_for") or 0,
        timeout=found.value("timeout"),
    )
    async with client:
        try:
            await work(Call(client, output), **options)
        except ServerUnreachable as error:
            raise _not_reached(found, error) from None
        except Unauthorized as error:
            raise _not_known(found, error) from None
        except WorkflowNotFound as error:
            raise await _nearest(client, options.get("workflow"), error) from None


def _not_reached(found: Sources, error: ServerUnreachable) -> ServerUnreachable:
    """That no server is there, by where its url comes from."""
    if not found.url_is_of_dev:
        return ServerUnreachable(f"{error} (the url comes from {found.found['url'].origin})")
    folder = found.dev.parent
    shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    data = "" if shown == DATA_DEFAULT else f" --data {shlex.quote(str(shown))}"
    return ServerUnreachable(
        f"no connection to {found.url}: the 'toque dev' of {shown} does not run any more. Start it "
        f"again with 'toque dev APP.py{data}', or name another server with --url or TOQUE_URL."
    )


def _not_known(found: Sources, error: Unauthorized) -> Unauthorized:
    """That a token is not known, by where it comes from."""
    token, origin = found.found["token"]
    if token is None:
        return Unauthorized(
            f"{found.url} asks for a token, and none is set. Set TOQUE_TOKEN or a profile."
        )
    shown = "" if hidden(token) == "..." else f" {hidden(token)}"
    return Unauthorized(
        f"{found.url} does not know the token{shown} that comes from {origin}: it was revoked, has "
        "expired, is another server's, or is not whole.",
        error.data,
    )


async def _nearest(client: Client, name: object, error: WorkflowNotFound) -> WorkflowNotFound:
    """That there is no such workflow, with the nearest that there is."""
    try:
        there = [each.name for each in await client.list_workflows()]
    except ToqueError:
        return error
    by_case = {each.casefold(): each for each in there}
    near = get_close_matches(str(name).casefold(), by_case, n=1)
    hint = f" Did you mean {by_case[near[0]]!r}?" if near else ""
    more = ", ..." if len(there) > _NAMES_TOLD else ""
    known = f" There is {', '.join(there[:_NAMES_TOLD])}{more}." if there else ""
    told = str(error).rstrip(".")
    return WorkflowNotFound(f"{told}.{hint or known}", error.data)


_NAMES_TOLD = 5


def payload(text: str | None, what: str) -> Any:
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
    raise InvalidPayload(problem)


def seconds(text: str | None) -> float | None:
    """The seconds of a duration such as `30s`."""
    return None if text is None else parse_duration(text, "timeout") / 1000


async def waited(call: Call, instance: Instance, timeout_s: float | None) -> InstanceStatus:
    """The status of an instance when it has ended. If the wait is broken off, it is told of.

    Raises:
        NotInTime: it had not ended in time.
    """
    name, workflow = instance.id, instance.workflow
    hint = f"it goes on: 'toque instances wait {workflow} {name}' waits for it."
    try:
        return await instance.wait(timeout_s)
    except TimeoutError:
        status = "" if instance.last is None else instance.last.status
        told = f"instance {name!r} of {workflow!r} is {status} after {timeout_s:g} s; {hint}"
        raise NotInTime(told, {"id": name, "workflow": workflow, "status": status}) from None
    except asyncio.CancelledError:  # Ctrl-C
        print_interrupted(
            f"instance {name!r} of {workflow!r} is not waited for any more; {hint}",
            {"id": name, "workflow": workflow},
            as_json=call.as_json,
        )
        raise


async def resolved(client: Client, workflow: str, instance_id: str) -> str:
    """The id, or that of the newest instance for `latest`."""
    if instance_id != "latest":
        return instance_id
    async for line in client.list_instances(workflow, per_page=1):
        return line.id
    return instance_id


def ids_of(ids: list[str]) -> list[str]:
    """The ids; `-` stands for those on stdin, one a line.

    Raises:
        InvalidArgument: stdin is no text.
    """
    found: list[str] = []
    for each in ids:
        try:
            found += sys.stdin.read().split() if each == "-" else [each]
        except UnicodeDecodeError:
            raise InvalidArgument("stdin is no text. Right: an id on each line.") from None
    return found
