"""What a report draws, read from a result: plots with their lines, figures beside them. Pure.

Series may be missing, empty, shorter than the time axis or full of gaps; what is not there is left
out and named in `Timelines.missing`. Long ones are put together in buckets, so a report of hours
is as large as one of minutes; each bucket keeps its mean, least and greatest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..runtime import limits
from .report_format import is_known
from .result import Result

Values = Sequence[float | None]
TIME = "t_s"


class Stats(NamedTuple):
    """Figures of a line over the whole time; `samples` of it were measured, `gaps` were not."""

    samples: int
    gaps: int
    least: float | None
    mean: float | None
    most: float | None
    last: float | None


class Line(NamedTuple):
    """A line of a plot; where `mean` is None there is a gap.

    Attributes:
        label: for people.
        times: in seconds, ascending.
        mean, least, most: at those times.
        stats: before buckets were made.
        bucket_s: how many seconds a point stands for; 0: each sample is a point.
        colour, dash: how it looks, from 0 on.
    """

    label: str
    times: Sequence[float]
    mean: Values
    least: Values
    most: Values
    stats: Stats
    bucket_s: float = 0
    colour: int = 0
    dash: int = 0


class Mark(NamedTuple):
    """Something that happened at a time; `until` is when it had been got over, if known."""

    at: float
    until: float | None


class Plot(NamedTuple):
    """A plot over time.

    Attributes:
        key: a name for ids; letters, digits and hyphens.
        title, unit: for people.
        lines: which are drawn.
        more: which are only in the table.
        note: why they are.
        marks: things that happened.
    """

    key: str
    title: str
    unit: str
    lines: list[Line]
    more: list[Line]
    note: str
    marks: list[Mark]

    @property
    def bucket_s(self) -> float:
        """The longest time that a point of it stands for; 0: each sample is a point."""
        return max(line.bucket_s for line in self.lines)


class Curve(NamedTuple):
    """A line of a plot of percentiles: `(quantile, value)`, ascending, one point at least."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: int
    dash: int

    def at(self, q: float) -> float | None:
        """The value at a quantile; None past the last."""
        return next((value for found, value in self.points if found >= q), None)


class Family(NamedTuple):
    """Which series share a plot.

    Attributes:
        names: of series, or prefixes that end in a dot; with labels.
        aside: a series that is not drawn where the others would be flat beneath it.
    """

    key: str
    title: str
    unit: str
    names: Mapping[str, str]
    aside: str = ""


FAMILIES = (
    Family(
        "rates",
        "Creates",
        "per second",
        {
            "offered": "offered",
            "accepted": "accepted",
            "completed": "completed",
            "failed": "failed",
        },
    ),
    Family("create", "Latency of create", "ms", {"create_p50_ms": "p50", "create_p99_ms": "p99"}),
    Family("in-flight", "In flight", "requests", {"in_flight": "in flight"}),
    Family("queued", "Queued", "instances", {"queued": "queued"}),
    Family("queue-age", "Age of the oldest queued", "s", {"queue_age_s": "age"}),
    Family(
        "slots",
        "Slots",
        "slots",
        {"slots_limit": "limit", "slots_leased": "leased", "slots_used": "used"},
        "slots_limit",
    ),
    Family(
        "gatekeeper",
        "Calls of SousChefs to Gatekeepers",
        "per second",
        {"gatekeeper_calls_per_s": "calls"},
    ),
    Family(
        "traffic",
        "Commits and frames",
        "per second",
        {"commits_per_s": "commits", "frames_per_s": "frames"},
    ),
    Family(
        "batches",
        "What travels together",
        "each",
        {"rows_per_commit": "rows in a commit", "calls_per_frame": "calls in a frame"},
    ),
    Family("lag", "Lag of event loops, p99", "ms", {"loop_lag_p99_ms.": ""}),
    Family("cpu", "CPU", "cores", {"cpu_cores.": ""}),
    Family("rss", "Memory", "MiB", {"rss_mib.": ""}),
)


class Timelines(NamedTuple):
    """All plots over time, and the titles of those that there is nothing for."""

    plots: list[Plot]
    missing: list[str]


def timelines(result: Result) -> Timelines:
    """The plots of one result."""
    return timelines_of([("", result)])


