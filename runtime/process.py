"""What a process costs, and how late its event loop is: figures for whoever looks at it.

The loop is asked ten times a second whether it turns; what it was late by is how long whatever
else was due at that moment had to wait.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from . import limits
from .histogram import Histogram
from .memory import resident_bytes


class ProcessMeter:
    """Figures of this process; one for all that runs on its loop.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.lag_us = Histogram()
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the loop."""
        self._due_s = self._loop.time() + limits.TICK_PERIOD_MS / 1000
        self._timer = self._loop.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        self.lag_us.add(int((self._loop.time() - self._due_s) * 1_000_000))
        self.start()

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def figures(self) -> dict[str, Any]:
        """Plain data: `pid`, `resident_bytes`, `cpu_seconds`, `lag_us` (a histogram)."""
        times = os.times()
        return {
            "pid": os.getpid(),
            "resident_bytes": resident_bytes(),
            "cpu_seconds": times.user + times.system,
            "lag_us": self.lag_us.figures(),
        }
