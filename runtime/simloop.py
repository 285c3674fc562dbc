"""An event loop whose time is virtual: it never waits, it jumps to the next deadline.

A year of sleeping takes milliseconds, and the same program takes the same steps each time. Only
for programs that do all their waiting through the loop: no threads, no sockets. If every task
waits and no timer is set, nothing can ever happen again: that raises `Deadlock` instead of
hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from asyncio import base_events
from collections.abc import Mapping
from typing import Any

from .errors import ToqueError

CLOCK_RESOLUTION_S = 0.001
"""As coarse as the clocks that read it; finer, and an addition is lost in a float at 3e7 s."""


class Deadlock(ToqueError):
    """Everything waits for something that can't happen."""

    code = "simulation.deadlock"


class _JumpingSelector:
    """Stands where the loop would block: moves its time forward instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("no task can go on and no timer is set.")
        if timeout > 0:
            self._loop.jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, Any]:
        return {}

    def close(self) -> None:
        pass  # there is nothing to close: no file descriptor was ever opened


class VirtualTimeLoop(base_events.BaseEventLoop):
    """See the module. `jumps` counts how often time moved."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = 0.0
        self._selector = _JumpingSelector(self)
        self._clock_resolution = CLOCK_RESOLUTION_S
        self.jumps = 0

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Move time forward."""
        self._virtual_s += seconds
        self.jumps += 1

    def _process_events(self, event_list: list[Any]) -> None:
        pass  # the selector never reports any

    def _write_to_self(self) -> None:
        pass  # the loop never blocks, so nobody needs to wake it


class LoopClock:
    """A wall clock that follows a (virtual-time) loop.

    Args:
        loop: whose time it follows.
        start_ms: the wall time at the loop's time zero.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, start_ms: int = 1_700_000_000_000) -> None:
        self._loop = loop
        self._start_ms = start_ms
        self.skew_ms = 0

    def now_ms(self) -> int:
        return self._start_ms + self.skew_ms + round(self._loop.time() * 1000)
