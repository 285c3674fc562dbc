"""Latencies in histograms: constant in memory, exact to three digits, put together without loss.

The library comes with the extra `loadtest`. Values are milliseconds outside and whole microseconds
inside; what is longer than an hour counts as an hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hdrh.histogram import HdrHistogram

from .result import Latency

_LOWEST_US, _HIGHEST_US, _DIGITS = 1, 3_600_000_000, 3


class Latencies:
    """A histogram of each latency, by name."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, HdrHistogram] = {}

    def add(self, name: str, ms: float) -> None:
        """Count one."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)
        us = int(ms * 1000)
        found.record_value(min(max(us, _LOWEST_US), _HIGHEST_US))

    def merge(self, other: Latencies) -> None:
        """Add another's."""
        for name, theirs in other._found.items():
            mine = self._found.get(name)
            if mine is None:
                mine = self._found[name] = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)
            mine.add(theirs)

    def packed(self) -> dict[str, str]:
        """Each as text, for other processes and for documents."""
        return {name: found.encode().decode() for name, found in self._found.items()}

    @classmethod
    def unpacked(cls, packed: dict[str, str]) -> Latencies:
        """What `packed` gave."""
        made = cls()
        made._found = {name: HdrHistogram.decode(text.encode()) for name, text in packed.items()}
        return made

    def shown(self) -> dict[str, Latency]:
        """Their figures, by name."""
        return {name: _shown(found) for name, found in sorted(self._found.items())}


def _shown(found: HdrHistogram) -> Latency:
    def at(percentile: float) -> float:
        us: float = found.get_value_at_percentile(percentile)
        return round(us / 1000, 3)

    return Latency(
        count=found.get_total_count(),
        min=round(found.get_min_value() / 1000, 3),
        mean=round(found.get_mean_value() / 1000, 3),
        p50=at(50),
        p90=at(90),
        p99=at(99),
        p999=at(99.9),
        max=round(found.get_max_value() / 1000, 3),
        hdr=found.encode().decode(),
    )


def percentile(values: Iterable[float], part: float) -> float:
    """The nearest-rank percentile of a few values, for a part from 0 to 1; there must be one."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
