"""Commands that call a server: a client, the way to print, and the arguments they share.

A command is an `async` function whose first parameter is the `Call`; `server_command` registers
it with the shared options and runs it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from ..runtime.codec import json_fault
from ..runtime.errors import InvalidArgument, InvalidPayload
from .cli_flags import Flags, Output, flags_command
from .cli_output import print_json
from .client import Client
from .client_http import connect
from .requests import parse_duration

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
        await work(Call(client, output), **options)


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
