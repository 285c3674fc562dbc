"""A queue in the store with a short window of it in memory. Pure.

Guaranteed: `pop` gives the entries in the order of `(at_ms, key)`, whatever is added or removed
between; memory holds at most twice QUEUE_WINDOW_ROWS of them. The window is a prefix of the
queue: whatever is not in it comes after all that is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from ..runtime.limits import QUEUE_WINDOW_ROWS
from .rows import ORDER, Rows


class Entry(NamedTuple):
    """An instance in a queue: since when, and what a grant needs."""

    at_ms: int
    key: str
    run_id: str
    seq: int
    turn: int
    shard: str


class Lane:
    """One lane of ORDER.

    Args:
        rows: the store.
        entity: the SousChef's key.
        lane: the lane's number.
        count: how many entries it has.
    """

    __slots__ = ("_complete", "_entity", "_head", "_lane", "_rows", "_window", "count")

    def __init__(self, rows: Rows, entity: str, lane: int, count: int) -> None:
        self.count = count
        self._rows = rows
        self._entity = entity
        self._lane = lane
        self._window: list[Entry] = []
        self._head = 0
        self._complete = count == 0

    @property
    def in_memory(self) -> int:
        """How many entries the window holds."""
        return len(self._window) - self._head

    def add(self, entry: Entry) -> None:
        """Put an entry in its place."""
        self._rows.put(ORDER, (self._entity, self._lane, *entry))
        self.count += 1
        window = self._window
        if self._complete or (len(window) > self._head and entry < window[-1]):
            if len(window) == self._head or entry > window[-1]:
                window.append(entry)
            else:
                insort(window, entry, lo=self._head)
            if len(window) - self._head > 2 * QUEUE_WINDOW_ROWS:
                del window[self._head + QUEUE_WINDOW_ROWS :]
                self._complete = False

    def remove(self, at_ms: int, key: str) -> None:
        """Take out an entry that is in the lane."""
        self._rows.delete(ORDER, (self._entity, self._lane, at_ms, key))
        self.count -= 1
        place = bisect_left(self._window, (at_ms, key), lo=self._head)
        if place < len(self._window) and self._window[place][:2] == (at_ms, key):
            del self._window[place]

    def first(self) -> Entry | None:
        """The first entry, left where it is."""
        if self._head == len(self._window) and not self._complete:
            self._refill()
        return self._window[self._head] if self._head < len(self._window) else None

    def pop(self) -> Entry:
        """Take the first entry; the lane must not be empty."""
        entry = self.first()
        assert entry is not None, f"lane {self._lane} says {self.count} and is empty"
        self._rows.delete(ORDER, (self._entity, self._lane, entry.at_ms, entry.key))
        self.count -= 1
        self._head += 1
        if self._head > QUEUE_WINDOW_ROWS:
            del self._window[: self._head]
            self._head = 0
        return entry

    def _refill(self) -> None:
        prefix = (self._entity, self._lane)
        found = self._rows.scan(ORDER, prefix, limit=QUEUE_WINDOW_ROWS)
        self._window = [Entry(*row[2:]) for row in found]
        self._head = 0
        self._complete = len(found) < QUEUE_WINDOW_ROWS
