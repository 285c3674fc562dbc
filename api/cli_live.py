"""`--follow`: an instance's steps as they go on, at a terminal as a list that changes in place.

Elsewhere each event is one line. `LiveSteps` is pure: events in, rows out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from . import cli_output as output
from .cli_calls import Call
from .cli_flags import Output
from .shapes import iso
from .watched import InstanceEvent

_ENDS = {"completed": "complete", "errored": "errored", "timed_out": "timed out"}
_ROOM = 6
"""Lines of a terminal that are not for steps."""


class LiveSteps:
    """The steps of an instance by what has been heard of it."""

    def __init__(self) -> None:
        self.status = "queued"
        self._steps: dict[str, list[str]] = {}

    def take(self, event: InstanceEvent) -> None:
        """Hear of an event."""
        what, how = _cut(event.type)
        if what == "workflow":
            self.status = "running" if how == "started" else how
            return
        name = event.step_name or ""
        row = self._steps.setdefault(name, ["running", "", iso(event.timestamp), "-", ""])
        if what.endswith("attempt"):
            row[1] = str(event.attempt or "")
            row[0] = "running" if how == "started" else row[0]
            if how == "errored" and event.retry_delay_ms is not None:
                row[0] = f"retries after {event.retry_delay_ms} ms"
        elif how == "started":
            row[0] = "running" if what.endswith("step") else "waiting"
        else:
            row[0], row[3] = _ENDS.get(how, how), iso(event.timestamp)
        if event.error is not None:
            row[4] = f"{event.error.name}: {event.error.message}"
        elif event.output is not None:
            row[4] = output.short_text(event.output)

    def rows(self, most: int) -> tuple[int, list[tuple[str, ...]]]:
        """How many earlier steps are left out, and the newest: name, state, attempt, times."""
        shown = list(self._steps.items())[-most:]
        return len(self._steps) - len(shown), [(name, *row) for name, row in shown]


def _cut(kind: str) -> tuple[str, str]:
    """`wait_timed_out` as what it is of, and how that is."""
    if kind.endswith("_timed_out"):
        return kind.removesuffix("_timed_out"), "timed_out"
    what, _, how = kind.rpartition("_")
    return what, how


async def follow(call: Call, title: str, events: AsyncIterator[InstanceEvent]) -> None:
    """Show events until they end."""
    console = Console()
    if call.output is not Output.TABLE or not console.is_terminal:
        async for event in events:
            output.print_event(event, as_json=call.as_json)
        return
    steps = LiveSteps()
    with Live(console=console, auto_refresh=False) as live:
        async for event in events:
            steps.take(event)
            live.update(_shown(title, steps, console.height), refresh=True)


def _shown(title: str, steps: LiveSteps, height: int) -> Group:
    left_out, rows = steps.rows(max(3, height - _ROOM))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("STEP", "STATE", "ATTEMPT", "START", "END", "RESULT"):
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    if left_out:
        table.add_row(f"... {left_out} earlier")
    for name, state, *rest in rows:
        table.add_row(escape(name), output.coloured(state), *(escape(cell) for cell in rest))
    return Group(Text.from_markup(f"{escape(title)}  {output.coloured(steps.status)}"), table)
