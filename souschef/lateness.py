"""How late sleepers wake: a histogram with powers of two as bounds. Pure.

Constant in memory; a quantile is exact to a factor of two (its bucket's upper bound is given).
"""

from __future__ import annotations

import msgspec

from ..runtime.histogram import Histogram

_BUCKETS = 32


class LatenessStatistics(msgspec.Struct, frozen=True):
    """How late: how many were measured, and bounds in milliseconds."""

    count: int
    max_ms: int
    p50_ms: int
    p99_ms: int


class Lateness:
    """Counts delays in milliseconds.

    Args:
        all_ms: where those of others are counted too.
    """

    __slots__ = ("_all", "_buckets", "count", "max_ms")

    def __init__(self, all_ms: Histogram | None = None) -> None:
        self._all = all_ms
        self._buckets = [0] * _BUCKETS
        self.count = 0
        self.max_ms = 0

    def add(self, late_ms: int) -> None:
        """Count one delay (at least 0)."""
        self.count += 1
        if self._all is not None:
            self._all.add(late_ms)
        self.max_ms = max(self.max_ms, late_ms)
        self._buckets[min(late_ms.bit_length(), _BUCKETS - 1)] += 1

    def quantile_ms(self, part: float) -> int:
        """A bound that `part` of all delays keep to; 0 if none were counted."""
        needed = part * self.count
        seen = 0
        for bits, found in enumerate(self._buckets):
            seen += found
            if found and seen >= needed:
                return min(self.max_ms, (1 << bits) - 1)
        return self.max_ms

    def statistics(self) -> LatenessStatistics:
        """The figures of now."""
        return LatenessStatistics(
            self.count, self.max_ms, self.quantile_ms(0.5), self.quantile_ms(0.99)
        )
