"""Distributions of latencies, from the histograms that a result carries.

A histogram is HdrHistogram's, compressed and in base64. One that is missing, too long or can't be
read gives None: what uses it then does with the percentiles that stand beside it. Needs the extra
`loadtest`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from hdrh.histogram import HdrHistogram

from ..runtime import limits
from ..runtime.errors import InvalidArgument
from .result import Latency, Result

_US_PER_MS = 1000
_POINTS = (("min", 0.0), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
Z = 3.29
"""Two-sided, 99.9 %: of fifty figures that are looked at at once hardly one is out by chance."""


class Distribution:
    """Sorted values, and how many there are of each.

    Args:
        values: ascending, in ms.
        counts: of each, positive.
    """

    def __init__(self, values: Sequence[float], counts: Sequence[int]) -> None:
        self._values = values
        self._ranks = list(accumulate(counts))

    @property
    def total(self) -> int:
        """How many values there are."""
        return self._ranks[-1]

    def quantile(self, q: float) -> float:
        """The value that a share `q` of all does not exceed."""
        return self._at(math.ceil(q * self.total))

    def _at(self, rank: int) -> float:
        return self._values[bisect_left(self._ranks, min(max(rank, 1), self.total))]

    def noise(self, q: float) -> float | None:
        """Half the width of the 99.9 % interval of a quantile; None: too few values lie above it.

        By the ranks that a binomial allows, so whatever the shape of the distribution is.
        """
        above = self.total * (1 - q)
        if min(above, self.total * q) < limits.COMPARE_TAIL_MIN:
            return None
        spread = Z * math.sqrt(above * q)
        rank = q * self.total
        return (self._at(math.ceil(rank + spread)) - self._at(math.floor(rank - spread))) / 2

    def curve(self, points_max: int) -> list[tuple[float, float]]:
        """`(quantile, value)`, evenly over the logarithm of what is left; the last is the maximum.

        The last quantile is that of the middle of the last value's share, since none is left
        beyond the maximum.
        """
        last = 1 - 0.5 / self.total
        found: list[tuple[float, float]] = []
        before = -1.0
        step = max(-math.log10(1 - last), 1e-9) / points_max
        for value, rank in zip(self._values, self._ranks, strict=True):
            q = min(rank / self.total, last)
            place = -math.log10(1 - q)
            if place - before >= step or rank == self.total:
                found.append((q, value))
                before = place
        return [(0.0, self._values[0]), *found]


def distribution_of(latency: Latency) -> Distribution | None:
    """What a latency's histogram tells; None if it has none that can be read, or it is empty."""
    text = latency.hdr
    if not text or len(text) > limits.REPORT_HDR_CHARS_MAX:
        return None
    try:
        found = HdrHistogram.decode(text.encode())
        counts = [(index, count) for index, count in enumerate(found.counts[:]) if count > 0]
        values = [found.get_value_from_index(index) for index, _ in counts]
        highest = [found.get_highest_equivalent_value(value) / _US_PER_MS for value in values]
    except Exception:  # whatever a foreign text makes of a decoder
        return None
    return Distribution(highest, [count for _, count in counts]) if counts else None


def check_histograms(result: Result, name: str) -> None:
    """Refuse a document with a histogram that can't be read, or is of something else.

    Raises:
        InvalidArgument: says which.
    """
    for where, latencies in _all_latencies(result):
        for key, latency in latencies.items():
            if not latency.hdr:
                continue
            found = distribution_of(latency)
            if (0 if found is None else found.total) != latency.count:
                told = "can't be read" if found is None else f"has {found.total:,} values"
                raise InvalidArgument(
                    f"{name} is damaged: the histogram of latency {key!r:.100}{where}, of "
                    f"{latency.count:,} values, {told}. With `hdr` set to an empty text the "
                    "percentiles beside it are shown."
                )


def _all_latencies(result: Result) -> Iterator[tuple[str, dict[str, Latency]]]:
    yield "", result.latencies
    for name, group in result.groups.items():
        yield f" of group {name!r:.100}", group.latencies


def curve_of(latency: Latency, points_max: int) -> list[tuple[float, float]]:
    """A curve of percentiles: from the histogram, else from the percentiles alone."""
    found = distribution_of(latency)
    if found is not None:
        return found.curve(points_max)
    points = [(q, getattr(latency, name)) for name, q in _POINTS]
    if latency.count:
        points.append((1 - 0.5 / latency.count, latency.max))
    known = [(q, value) for q, value in points if value is not None and math.isfinite(value)]
    return sorted(known)
