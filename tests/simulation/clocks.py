"""Wall clocks of simulated machines: each with an error, and a speed of its own."""

from __future__ import annotations

import asyncio

from toque.runtime.simloop import LoopClock


class MachineClock(LoopClock):
    """A wall clock that may go wrong.

    Args:
        loop: the virtual time that it follows.
        skew_ms: how far it is ahead at the loop's time zero.
        drift: how much faster than the loop it goes, as a part of one.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, skew_ms: int = 0, drift: float = 0.0
    ) -> None:
        super().__init__(loop)
        self.skew_ms = skew_ms
        self._drift = drift
        self._began_s = loop.time()

    def now_ms(self) -> int:
        """Wall time as this machine has it."""
        late_s = self._loop.time() - self._began_s
        return super().now_ms() + round(late_s * self._drift * 1000)
