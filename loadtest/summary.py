"""The result of a load test, and a comparison of two, as text for a terminal.

Names that came from outside are never taken for markup, and their control characters are left out.
The same on every terminal, without colour where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..runtime import limits
from .compare import Comparison
from .report_format import count, number
from .report_words import (
    COMPARED_COLUMNS,
    COUNTS,
    LATENCY_COLUMNS,
    MARKS,
    Standing,
    by_latency,
    compared_cells,
    in_order,
    latency_cells,
    noise_text,
    title_of,
    verdict_of,
    verdict_of_both,
    when,
)
from .result import Result

_STYLES = {"good": "bold green", "bad": "bold red", "odd": "bold yellow"}
_OUTCOMES = {MARKS["better"]: "green", MARKS["worse"]: "bold red", MARKS["unclear"]: "yellow"}


def print_summary(result: Result, console: Console | None = None) -> None:
    """Print what a load test came to."""
    _print(summary(result), console)


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print the figures of two results side by side."""
    _print(comparison_summary(comparison), console)


def summary(result: Result) -> Group:
    """What a load test came to: verdict, counts, latencies, codes, control plane."""
    return Group(*_summary(result))


def comparison_summary(comparison: Comparison) -> Group:
    """The figures of two results side by side."""
    parts: list[RenderableType] = [
        _line(f"{comparison.scenario}: {comparison.a} (first), {comparison.b} (second)", "bold"),
        *(_line(f"not got in the same way: {each}", "yellow") for each in comparison.differences),
    ]
    if comparison.rows:
        rows = [compared_cells(row) for row in comparison.rows]
        parts.append(_table(COMPARED_COLUMNS, rows, words=(0, 1, 6)))
        parts.append(_line(noise_text(comparison), "dim"))
    parts.append(_verdict(verdict_of_both(comparison)))
    return Group(*parts)


def _summary(result: Result) -> Iterator[RenderableType]:
    yield _line(f"{result.scenario} · {when(result)}", "bold")
    if result.stopped_early:
        yield _line(f"stopped early: {result.stopped_early}", "yellow")
    counts = [(name, getattr(result.counts, name)) for name in COUNTS]
    told = [f"{count(value)} {name}" for name, value in counts if value]
    if result.wall_s:
        told.append(f"{number(result.counts.completed / result.wall_s)} completed a second")
    yield _line(", ".join(told) or "nothing was offered")
    if result.terminated:
        yield _line(f"{count(result.terminated)} left when it was over, terminated", "dim")
    yield from _latencies(result)
    for word, codes in (("refused", result.refusals), ("failed", result.failures)):
        ordered = sorted(codes.items(), key=lambda item: (-item[1], item[0]))
        for code, times in ordered[: limits.REPORT_LINES_MAX]:
            yield _line(f"{word}: {count(times)} × {code}", "yellow")
    facts = {**result.control_plane, **(result.fairness or {})}
    if facts:
        yield _line(", ".join(f"{name} {number(facts[name])}" for name in facts), "dim")
    yield from _ramp(result)
    if result.slos:
        rows = [
            [each.objective, number(each.measured), "✓ met" if each.met else "✗ missed"]
            for each in result.slos
        ]
        yield _table(("OBJECTIVE", "MEASURED", ""), rows, words=(0, 2))
        yield _verdict(verdict_of(result))


def _latencies(result: Result) -> Iterator[RenderableType]:
    """One table; below a latency its parts, where groups differ in it."""
    groups = by_latency(result.groups)
    rows = []
    for name, latency in in_order(result.latencies).items():
        rows.append([title_of(name), *latency_cells(latency)])
        parts = groups.get(name, {})
        if len(parts) > 1:
            shown = list(parts.items())[: limits.REPORT_LINES_MAX]
            rows += [[f"  {label}", *latency_cells(part)] for label, part in shown]
    if rows:
        yield _table(("LATENCY, MS", *(each.upper() for each in LATENCY_COLUMNS)), rows, (0,))


def _ramp(result: Result) -> Iterator[RenderableType]:
    for step in result.ramp:
        measures = ", ".join(f"{one.objective}: {number(one.measured)}" for one in step.slos)
        held = "✓ held" if step.held else "✗ missed"
        yield _line(f"{number(step.rate)} a second {held} ({measures})")
    if result.ramp:
        rate = result.held_rate
        told = "no rate" if rate is None else f"{number(rate)} a second"
        yield _line(f"the last rate that held: {told}", "bold")


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int]
) -> RenderableType:
    """A table; the columns of `words` begin at the left, figures end at the right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, title in enumerate(columns):
        side: Literal["left", "right"] = "left" if place in words else "right"
        table.add_column(Text(title), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(_line(cell, _OUTCOMES.get(cell, "")) for cell in row))
    return table


def _verdict(verdict: Standing) -> Text:
    return _line(verdict.text, _STYLES[verdict.kind])


def _line(text: str, style: str = "") -> Text:
    return Text(_plain(text), style=style)


def _plain(text: str) -> str:
    return "".join(each for each in text if each.isprintable())


def _print(what: RenderableType, console: Console | None) -> None:
    """At a terminal within its width; elsewhere each row is one line, however long."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=limits.ROW_CHARS_MAX)
    console.print(what, highlight=False)
