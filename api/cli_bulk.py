"""Work on many instances: which ones a command means, and a bar that shows how far it is.

Instances are named one by one (`-`: ids on standard input), or matched by status and prefix. What
matches is asked for once at a terminal; elsewhere `--yes` says that it is meant.
"""

from __future__ import annotations

import shutil
import sys
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..runtime import limits
from ..runtime.codec import json_fault
from ..runtime.errors import InvalidArgument, InvalidPayload, ToqueError
from . import cli_exits
from . import cli_output as output
from .changes import BatchChanges, Change
from .cli_calls import Call, ids_of, resolved
from .client import Client
from .client_checks import spec

Step = Callable[[int], None]


@dataclass(frozen=True)
class Selection:
    """Which instances a command acts on."""

    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Ids; 'latest': the newest; '-': from stdin."),
    ] = None
    status: Annotated[
        list[str] | None, typer.Option(help="All of this status; more with commas, or again.")
    ] = None
    prefix: Annotated[str | None, typer.Option(help="All whose id begins so.")] = None
    everything: Annotated[bool, typer.Option("--all", help="All.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False

    @property
    def statuses(self) -> list[str]:
        """The statuses, each by itself."""
        return statuses_of(self.status)

    @property
    def matching(self) -> bool:
        """Whether instances are matched, not named."""
        return bool(self.statuses or self.prefix or self.everything)

    def check(self) -> None:
        """Refuse what is not one of both."""
        if bool(self.ids) == self.matching:
            raise InvalidArgument(
                "name instances by their ids, or match them by --status, --prefix or --all; "
                "one of both. Right: an id after the workflow, or '--status queued'."
            )

    def confirm(self, what: str) -> None:
        """Ask whether all that matches is meant."""
        words = [f"of status {' or '.join(self.statuses)}"] if self.statuses else []
        words += [f"whose id begins with {self.prefix}"] if self.prefix else []
        confirm(f"{what} all instances {' and '.join(words)}".rstrip(), yes=self.yes)


def statuses_of(given: list[str] | None) -> list[str]:
    """The statuses that `--status` was given: again and again, or with commas between."""
    return [each.strip() for text in given or () for each in text.split(",") if each.strip()]


def confirm(what: str, *, yes: bool) -> None:
    """Ask at a terminal; elsewhere only `--yes` is an answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidArgument(f"to {what}, give --yes: nobody is there to be asked.")
    if not typer.confirm(f"{what}?", err=True):
        raise typer.Exit(cli_exits.FAILED)


@contextmanager
def bar(words: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, at a terminal only; call it with how many are done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task(words, total=total)
        yield lambda done: progress.update(task, completed=done)


async def change(
    call: Call, workflow: str, selection: Selection, wanted: Change | None, word: str
) -> None:
    """Change (None: delete) instances and tell of each; an exit code if one is refused."""
    selection.check()
    if selection.matching:
        selection.confirm(word)
        parts, total = _matching(call.client, workflow, selection, wanted), None
    else:
        found = [
            await resolved(call.client, workflow, each) for each in ids_of(selection.ids or [])
        ]
        parts, total = _named(call.client, workflow, found, wanted), len(found)
    done = BatchChanges([], [])
    with bar(word, total) as tell:
        async for part in parts:
            done.changed.extend(part.changed)
            done.errors.extend(part.errors)
            tell(len(done.changed) + len(done.errors))
    call.show(done, lambda: output.print_changes(done, word), (each for each, _ in done.changed))
    if not call.as_json:
        output.print_refused(done.errors)
        if not done.changed and not done.errors:
            nothing = "nothing matches" if selection.matching else "no ids on stdin"
            sys.stderr.write(f"toque: {nothing}; nothing was changed.\n")
    if done.errors:
        refused = (error.code for error in done.errors)
        raise typer.Exit(cli_exits.exit_code_of_many(refused, some_done=bool(done.changed)))


async def _named(
    client: Client, workflow: str, ids: list[str], wanted: Change | None
) -> AsyncIterator[BatchChanges]:
    for start in range(0, len(ids), limits.CHANGE_BATCH_MAX):
        part = ids[start : start + limits.CHANGE_BATCH_MAX]
        if wanted is None:
            yield await client.delete_instances(workflow, part)
        else:
            yield await client.change_instances(workflow, part, wanted)


async def _matching(
    client: Client, workflow: str, selection: Selection, wanted: Change | None
) -> AsyncIterator[BatchChanges]:
    status, prefix = selection.statuses or None, selection.prefix or ""
    if wanted is not None:
        async for done in client.change_matching(workflow, wanted, status=status, prefix=prefix):
            yield done
        return
    async for done in client.delete_matching(workflow, status=status, prefix=prefix):
        yield done


class Creates:
    """The creates of a file (`-`: stdin), one JSON object a line; blank lines are passed over.

    What can't be read twice (stdin, a pipe) is copied to a temporary file first, so that all lines
    can be checked before anything is sent, however many they are.

    Args:
        source: of the lines, at its start.
        name: the file's, for people.

    Attributes:
        numbers: the line of each create that was read, from 1.
    """

    def __init__(self, source: IO[bytes], name: str) -> None:
        self._source = source
        self._name = "stdin" if name == "-" else name
        self.numbers = array("Q")

    def check(self) -> None:
        """Read all lines.

        Raises:
            InvalidPayload, InvalidArgument, InvalidId: a line is not as it must be; tells which.
        """
        for index, value in enumerate(self):
            try:
                spec(value, index)
            except ToqueError as error:
                told = str(error).removeprefix(f"instance {index}").removeprefix(": ")
                told = told if told.startswith(" ") else f": {told}"
                where = f"line {self.numbers[-1]} of {self._name}"
                raise type(error)(f"{where}{told}", error.data) from None

    def __iter__(self) -> Iterator[Any]:
        """The values, from the first line on."""
        self._source.seek(0)
        self.numbers = array("Q")
        for number, line in enumerate(self._source, 1):
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                told = json_fault(line, error)
                raise InvalidPayload(
                    f"line {number} of {self._name} is not JSON: {told}; one object a line, for "
                    'example {"id": "order-1", "params": {"n": 1}}'
                ) from None
            self.numbers.append(number)
            yield value


@contextmanager
def creates_of_file(file: str) -> Iterator[Creates]:
    """The creates of a file, checked; `-` is stdin."""
    with ExitStack() as stack:
        try:
            source: IO[bytes] = (
                sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            )
            if file == "-" or not source.seekable():
                copy = stack.enter_context(SpooledTemporaryFile(limits.BATCH_BODY_BYTES_MAX))
                shutil.copyfileobj(source, copy)
                source = copy
        except OSError as error:
            raise InvalidArgument(f"{file}: {error.strerror}.") from None
        found = Creates(source, file)
        found.check()
        yield found
