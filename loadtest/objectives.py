"""What a run has to reach: the grammar of objectives, and whether one was met. Pure.

    p99_start_ms=100        a percentile (p50, p90, p99, p999), max or mean of a latency, at most
    quiet.p99_create_ms=250 the same of a group
    error_rate=0.01         failed operations, and instances that failed or had not ended when
                            they should, as a part of the offered operations, at most
    refusal_rate=0.05       refused ones, likewise
    completed_per_s=250     instances that ended well a second, at least
    accepted_per_s=300      operations that were answered well a second, at least
    gatekeeper_calls_per_s=500   calls at the Gatekeeper in the worst second, at most
    share_error=0.1         of fairness, at most
    held_rate=200           of a ramp: the last rate at which the other objectives held, at least

What was not measured is not met: an objective that tests nothing would always be. Nor is one of
`start`, `end` or `wake` while an instance has not got so far: how long it takes is not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..runtime.errors import InvalidArgument
from .result import Counts, Latency, Result, Verdict

HELD_RATE = "held_rate"
EXAMPLE = "--slo p99_start_ms=100"
_LATENCY = re.compile(r"(?:(?P<group>[a-z][a-z0-9-]*)\.)?(?P<stat>p50|p90|p99|p999|max|mean)_"
                      r"(?P<name>[a-z][a-z_]*?)_ms\Z")  # fmt: skip
_AT_LEAST = frozenset({"completed_per_s", "accepted_per_s", "held_rate"})


class Objective(NamedTuple):
    """One objective.

    Attributes:
        name: what is measured.
        bound: in the unit of what is measured.
        at_least: whether less misses it; else more does.
    """

    name: str
    bound: float
    at_least: bool

    def __str__(self) -> str:
        return f"{self.name}{'>=' if self.at_least else '<='}{self.bound:g}"

    def verdict(self, measured: float | None) -> Verdict:
        """Whether it was met."""
        met = measured is not None and (
            measured >= self.bound if self.at_least else measured <= self.bound
        )
        return Verdict(str(self), None if measured is None else round(measured, 4), met)


def parse_objective(text: str) -> Objective:
    """An objective from `name=bound`, or `InvalidArgument`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidArgument(f"objective {text!r:.80} has no bound; right: {EXAMPLE}.")
    if name not in _PLAIN and not _LATENCY.match(name):
        raise InvalidArgument(
            f"objective {name!r:.80} is not known. They are {', '.join(_PLAIN)}, and of a latency "
            "p50, p90, p99, p999, max or mean: p99_create_ms, quiet.max_start_ms. Right: "
            f"{EXAMPLE}."
        )
    try:
        bound = float(value)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound) or bound < 0:
        raise InvalidArgument(
            f"objective {name} must be a number of at least 0, not {value!r:.40}; right: {EXAMPLE}."
        )
    return Objective(name, bound, name in _AT_LEAST)


def verdicts(objectives: list[Objective], result: Result) -> list[Verdict]:
    """Each objective beside what was measured.

    A ramp goes on until one is missed: there they are those of the last rate at which all were
    met, or of the first one if none held, and what is asked of the rate itself.
    """
    if not result.ramp:
        return [judged(each, result) for each in objectives]
    of_rate = [each for each in objectives if each.name == HELD_RATE]
    held = [step for step in result.ramp if step.held]
    told = (held[-1] if held else result.ramp[0]).slos
    return [*told, *(each.verdict(result.held_rate) for each in of_rate)]


def judged(objective: Objective, result: Result) -> Verdict:
    """An objective beside what was measured."""
    found = objective.verdict(measured(objective.name, result))
    if not found.met or not _open_of(objective.name, result):
        return found
    return Verdict(found.objective, found.measured, False)


def _open_of(name: str, result: Result) -> int:
    """Instances whose time an objective is about, and is not known yet."""
    match = _LATENCY.match(name) if name not in _PLAIN else None
    counts = result.counts
    if match is None:
        return 0
    if match["group"] is not None:
        group = result.groups.get(match["group"])
        counts = Counts() if group is None else group.counts
    return {"start": counts.unstarted, "end": counts.unfinished, "wake": counts.unfinished}.get(
        match["name"], 0
    )


def measured(name: str, result: Result) -> float | None:
    """The figure that an objective is about; None: it was not measured."""
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain(result)
    match = _LATENCY.match(name)
    assert match is not None
    latencies = result.latencies
    if match["group"] is not None:
        group = result.groups.get(match["group"])
        latencies = {} if group is None else group.latencies
    return statistic(latencies, match["name"], match["stat"])


def statistic(latencies: Mapping[str, Latency], name: str, which: str) -> float | None:
    """A percentile, the maximum or the mean of a latency, in milliseconds."""
    found = latencies.get(name)
    if found is None or not found.count:
        return None
    value: float | None = getattr(found, which)
    return value


def part_of(count: int, counts: Counts) -> float | None:
    """A count as a part of what was offered."""
    return count / counts.offered if counts.offered else None


def _wrong(counts: Counts) -> int:
    """Operations that failed, or whose instances did; an operation may have made more of them."""
    return min(counts.offered, counts.failed + counts.errored + counts.unfinished)


def _rate(count: int, result: Result) -> float | None:
    return count / result.wall_s if result.wall_s > 0 else None


_PLAIN: dict[str, Callable[[Result], float | None]] = {
    "error_rate": lambda found: part_of(_wrong(found.counts), found.counts),
    "refusal_rate": lambda found: part_of(found.counts.refused, found.counts),
    "completed_per_s": lambda found: _rate(found.counts.completed, found),
    "accepted_per_s": lambda found: _rate(found.counts.accepted, found),
    "gatekeeper_calls_per_s": lambda found: found.control_plane.get("gatekeeper_calls_per_s_max"),
    HELD_RATE: lambda found: found.held_rate,
    "share_error": lambda found: (found.fairness or {}).get("share_error"),
}
