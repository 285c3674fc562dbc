"""A sliding window over creates: never more than so many in any stretch of so long. Pure.

Time is cut in buckets, and a bucket counts until all of it has left the window. So the bound holds
exactly, and a create may have to wait for a bucket longer than it must.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ..runtime import limits


class RateWindow:
    """See the module.

    Args:
        most: how many creates a window takes.
        window_ms: how long it is.
        kept: as `state` gave it; empty: nothing came yet.
    """

    def __init__(self, most: int, window_ms: int, kept: str = "") -> None:
        self.most = most
        self._window_ms = window_ms
        self._width_ms = max(1, window_ms // limits.V1_RATE_BUCKETS)
        known = msgspec.json.decode(kept, type=list[tuple[int, int]]) if kept else []
        self._buckets = deque(known)
        self._count = sum(count for _, count in known)

    def admit(self, now_ms: int) -> int:
        """Let a create in: 0. Else nothing is counted, and it is told after how many ms to ask."""
        start_ms = now_ms - now_ms % self._width_ms
        self._leave(start_ms, now_ms)
        if self._count >= self.most:
            first_ms = self._buckets[0][0] if self._buckets else now_ms
            return max(1, first_ms + self._width_ms + self._window_ms - now_ms)
        if self._buckets and self._buckets[-1][0] == start_ms:
            self._buckets[-1] = (start_ms, self._buckets[-1][1] + 1)
        else:
            self._buckets.append((start_ms, 1))
        self._count += 1
        return 0

    def state(self) -> str:
        """What a row keeps of it."""
        return msgspec.json.encode(list(self._buckets)).decode()

    def _leave(self, start_ms: int, now_ms: int) -> None:
        buckets = self._buckets
        while buckets and buckets[0][0] + self._width_ms + self._window_ms <= now_ms:
            self._count -= buckets.popleft()[1]
        ahead = 0
        while buckets and buckets[-1][0] > start_ms:  # the clock was set back
            ahead += buckets.pop()[1]
        if ahead:
            if buckets and buckets[-1][0] == start_ms:
                ahead += buckets.pop()[1]
            buckets.append((start_ms, ahead))
