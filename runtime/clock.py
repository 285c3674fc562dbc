"""Time comes in through constructors: `now_ms` for durable instants, the loop for waits.

`SystemClock` is the only reader of the wall clock. Simulation and tests use a clock that
follows a virtual-time loop (`toque.runtime.simloop`).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z."""


def stopwatch_s() -> float:
    """Seconds on a stopwatch, the same one in every process of this machine.

    For what is measured, in shells that have no loop whose time is fine enough. Pure cores take
    what was measured.
    """
    return time.perf_counter()


class SystemClock:
    """The operating system's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that a test sets by hand.

    Args:
        start_ms: the first reading.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.current_ms = start_ms

    def now_ms(self) -> int:
        return self.current_ms

    def advance(self, by_ms: int) -> None:
        """Move forward by `by_ms` (which may not be negative)."""
        if by_ms < 0:
            raise ValueError("time does not go back")
        self.current_ms += by_ms
