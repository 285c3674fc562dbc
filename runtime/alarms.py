"""Alarms: one per entity, durable, at least once.

The table holds them all; memory holds a window of the earliest. An alarm that is due fires
whether or not its entity is loaded. While the handler runs, the row stays: if the process dies,
it fires again. If the handler ends well and has set no new alarm, the row goes, in the same
commit as what the handler wrote. If it fails, the alarm is set anew with backoff and jitter; it
is never dropped. At most ALARMS_PER_TURN_MAX fire in one turn of the loop, so that a herd of
overdue alarms can't starve calls.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from . import limits
from .clock import Clock
from .entropy import Entropy
from .ids import EntityRef
from .store import Store
from .tables import Index, Query, Table

ALARMS = Table(
    "alarms",
    (("kind", "TEXT"), ("key", "TEXT"), ("due_ms", "INTEGER"), ("retries", "INTEGER")),
    key_size=2,
    indexes=(Index("alarms_due", ("due_ms",)),),
)
_DUE_BEFORE = Query(
    "alarms due before",
    "SELECT kind, key, due_ms, retries FROM alarms WHERE due_ms < ? ORDER BY due_ms LIMIT ?",
)

Fire = Callable[[EntityRef, int], None]
"""`(entity, retry count)`: run its alarm handler, then call `AlarmDriver.handled` or `failed`."""


def backoff_ms(retries: int, entropy: Entropy) -> int:
    """How long to wait after failure number `retries` (from 1): doubling, jitter to 25 %."""
    base = min(limits.ALARM_BACKOFF_MIN_MS << min(retries - 1, 20), limits.ALARM_BACKOFF_MAX_MS)
    return int(base * (0.75 + 0.5 * entropy.random()))


class AlarmDriver:
    """All alarms of one shard.

    Args:
        store, clock, entropy, loop: the shard's.
        fire: runs an entity's alarm handler.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        loop: asyncio.AbstractEventLoop,
        fire: Fire,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._loop = loop
        self._fire = fire
        self._due: dict[EntityRef, tuple[int, int]] = {}  # the window: (due, retries)
        self._heap: list[tuple[int, EntityRef]] = []
        self._window_end_ms = 0
        self._firing: set[EntityRef] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._closed = False
        self.fired = 0
        self.late_ms_max = 0

    def start(self) -> None:
        """Load the first window."""
        self._refill()
        self._arm()

    def due_ms(self, ref: EntityRef) -> int | None:
        """When the entity's alarm is due; None if none is set (or its handler runs)."""
        if ref in self._firing:
            return None
        known = self._due.get(ref)
        if known is not None:
            return known[0]
        row = self._store.get(ALARMS, ref)
        return None if row is None else int(row[2])

    def set(self, owner: object, ref: EntityRef, due_ms: int, retries: int = 0) -> int:
        """Set (or replace) an alarm; returns the batch number of the write."""
        self._firing.discard(ref)
        if due_ms <= self._window_end_ms:
            self._due[ref] = (due_ms, retries)
            heapq.heappush(self._heap, (due_ms, ref))
            self._arm()
        else:
            self._due.pop(ref, None)
            if self._timer is None:
                self._arm()
        return self._store.put(owner, ALARMS, (ref.kind, ref.key, due_ms, retries))

    def delete(self, owner: object, ref: EntityRef) -> int | None:
        """Clear an alarm; returns the batch number of the write."""
        self._firing.discard(ref)
        self._due.pop(ref, None)
        return self._store.delete(owner, ALARMS, ref)

    def handled(self, owner: object, ref: EntityRef) -> int | None:
        """The handler ended well: the alarm goes, unless the handler has set a new one."""
        if ref not in self._firing:
            return None
        return self.delete(owner, ref)

    def failed(self, owner: object, ref: EntityRef, retries: int) -> None:
        """The handler failed: fire again later, unless it has set a new alarm."""
        if ref in self._firing:
            due_ms = self._clock.now_ms() + backoff_ms(retries + 1, self._entropy)
            self.set(owner, ref, due_ms, retries + 1)

    def abandon(self, ref: EntityRef) -> None:
        """The activation ended while its handler ran: fire again soon, from the row."""
        if ref in self._firing:
            self._firing.discard(ref)
            due_ms = self._clock.now_ms() + limits.ALARM_BACKOFF_MIN_MS
            self._due[ref] = (due_ms, 0)
            heapq.heappush(self._heap, (due_ms, ref))
            self._arm()

    def _refill(self) -> None:
        """Read the next window. Rows that are still pending are in `_due` already or after it."""
        now_ms = self._clock.now_ms()
        end_ms = now_ms + limits.ALARM_WINDOW_MS
        rows = self._store.query_now(_DUE_BEFORE, (end_ms, limits.ALARM_WINDOW_ROWS))
        if len(rows) == limits.ALARM_WINDOW_ROWS:
            end_ms = max(rows[-1][2], self._window_end_ms)
        for kind, key, _, _ in rows:
            ref = EntityRef(kind, key)
            if ref in self._due or ref in self._firing:
                continue
            row = self._store.get(ALARMS, ref)  # pending writes win over what the query saw
            if row is not None:
                self._due[ref] = (row[2], row[3])
                heapq.heappush(self._heap, (row[2], ref))
        self._window_end_ms = end_ms

    def _arm(self) -> None:
        if self._closed:
            return
        while self._heap and self._due.get(self._heap[0][1], (None,))[0] != self._heap[0][0]:
            heapq.heappop(self._heap)  # replaced, cleared or fired since
        next_ms = self._heap[0][0] if self._heap else self._window_end_ms
        next_ms = min(next_ms, self._window_end_ms)
        if self._timer is not None:
            if self._timer_ms <= next_ms:
                return
            self._timer.cancel()
        self._timer_ms = next_ms
        delay_ms = max(0, next_ms - self._clock.now_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._closed or self._store.broken is not None:
            return
        now_ms = self._clock.now_ms()
        room = limits.ALARMS_PER_TURN_MAX
        while self._heap and self._heap[0][0] <= now_ms and room:
            due_ms, ref = heapq.heappop(self._heap)
            known = self._due.get(ref)
            if known is None or known[0] != due_ms:
                continue
            del self._due[ref]
            self._firing.add(ref)
            room -= 1
            self.fired += 1
            self.late_ms_max = max(self.late_ms_max, now_ms - due_ms)
            self._fire(ref, known[1])
        if now_ms >= self._window_end_ms - limits.ALARM_WINDOW_MS // 2:
            self._refill()
        self._arm()

    def close(self) -> None:
        """Fire no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