def timelines_of(results: Sequence[tuple[str, Result]]) -> Timelines:
    """The plots of some results together, each one's lines after its prefix, from 0 s on.

    Lines of one result differ in colour and dash; of several, in colour by what they show and in
    dash by the result.
    """
    plots: list[Plot] = []
    missing: list[str] = []
    marks = _marks(results)
    for family in (*FAMILIES, *_others(results)):
        lines = []
        colours: dict[str, int] = {}
        for place, (prefix, result) in enumerate(results):
            times = result.series.get(TIME, ())
            for name, label in _members(family, result.series):
                colour = colours.setdefault(name, len(colours))
                found = line(prefix + label, times, result.series[name])
                dash = place if len(results) > 1 else colour
                lines.append(found._replace(colour=colour, dash=dash))
        lines = [each for each in lines if each.stats.samples]
        if lines:
            plots.append(_plot(family, lines, marks))
        else:
            missing.append(family.title)
    return Timelines(plots, missing)


def _plot(family: Family, lines: list[Line], marks: list[Mark]) -> Plot:
    drawn, note = lines, ""
    label = family.names.get(family.aside)
    rest = [each for each in lines if label is None or not each.label.endswith(label)]
    top = max((each.stats.most or 0 for each in rest), default=0)
    if any((each.stats.most or 0) > limits.REPORT_ASIDE_TIMES * top > 0 for each in lines):
        drawn, note = rest, f"The {label} is far above and stands in the table only."
    if len(drawn) > limits.REPORT_LINES_MAX:
        by_size = sorted(drawn, key=lambda each: each.stats.most or 0, reverse=True)
        largest = {id(each) for each in by_size[: limits.REPORT_LINES_MAX]}
        note = f"The {len(largest)} largest; {len(drawn) - len(largest)} more stand in the table."
        drawn = [each for each in drawn if id(each) in largest]
    shown = {id(each) for each in drawn}
    more = [each for each in lines if id(each) not in shown]
    return Plot(family.key, family.title, family.unit, drawn, more, note, marks)


def _members(family: Family, series: Mapping[str, Values]) -> Iterator[tuple[str, str]]:
    """Names of series of a family, with labels."""
    for name, label in family.names.items():
        if name.endswith("."):
            found = sorted(each for each in series if each.startswith(name))
            yield from ((each, each.removeprefix(name)) for each in found)
        elif name in series:
            yield name, label


def _others(results: Sequence[tuple[str, Result]]) -> list[Family]:
    """Families for series that none of the known ones takes: a plot each."""
    known = {
        name
        for _, result in results
        for family in FAMILIES
        for name, _ in _members(family, result.series)
    }
    names = dict.fromkeys(name for _, result in results for name in result.series)
    rest = [n for n in names if n != TIME and n not in known and not n.endswith(".")]
    return [
        Family(f"other-{place}", name, "", {name: name})
        for place, name in enumerate(rest[: limits.REPORT_OTHERS_MAX])
    ]


def _marks(results: Sequence[tuple[str, Result]]) -> list[Mark]:
    return [
        Mark(each.t_s, None if each.recovered_s is None else each.t_s + each.recovered_s)
        for _, result in results
        for each in result.chaos[: limits.REPORT_MARKS_MAX]
    ]


def line(label: str, times: Sequence[float | None], values: Values) -> Line:
    """A line, in buckets if it is long; samples without a time are left out."""
    samples = [
        (at, value if is_known(value) else None)
        for at, value in zip(times, values, strict=False)
        if at is not None and math.isfinite(at)
    ]
    stats = _stats([value for _, value in samples])
    size = -(-len(samples) // limits.REPORT_POINTS_MAX)
    if size <= 1:
        plain = [value for _, value in samples]
        return Line(label, [at for at, _ in samples], plain, plain, plain, stats)
    buckets = [samples[start : start + size] for start in range(0, len(samples), size)]
    found = [_stats([value for _, value in bucket]) for bucket in buckets]
    return Line(
        label,
        [bucket[0][0] for bucket in buckets],
        [each.mean for each in found],
        [each.least for each in found],
        [each.most for each in found],
        stats,
        (samples[-1][0] - samples[0][0]) / (len(samples) - 1) * size,
    )


def _stats(values: Values) -> Stats:
    known = [value for value in values if value is not None]
    gaps = len(values) - len(known)
    if not known:
        return Stats(0, gaps, None, None, None, None)
    mean = math.fsum(known) / len(known)
    return Stats(len(known), gaps, min(known), mean, max(known), known[-1])
