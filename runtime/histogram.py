"""A histogram of whole numbers in a plain list, with powers of two as bounds. Pure.

Constant in memory and a fraction of a microsecond to add to, so anything may be counted in one.
Two of the same unit are merged by adding their lists. Read when somebody asks for figures.
"""

from __future__ import annotations

from collections.abc import Iterable

BUCKETS = 40
"""Bucket `b` counts what needs `b` bits: values below `2**b`, from `2**(b-1)` on. The last: all."""


class Histogram:
    """Counts values of at least 0; what unit they have is its owner's to say."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.total = 0

    def add(self, value: int) -> None:
        """Count one value; less than nothing counts as 0 (a clock was set back)."""
        if value < 0:
            value = 0
        bits = value.bit_length()
        self.buckets[bits if bits < BUCKETS else BUCKETS - 1] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many were counted."""
        return sum(self.buckets)

    def figures(self) -> list[int]:
        """The sum of all values, then the buckets: plain data."""
        return [self.total, *self.buckets]


def merged(parts: Iterable[list[int]]) -> list[int]:
    """The figures of several histograms as those of one."""
    found = [0] * (BUCKETS + 1)
    for part in parts:
        for place, value in enumerate(part[: BUCKETS + 1]):
            found[place] += value
    return found
