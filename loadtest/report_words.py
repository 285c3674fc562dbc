"""What reports say, on paper and at a terminal alike. Pure.

Headings of latencies, verdicts, the cells of a comparison's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from ..runtime import limits
from .compare import Comparison, Row
from .report_format import MISSING, change, count, duration, number
from .result import Group, Latency, Result

Tone = Literal["good", "bad", "odd"]

LATENCIES = {
    "create": "create, from the time it was due",
    "create_service": "create, from when it was sent",
    "start": "created until it ran",
    "end": "created until it ended",
    "wake": "due until it ran again",
    "create_wait": "create and wait for the end",
    "create_batch": "create of many in one request",
    "event": "event, until it was kept",
    "list": "list",
    "status": "status",
    "recovery": "killed until a new instance ended",
}
"""What each latency is; one that is not here is called by its name."""
LATENCY_COLUMNS = ("count", "mean", "p50", "p90", "p99", "p99.9", "max")
COUNTS = ("offered", "accepted", "refused", "failed", "completed", "errored", "retries", "unknown",
          "unfinished", "unstarted")  # fmt: skip
MARKS = {"better": "▲ better", "worse": "▼ worse", "same": "= same", "unclear": "? unclear"}
COMPARED_COLUMNS = ("figure", "unit", "first", "second", "change", "noise", "")


class Standing(NamedTuple):
    """What it comes to."""

    kind: Tone
    text: str


def in_order(latencies: Mapping[str, Latency]) -> dict[str, Latency]:
    """Those that were measured, in the order in which an instance meets them."""
    known = [name for name in LATENCIES if name in latencies]
    rest = [name for name in latencies if name not in LATENCIES]
    return {name: latencies[name] for name in (*known, *rest) if latencies[name].count}


def by_latency(groups: Mapping[str, Group]) -> dict[str, dict[str, Latency]]:
    """What was measured in each group, by latency, then by group."""
    found: dict[str, dict[str, Latency]] = {}
    for label, group in groups.items():
        for name, latency in in_order(group.latencies).items():
            found.setdefault(name, {})[label] = latency
    return found


def title_of(latency: str) -> str:
    """What a latency is."""
    return LATENCIES.get(latency, latency)


def latency_cells(latency: Latency) -> list[str]:
    """The figures of a latency, under LATENCY_COLUMNS."""
    found = (latency.mean, latency.p50, latency.p90, latency.p99, latency.p999, latency.max)
    return [count(latency.count), *map(number, found)]


def when(result: Result) -> str:
    """When it ran, for how long, against what, with which version."""
    target = result.target
    where = f"{target.kind} {target.url}" if target.url else target.kind
    took = duration(result.wall_s)
    return f"{result.started_on} · {took} · {where} · toque {result.toque}"


def verdict_of(result: Result) -> Standing:
    """Whether the objectives were met."""
    missed, of = sum(not slo.met for slo in result.slos), len(result.slos)
    if missed:
        return Standing("bad", f"✗ {missed} of {of} objectives missed")
    if not of:
        return Standing("odd", "No objectives were set")
    if result.stopped_early:
        return Standing("odd", f"✓ {of} of {of} objectives met until it was stopped")
    return Standing("good", f"✓ {of} of {of} objectives met")


def verdict_of_both(comparison: Comparison) -> Standing:
    """Whether the second is worse than the first."""
    if not comparison.rows:
        return Standing("odd", "No figure is in both")
    worse, better = comparison.having("worse"), comparison.having("better")
    same, unclear = comparison.having("same"), comparison.having("unclear")
    text = f"{worse} worse, {better} better, {same} the same within noise, {unclear} unclear"
    return Standing("bad", f"▼ {text}") if worse else Standing("good", f"✓ {text}")


def compared_cells(row: Row) -> list[str]:
    """A figure of both, under COMPARED_COLUMNS."""
    noise = MISSING if row.noise is None else f"±{number(row.noise)}"
    figures = number(row.a), number(row.b), change(row.ratio), noise
    return [row.figure, row.unit, *figures, MARKS[row.outcome]]


def noise_text(comparison: Comparison) -> str:
    """What counts as noise."""
    return (
        "A difference within the noise is none. Noise is the 99.9 % interval of both, and at least "
        f"{number(comparison.floor * 100)} % of the first figure. Unclear: too few values lie "
        "beyond a percentile to say."
    )


def shown(value: Any) -> str:
    """A value of any kind, short."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    most = limits.REPORT_WORD_CHARS_MAX
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
