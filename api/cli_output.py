"""What the command line prints: tables for people, JSON for programs.

Text that came from outside is never taken for markup. Errors: `cli_exits`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..runtime import limits
from .changes import BatchChanges, ItemError
from .client_values import (
    CreateProgress,
    CreateResult,
    InstanceError,
    InstanceLine,
    InstanceStatus,
    StepStatus,
    WorkflowSummary,
)
from .listing import FINAL_STATUSES
from .shapes import iso
from .watched import InstanceEvent, Waiting, waiting_lines

_OUTCOMES = {
    "created": "created",
    "duplicate": "there already",
    "failed": "failed",
    "unknown": "without an answer",
}
_COLOURS = {
    "complete": "green",
    "errored": "red",
    "terminated": "red",
    "running": "cyan",
    "waiting": "yellow",
    "paused": "yellow",
    "waitingForPause": "yellow",
    "rollingBack": "magenta",
}


def print_json(value: Any) -> None:
    """The value as one JSON document."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table of plain texts."""
    _table(columns, ([escape(cell) for cell in row] for row in rows))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    for row in rows:
        table.add_row(*row)
    _print(table)


_WHOLE = {"START", "END", "CREATED", "ENDED", "MODIFIED", "TYPE", "ATTEMPTS", "STATUS"}
"""Columns that are not folded, however narrow a terminal is."""


def _print(table: Table) -> None:
    """At a terminal within its width; elsewhere each row is one line, however long."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=limits.ROW_CHARS_MAX)
    console.print(table)


def coloured(text: str) -> str:
    """A status in its colour, as markup."""
    colour = _COLOURS.get(text)
    return f"[{colour}]{text}[/]" if colour else escape(text)


def print_workflows(found: list[WorkflowSummary]) -> None:
    """Workflows, with the counts that are not zero."""
    _table(
        ("NAME", "CLASS", "SCRIPT", "MODIFIED", "INSTANCES"),
        (
            (
                w.name,
                escape(w.class_name),
                escape(w.script_name),
                w.modified_on,
                " ".join(f"{status}={n}" for status, n in w.instances.items() if n) or "-",
            )
            for w in found
        ),
    )


def print_lines(found: list[InstanceLine]) -> None:
    """Instances, one a line."""
    _table(
        ("ID", "STATUS", "CREATED", "ENDED"),
        ((line.id, coloured(line.status), line.created_on, line.ended_on or "-") for line in found),
    )


def print_changes(done: BatchChanges, word: str) -> None:
    """What a batch changed. `word`: what was asked for."""
    asked = ": it was asked to clean up and end" if word == "cancel" else ""
    for instance_id, status in done.changed:
        ended = asked if status not in FINAL_STATUSES else ""
        print(f"{instance_id} is {status}{ended}")


def print_refused(errors: list[ItemError]) -> None:
    """On stderr what a batch did not change, and why."""
    for error in errors:
        sys.stderr.write(f"toque: {error.id}: {error.message}\n")


def print_created(found: list[CreateResult]) -> None:
    """How many creates had which outcome."""
    counts = Counter(each.outcome for each in found)
    told = ", ".join(f"{counts[name]} {word}" for name, word in _OUTCOMES.items() if counts[name])
    print(told or "nothing to create: there is no line")


def print_not_created(found: list[CreateResult], lines: Sequence[int]) -> None:
    """On stderr which creates failed and why, by their lines; those of one reason together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for each, line in zip(found, lines, strict=True):
        if each.error is not None:
            named = f"line {line}" + (f" ({each.id})" if each.id else "")
            reasons.setdefault((each.outcome, str(each.error)), []).append(named)
    for (outcome, why), which in reasons.items():
        more = f" and {len(which) - _LINES_TOLD} more" if len(which) > _LINES_TOLD else ""
        word = _OUTCOMES[outcome]
        sys.stderr.write(f"toque: {', '.join(which[:_LINES_TOLD])}{more}: {word}: {why}\n")


_LINES_TOLD = 10


def print_partly_created(told: CreateProgress) -> None:
    """On stderr what was made before the work was broken off, and how to go on."""
    if not told.done:
        return
    sys.stderr.write(
        f"toque: broken off after {told.done} lines: at least {told.created} created, "
        f"{told.duplicates} there already. The same command again makes the rest and leaves "
        "ids in use as they are; lines without an id would be made once more.\n"
    )


