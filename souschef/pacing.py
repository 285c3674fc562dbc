"""Keeps the calls of a shard's SousChefs to their Gatekeeper apart, so that all stay below C.

The period bounds calls in the long run. But SousChefs that were silent call at once, and when
thousands begin in one second each knows only of itself. So the SousChefs of an account on this
shard take turns: a call leaves at once if the last one left long enough ago, else it queues. Each
control shard has an equal part of C, less a part that is left to front ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..runtime import limits

Go = Callable[[], None]


class _Line:
    """One account's calls."""

    __slots__ = ("free_at", "timer", "waiting")

    def __init__(self) -> None:
        self.free_at = float("-inf")
        self.timer: asyncio.TimerHandle | None = None
        self.waiting: deque[Go] = deque()


def gap_ms(calls_per_second: int, control_shards: int) -> float:
    """Between two calls of one account on one shard, so that all shards together stay below C."""
    for_all = calls_per_second - calls_per_second // limits.FRONT_END_CALLS_PART
    return 1000 * control_shards / max(1, for_all - control_shards)


class Pacer:
    """See the module.

    Args:
        loop: the shard's.
        gap_ms: between two calls of an account.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, gap_ms: float) -> None:
        self._loop = loop
        self._gap_s = gap_ms / 1000
        self._lines: dict[str, _Line] = {}

    def waiting(self, account: str) -> int:
        """How many calls wait for their turn."""
        line = self._lines.get(account)
        return 0 if line is None else len(line.waiting)

    def when_free(self, account: str, go: Go) -> None:
        """Run `go` when it is its turn: now, or from the loop."""
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = _Line()
        now = self._loop.time()
        if line.timer is None and now >= line.free_at:
            line.free_at = now + self._gap_s
            go()
            return
        line.waiting.append(go)
        if line.timer is None:
            line.timer = self._loop.call_at(line.free_at, self._next, account, line)

    def _next(self, account: str, line: _Line) -> None:
        line.timer = None
        line.free_at = self._loop.time() + self._gap_s
        go = line.waiting.popleft()
        if line.waiting:
            line.timer = self._loop.call_at(line.free_at, self._next, account, line)
        go()
