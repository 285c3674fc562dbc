"""An event loop whose time is virtual: it never waits, it jumps to the next deadline.

A year of sleeping takes milliseconds, and the same program takes the same steps each time. Only
for programs that do all their waiting through the loop: no threads, no sockets. If every task
waits and no timer is set, nothing can ever happen again: that raises `Deadlock` instead of
hanging.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Any

from .errors import ToqueError

CLOCK_RESOLUTION_S = 0.001
"""As coarse as the clocks that read it; finer, and an addition is lost in a float at 3e7 s."""
JUMP_S_MAX = 24 * 3600.0
"""How far time moves at once, at most."""
CANCELLED_MAX = 100
"""Of more timers than that half may be cancelled ones."""


class Deadlock(ToqueError):
    """Everything waits for something that can't happen."""

    code = "simulation.deadlock"


class VirtualTimeLoop(base_events.BaseEventLoop):
    """See the module.

    Attributes:
        jumps: how often time moved.
        turns_max: how often the loop may turn while no time passes.

    It also turns for its *guests*: other loops that share its time. They put handles of their own
    into its queues; a guest that is `halted` gets them (`hold`) instead of having them run.
    """

    halted = False
    turns_max = sys.maxsize
    _ready: deque[Any]  # handles
    _scheduled: list[tuple[float, Any]]  # when, and the timer
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = 0.0
        self._clock_resolution = CLOCK_RESOLUTION_S
        self.ready = self._ready
        self.timers = self._scheduled
        self.jumps = 0

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Move time forward."""
        self._virtual_s += seconds
        self.jumps += 1

    def goes_round(self) -> None:
        """The loop has turned more than `turns_max` times."""
        raise Deadlock(f"the loop turned {self.turns_max} times and no time passed.")

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise RuntimeError("the loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self.timers, (when, timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _run_once(self) -> None:
        """Turn until the loop is to stop: what is ready runs in order, or time jumps.

        As the loop of asyncio, but that many turns cost no more than what runs in them. Raises
        `Deadlock`.
        """
        ready, timers = self.ready, self.timers
        inside: Any = self
        turns = 0
        while True:
            if self._timer_cancelled_count:
                self._drop_cancelled()
            if not ready and not self._stopping:
                if not timers:
                    raise Deadlock("no task can go on and no timer is set.")
                wait_s = timers[0][0] - self._virtual_s
                if wait_s > 0:
                    self.jump(min(wait_s, JUMP_S_MAX))
                    turns = 0
            turns += 1
            if turns > self.turns_max:
                self.goes_round()
            due_s = self._virtual_s + CLOCK_RESOLUTION_S
            while timers and timers[0][0] < due_s:
                timer = heappop(timers)[1]
                timer._scheduled = False
                ready.append(timer)
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                home = handle._loop
                if home.halted:
                    home.hold(handle)
                    continue
                if home is not inside:
                    events._set_running_loop(home)
                    inside = home
                handle._run()
            if self._stopping:
                events._set_running_loop(self)
                return

    def _drop_cancelled(self) -> None:
        """Forget own timers that were cancelled, so that time does not jump to them. Guests'
        stay: what is left out of a simulation would change when the others run."""
        timers = self.timers
        if len(timers) > CANCELLED_MAX and 2 * self._timer_cancelled_count > len(timers):
            timers[:] = [entry for entry in timers if not self._is_void(entry[1])]
            heapify(timers)
            self._timer_cancelled_count = 0
        while timers and self._is_void(timers[0][1]):
            heappop(timers)
            self._timer_cancelled_count -= 1

    def _is_void(self, timer: Any) -> bool:
        return bool(timer._cancelled) and timer._loop is self

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
