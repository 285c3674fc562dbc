"""Two results of load tests, figure by figure. Needs the extra `loadtest`.

A difference counts only where it is larger than the noise of both: of percentiles the interval of
99.9 % that their histogram allows, of rates that of their means over time, and never less than a
floor, for two runs of the same thing differ too. Results that were not got in the same way are
refused with `InvalidArgument`, which tells how they differ; `force` compares them all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..runtime import limits
from ..runtime.errors import InvalidArgument
from .report_hdr import Z, distribution_of
from .result import Latency, Result

Outcome = Literal["better", "worse", "same", "unclear"]

IGNORED_OPTIONS = frozenset({"keep", "seed", "slo"})
"""Options that don't change what is measured."""
_PROCESSORS = frozenset({"aarch64", "amd64", "AMD64", "arm64", "x86_64"})
_CALLS = "gatekeeper_calls_per_s"
_QUANTILES = (
    ("p50", "p50", 0.5),
    ("p90", "p90", 0.9),
    ("p99", "p99", 0.99),
    ("p99.9", "p999", 0.999),
)
"""What it is called, its field in a result, and the share."""


class Row(msgspec.Struct, frozen=True):
    """One figure of both.

    Attributes:
        figure, unit: what it is.
        a, b: of the first and the second; None: not measured.
        ratio: `b / a`; None: there is none.
        noise: a difference up to this is none; in the figure's unit. None: it is not known, since
            too little was measured.
        outcome: of the second against the first.
    """

    figure: str
    unit: str
    a: float
    b: float
    ratio: float | None
    noise: float | None
    outcome: Outcome


class Comparison(msgspec.Struct, frozen=True):
    """What came of comparing.

    Attributes:
        a, b: what the results are called.
        scenario: of the first.
        floor: the least share of a figure that counts as noise.
        differences: how they were not got in the same way; empty unless it was forced.
        rows: the figures that both have.
    """

    a: str
    b: str
    scenario: str
    floor: float
    differences: list[str]
    rows: list[Row]

    def having(self, outcome: Outcome) -> int:
        """How many figures came out so."""
        return sum(row.outcome == outcome for row in self.rows)


def compare(
    a: Result,
    b: Result,
    *,
    names: tuple[str, str] = ("first", "second"),
    floor: float = limits.COMPARE_NOISE_FLOOR,
    force: bool = False,
) -> Comparison:
    """Compare a second result with a first.

    Args:
        a, b: the results.
        names: what to call them.
        floor: the least share of a figure that counts as noise, from 0 to 1.
        force: compare them though they were not got in the same way.

    Raises:
        InvalidArgument: `floor` is none, or the results are not comparable.
    """
    if not 0 <= floor <= 1:
        raise InvalidArgument(f"the noise is a share from 0 to 1, such as 0.05; not {floor!r}.")
    found = differences(a, b)
    if found and not force:
        told = "".join(f"\n  {each}" for each in found)
        raise InvalidArgument(
            f"{names[0]} and {names[1]} are not comparable:{told}\n"
            "Run both in the same way; or compare them all the same with --force."
        )
    return Comparison(names[0], names[1], a.scenario, floor, found, list(_rows(a, b, floor)))


# --- comparable or not ---


def differences(a: Result, b: Result) -> list[str]:
    """What differs in how two results were got, a line each."""
    pairs: list[tuple[str, Any, Any]] = [
        ("scenario", a.scenario, b.scenario),
        ("target", a.target.kind, b.target.kind),
    ]
    for name in sorted({*a.options, *b.options} - IGNORED_OPTIONS):
        pairs.append((f"option {name}", a.options.get(name), b.options.get(name)))
    pairs += [
        ("cores", a.machine.cores, b.machine.cores),
        ("platform", _kind(a.machine.platform), _kind(b.machine.platform)),
    ]
    found = [f"{what}: {_word(x)} and {_word(y)}" for what, x, y in pairs if x != y]
    x, y = a.machine.fsync_ms, b.machine.fsync_ms
    if x and y and max(x, y) > limits.COMPARE_FSYNC_RATIO_MAX * min(x, y):
        found.append(f"fsync: {x:.3g} ms and {y:.3g} ms")
    for which, result in (("first", a), ("second", b)):
        if result.stopped_early:
            found.append(f"the {which} was stopped early: {result.stopped_early}")
    return found


def _kind(platform: str) -> str:
    """The system and the processor of a platform's name, without versions."""
    words = platform.split("-")
    return "-".join([words[0], *(word for word in words[1:] if word in _PROCESSORS)])


def _word(value: Any) -> str:
    return "not set" if value is None else msgspec.json.encode(value).decode()


# --- figures ---