def print_instance(workflow: str, status: InstanceStatus) -> None:
    """An instance with its steps."""
    facts = [
        ("workflow", workflow),
        ("id", status.id),
        ("status", coloured(status.status)),
        ("created", status.created_on or "-"),
        ("started", status.start or "-"),
        ("ended", status.end or "-"),
        ("params", _short(status.params)),
        ("output", _short(status.output)),
    ]
    if status.error is not None:
        facts.append(("error", escape(f"{status.error.name}: {status.error.message}")))
        if status.error.at:
            facts.append(("raised", escape("\n".join(status.error.at))))
    if status.rollback is not None:
        why = status.rollback.error
        told = status.rollback.outcome + (f": {why.name}: {why.message}" if why else "")
        facts.append(("rollback", escape(told)))
    if status.code_changed:
        facts.append(("code", "[yellow]changed since this instance began[/]"))
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(f"[bold]{name}[/]", value)
    _print(grid)
    terminal = Console()
    is_narrow = terminal.is_terminal and terminal.width < _WIDTH_OF_TIMES

    def clock(at: str) -> str:
        """A time of a step; at a narrow terminal the day only if it is another."""
        if not is_narrow:
            return at
        same = at[:10] == (status.created_on or "")[:10]
        return at[11:23] if same else at[5:19].replace("T", " ")

    if status.steps:
        _table(
            ("STEP", "TYPE", "STATE", "ATTEMPTS", "START", "END", "RESULT"),
            (_step_row(step, clock) for step in status.steps),
        )


_WIDTH_OF_TIMES = 130
"""A terminal of so many columns has room for whole times."""


def _step_row(step: StepStatus, clock: Callable[[str], str]) -> tuple[str, ...]:
    has_attempts = step.type in ("step", "rollback")
    if has_attempts:
        state = {True: "complete", False: "errored", None: "running"}[step.success]
        if step.success is None and step.retry_at:
            state = f"retries at {clock(step.retry_at)}"
    elif step.type == "termination":
        state = "terminated"
    elif step.error is not None:
        state = "errored"
    else:
        state = "complete" if step.finished or step.success else "waiting"
    failed = step.error
    if failed is None and step.success is None and step.attempts:
        failed = step.attempts[-1].error
    result = _failure(failed) if failed else _short(step.output)
    attempts = str(step.attempts_total) if has_attempts else "-"
    return (
        escape(step.name),
        step.type,
        coloured(state),
        attempts,
        clock(step.start),
        clock(step.end) if step.end else "-",
        result if failed is None else escape(result),
    )


def _failure(error: InstanceError) -> str:
    """An error with the line that raised it."""
    place = f" ({error.at[-1]})" if error.at else ""
    return f"{error.name}: {error.message}{place}"


def _short(value: Any, chars_max: int = 200) -> str:
    if value is None:
        return "-"
    text = msgspec.json.encode(value).decode()
    return escape(
        text if len(text) <= chars_max else text[: chars_max - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )


def print_event(event: InstanceEvent, *, as_json: bool) -> None:
    """An event, as one line at once."""
    if as_json:
        sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    else:
        at = iso(event.timestamp)
        rest = [event.step_name or ""]
        if event.attempt is not None:
            rest.append(f"attempt {event.attempt}")
        if event.event_type is not None:
            rest.append(f"type {event.event_type}")
        if event.error is not None:
            rest.append(f"{event.error.name}: {event.error.message}")
        if event.retry_delay_ms is not None:
            rest.append(f"again after {event.retry_delay_ms} ms")
        if event.output is not None:
            rest.append(short_text(event.output))
        words = "  ".join(part for part in rest if part)
        sys.stdout.write(f"{event.event_id:>6}  {at}  {event.type:<20}  {words}".rstrip() + "\n")
    sys.stdout.flush()


def print_waiting(waiting: Waiting) -> None:
    """Why an instance waits, a line each."""
    sys.stdout.write("\n".join(waiting_lines(waiting)) + "\n")


def short_text(value: Any) -> str:
    """A value as JSON, cut."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else text[:199] + "…"
