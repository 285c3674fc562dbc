"""What an instance waits for: things with a time.

In memory only, made anew at each replay; held by `replay.Execution`. Of things with the same time
the one that was put in first comes first. A pause moves everything in it, each by its own share
(`journal.Pause`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from .claims import Claim
from .journal import PENDING, Pause
from .loop import DurableTimer

Item = Claim | DurableTimer


class Agenda:
    """Things that fall due. What is over, or was cancelled, drops out by itself."""

    __slots__ = ("_heap", "_ties")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Item]] = []
        self._ties = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def put(self, due_ms: int, item: Item) -> None:
        """Put something in; of what is due at the same time the first put in comes first."""
        self._ties += 1
        heapq.heappush(self._heap, (due_ms, self._ties, item))

    def next_ms(self) -> int:
        """When the first is due; 0: nothing is timed."""
        heap = self._heap
        while heap and _is_void(heap[0][2]):
            heapq.heappop(heap)
        return heap[0][0] if heap else 0

    def pop(self) -> Item:
        """Take the first; `next_ms` was not 0."""
        return heapq.heappop(self._heap)[2]

    def shift(self, pause: Pause, others: Iterable[object]) -> None:
        """Move the timers of asyncio, in here and among `others`, and put all in order again."""
        timers = {item for _, _, item in self._heap if isinstance(item, DurableTimer)}
        timers.update(item for item in others if isinstance(item, DurableTimer))
        for timer in timers:
            timer.due_ms += pause.shift_of(timer.set_ms)
        self._heap = [(_due_of(item), tie, item) for _, tie, item in self._heap]
        heapq.heapify(self._heap)


def _due_of(item: Item) -> int:
    return item.due_ms if isinstance(item, DurableTimer) else item.record.due_ms


def _is_void(item: Item) -> bool:
    if isinstance(item, DurableTimer):
        return item.is_cancelled
    return item.record.state != PENDING
