"""Who leaves memory: entities that have been idle for long, or at all when memory is short.

One per host. It looks through all of them in slices, so that ending many does not hold up the
shard. Memory is short past ENTITIES_LIVE_MAX entities, or when the process has more than
SHARD_MEMORY_BYTES_MAX. An entity that has work in memory, an unanswered call or a write that is
not durable yet is not idle, and stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from . import limits
from .activation import Activation


class Sweeper:
    """See the module's description.

    Args:
        loop: the shard's event loop.
        live: all live entities.
        end: ends one.
        memory_bytes: how much memory the process has; None: don't look.

    Attributes:
        ended: how many have left.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        live: Mapping[Any, Activation],
        end: Callable[[Activation], None],
        memory_bytes: Callable[[], int] | None,
    ) -> None:
        self.ended = 0
        self._loop = loop
        self._live = live
        self._end = end
        self._memory_bytes = memory_bytes
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._left: list[Activation] = []
        self._is_short = False
        self._closed = False

    def start(self) -> None:
        """Begin to look."""
        self._after(limits.IDLE_EVICTION_MS / 2, self._sweep)
        if self._memory_bytes is not None:
            self._after(limits.MEMORY_CHECK_MS, self._check_memory)

    def relieve(self) -> None:
        """Memory is short: end what has been idle for a moment."""
        if not self._is_short:
            self._is_short = True
            self._look_through()

    def close(self) -> None:
        """End nothing more."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._left.clear()

    def _after(self, delay_ms: float, work: Callable[[], None]) -> None:
        if not self._closed:
            self._timers[work.__name__] = self._loop.call_later(delay_ms / 1000, work)

    def _sweep(self) -> None:
        self._after(limits.IDLE_EVICTION_MS / 2, self._sweep)
        self._look_through()

    def _check_memory(self) -> None:
        self._after(limits.MEMORY_CHECK_MS, self._check_memory)
        assert self._memory_bytes is not None
        if self._memory_bytes() > limits.SHARD_MEMORY_BYTES_MAX:
            self.relieve()

    def _look_through(self) -> None:
        if not self._left:
            self._left = list(self._live.values())
            self._left.reverse()  # the longest here come first
            self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        if self._closed:
            return
        idle_ms = limits.PRESSURE_IDLE_MS if self._is_short else limits.IDLE_EVICTION_MS
        oldest = self._loop.time() - idle_ms / 1000
        part = self._left[-limits.SWEPT_PER_TURN_MAX :]
        del self._left[-limits.SWEPT_PER_TURN_MAX :]
        for activation in reversed(part):
            if activation.last_used <= oldest and not activation.ended and activation.idle:
                self.ended += 1
                self._end(activation)
        if self._left:
            self._loop.call_soon(self._slice)
        else:
            self._is_short = False