def _rows(a: Result, b: Result, floor: float) -> Iterator[Row]:
    for name in ("completed", "accepted"):
        x, y = _rate(a, name), _rate(b, name)
        if x is not None and y is not None:
            noise = math.hypot(_rate_noise(a, name), _rate_noise(b, name))
            yield _row(f"{name} a second", "/s", x, y, noise, floor, higher_is_better=True)
    if a.held_rate is not None and b.held_rate is not None:
        rates = a.held_rate, b.held_rate
        yield _row("last rate that held", "/s", *rates, 0, floor, higher_is_better=True)
    yield from _errors(a, b)
    yield from _of_latencies("", a.latencies, b.latencies, floor)
    for group in a.groups:
        if group in b.groups:
            both = a.groups[group].latencies, b.groups[group].latencies
            yield from _of_latencies(f"{group}: ", *both, floor)
    yield from _costs(a, b, floor)
    yield from _of_control_plane(a, b, floor)


def _row(
    figure: str,
    unit: str,
    a: float,
    b: float,
    noise: float | None,
    floor: float,
    *,
    higher_is_better: bool = False,
) -> Row:
    outcome: Outcome = "unclear"
    if noise is not None:
        noise = max(noise, floor * abs(a))
        outcome = "same"
        if abs(b - a) > noise:
            outcome = "better" if (b > a) == higher_is_better else "worse"
    return Row(figure, unit, a, b, b / a if a else None, noise, outcome)


def _rate(result: Result, name: str) -> float | None:
    return getattr(result.counts, name) / result.wall_s if result.wall_s else None


def _rate_noise(result: Result, name: str) -> float:
    """Half the interval of a rate: of counting, and of its ups and downs over time."""
    counting = Z * math.sqrt(getattr(result.counts, name)) / result.wall_s
    return max(counting, _spread(result.series.get(name, ())))


def _spread(series: Sequence[float | None]) -> float:
    """Half the interval of a series' mean, by the means of its blocks; 0 if it is too short."""
    known = [value for value in series if value is not None]
    size = len(known) // limits.COMPARE_BLOCKS
    if size < 1:
        return 0
    starts = range(0, size * limits.COMPARE_BLOCKS, size)
    means = [math.fsum(known[start : start + size]) / size for start in starts]
    mean = math.fsum(means) / len(means)
    variance = math.fsum((each - mean) ** 2 for each in means) / (len(means) - 1)
    return Z * math.sqrt(variance / len(means))


def _errors(a: Result, b: Result) -> Iterator[Row]:
    (x, x_noise), (y, y_noise) = _error_share(a), _error_share(b)
    if x is not None and y is not None:
        yield _row("errors", "%", x * 100, y * 100, math.hypot(x_noise, y_noise) * 100, 0)


def _error_share(result: Result) -> tuple[float | None, float]:
    """The share that failed, and half its 99.9 % interval; of none, what three of them would be."""
    total = result.counts.offered
    if not total:
        return None, 0
    share = min(result.counts.failed / total, 1)
    return share, max(Z * math.sqrt(share * (1 - share) / total), 3 / total)


def _of_latencies(
    prefix: str, a: Mapping[str, Latency], b: Mapping[str, Latency], floor: float
) -> Iterator[Row]:
    for name in a:
        if name not in b or not (a[name].count and b[name].count):
            continue
        found = distribution_of(a[name]), distribution_of(b[name])
        for label, field, q in _QUANTILES:
            x, y = getattr(a[name], field), getattr(b[name], field)
            if x is None or y is None:
                continue
            noises = [None if each is None else each.noise(q) for each in found]
            known = [each for each in noises if each is not None]
            noise = math.hypot(*known) if len(known) == len(found) else None
            yield _row(f"{prefix}{name} {label}", "ms", x, y, noise, floor)


def _costs(a: Result, b: Result, floor: float) -> Iterator[Row]:
    """What it cost: CPU and memory of processes."""
    done = a.counts.completed, b.counts.completed
    for name in a.processes:
        first, second = a.processes[name], b.processes.get(name, {})
        if all(done) and "cpu_s" in first and "cpu_s" in second:
            x, y = (1000 * one["cpu_s"] / n for one, n in zip((first, second), done, strict=True))
            yield _row(f"CPU of {name} per completed", "ms", x, y, 0, floor)
        if "rss_mib_max" in first and "rss_mib_max" in second:
            x, y = first["rss_mib_max"], second["rss_mib_max"]
            yield _row(f"memory of {name}", "MiB", x, y, 0, floor)


def _of_control_plane(a: Result, b: Result, floor: float) -> Iterator[Row]:
    """What the control plane's own calls came to, and how fair it was."""
    x, y = _mean(a, _CALLS), _mean(b, _CALLS)
    if x is not None and y is not None:
        noise = math.hypot(*(_spread(each.series[_CALLS]) for each in (a, b)))
        yield _row("calls to Gatekeepers", "/s", x, y, noise, floor)
    first, second = ((each.fairness or {}).get("share_error") for each in (a, b))
    if first is not None and second is not None:
        noise = limits.COMPARE_SHARE_ERROR_MIN
        yield _row("unfairness of slots", "", first, second, noise, floor)


def _mean(result: Result, series: str) -> float | None:
    known = [value for value in result.series.get(series, ()) if value is not None]
    return math.fsum(known) / len(known) if known else None
