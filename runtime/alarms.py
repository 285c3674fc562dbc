"""Alarms: one per entity, durable, at least once.

The table holds them all; memory holds a window of the earliest. An alarm that is due fires
whether or not its entity is loaded, and an entity handles one at a time: what is set while a
handler runs fires when it has ended.

The row of an alarm goes only when the handler that it was fired for has ended well, and only if it
is still that very alarm: one that was set meanwhile, by whomever, stays. If the process dies
before, it fires again. If the handler fails, the alarm is set anew with backoff and jitter; it
is never dropped. At most ALARMS_PER_TURN_MAX fire in one turn of the loop, and none while the disk
is behind, so that a herd of overdue alarms can't starve calls. A herd that is larger than the
window is read part by part, each once.

Due times are instants of the wall clock. If that is set forward, what is then due fires within
ALARM_LOOK_MS; if it is set back, alarms wait until it shows their time again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass

from . import fault_points, limits
from .clock import Clock
from .entropy import Entropy
from .errors import ToqueError
from .ids import EntityRef
from .pacing import disk_is_behind, when_disk_went_on
from .store import Store
from .tables import Index, Query, Row, Table

ALARMS = Table(
    "alarms",
    (("kind", "TEXT"), ("key", "TEXT"), ("due_ms", "INTEGER"), ("retries", "INTEGER")),
    key_size=2,
    indexes=(Index("alarms_due", ("due_ms",)),),
)
_DUE_NEXT = Query(
    "alarms due next",
    "SELECT kind, key, due_ms, retries, rowid FROM alarms "
    "WHERE (due_ms, rowid) > (?, ?) AND due_ms < ? ORDER BY due_ms, rowid LIMIT ?",
)
_FROM_THE_FIRST = (-(1 << 63), -(1 << 63))

_log = logging.getLogger("toque.alarms")


@dataclass(eq=False, slots=True)
class Firing:
    """One firing of an alarm.

    Attributes:
        ref: whose.
        retries: how often it has failed before.
        began_ms: when its handler began.
        replaced: it has been set anew or deleted since: the row is not this firing's any more.
    """

    ref: EntityRef
    retries: int
    began_ms: int
    replaced: bool = False


Fire = Callable[[Firing], None]
"""Run the entity's alarm handler, then call `AlarmDriver.handled` or `failed`."""


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
        self._read_up_to: tuple[int, int] | None = None  # more than the window holds are due soon
        self._waits_for_disk = False
        self._firing: dict[EntityRef, Firing] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._closed = False
        self.fired = 0
        self.late_ms_max = 0

    def start(self, blamed: EntityRef | None = None) -> None:
        """Load the first window.

        Args:
            blamed: whose handler ran when the process ended: its alarm has failed once more.
        """
        row = None if blamed is None else self._store.get(ALARMS, blamed)
        if blamed is not None and row is not None:
            retries = row[3] + 1
            due_ms = max(row[2], self._clock.now_ms() + backoff_ms(retries, self._entropy))
            self._store.put(blamed, ALARMS, (*blamed, due_ms, retries))
        self._refill()
        self._arm()

    def due_ms(self, ref: EntityRef) -> int | None:
        """When the entity's alarm is due; None if none is set (or its handler runs)."""
        firing = self._firing.get(ref)
        if firing is not None and not firing.replaced:
            return None
        known = self._due.get(ref)
        if known is not None:
            return known[0]
        row = self._store.get(ALARMS, ref)
        return None if row is None else int(row[2])

    def longest_ms(self) -> int:
        """For how long the oldest of the handlers that run now has run."""
        oldest_ms = min((firing.began_ms for firing in self._firing.values()), default=None)
        return 0 if oldest_ms is None else max(0, self._clock.now_ms() - oldest_ms)

    def set(self, owner: object, ref: EntityRef, due_ms: int) -> int:
        """Set (or replace) an alarm; returns the batch number of the write."""
        written = self._store.put(owner, ALARMS, (ref.kind, ref.key, due_ms, 0))
        self._replace(ref)
        self._await(ref, due_ms, 0)
        return written

    def delete(self, owner: object, ref: EntityRef) -> int:
        """Clear an alarm; returns the batch number of the write."""
        written = self._store.delete(owner, ALARMS, ref)
        self._replace(ref)
        self._due.pop(ref, None)
        return written

    def handled(self, firing: Firing) -> int | None:
        """The handler ended well: its alarm goes, and one that was set meanwhile has its turn.

        Returns:
            The batch number of the write; None: nothing was written.
        """
        if not self._end(firing):
            return None
        ref = firing.ref
        if firing.replaced:
            self._await_row(ref)
            return None
        fault_points.reach("alarm.delete")
        try:
            return self._store.delete(ref, ALARMS, ref)
        except ToqueError as error:
            self._again(firing, error)
            return None

    def failed(self, firing: Firing) -> None:
        """The handler failed: its alarm fires again later.

        One that was set meanwhile stays in its place, but keeps away for as long as after a first
        failure: a handler that sets its next alarm for now and then fails is not to spin.
        """
        if not self._end(firing):
            return
        ref, now_ms = firing.ref, self._clock.now_ms()
        retries = 1 if firing.replaced else firing.retries + 1
        due_ms = now_ms + backoff_ms(retries, self._entropy)
        if firing.replaced:
            row = self._store.get(ALARMS, ref)
            if row is None or row[2] >= due_ms:
                self._await_row(ref)
                return
        try:
            self._store.put(ref, ALARMS, (ref.kind, ref.key, due_ms, retries))
        except ToqueError as error:
            self._again(firing, error)
        else:
            self._await(ref, due_ms, retries)

    def abandon(self, ref: EntityRef) -> None:
        """The activation ended, or what it wrote was not stored: go by the row, which stays.

        What is overdue was fired already, and waits a moment before it is fired again.
        """
        firing = self._firing.pop(ref, None)
        if not self._closed and self._store.broken is None:
            retries = 0 if firing is None or firing.replaced else firing.retries + 1
            self._await_row(ref, limits.ALARM_BACKOFF_MIN_MS, retries)

    def _replace(self, ref: EntityRef) -> None:
        if (firing := self._firing.get(ref)) is not None:
            firing.replaced = True

    def _end(self, firing: Firing) -> bool:
        """The handler has ended; False: its firing was abandoned before, or nothing holds now."""
        if self._firing.get(firing.ref) is not firing or self._store.broken is not None:
            return False
        del self._firing[firing.ref]
        return True

    def _again(self, firing: Firing, error: ToqueError) -> None:
        """The store takes no write now: the row stays as it is, so fire again from memory."""
        _log.warning("the alarm of %s will fire again: %s", firing.ref, error)
        self._await_row(firing.ref, limits.ALARM_BACKOFF_MIN_MS, firing.retries + 1)

    def _await(self, ref: EntityRef, due_ms: int, retries: int) -> None:
        """Fire the row at that time; what is beyond the window is read when it comes in."""
        if due_ms <= self._window_end_ms:
            self._hold(ref, due_ms, retries)
        else:
            self._due.pop(ref, None)
            if self._timer is None:
                self._arm()

    def _await_row(self, ref: EntityRef, pause_ms: int = 0, retries: int = 0) -> None:
        """Await what the row says, but what is overdue not before a pause has passed."""
        row = self._store.get(ALARMS, ref)
        now_ms = self._clock.now_ms()
        if row is None:
            self._due.pop(ref, None)
        elif pause_ms and row[2] <= now_ms:
            self._hold(ref, now_ms + pause_ms, max(retries, row[3]))
        else:
            self._await(ref, row[2], row[3])

    def _hold(self, ref: EntityRef, due_ms: int, retries: int) -> None:
        self._due[ref] = (due_ms, retries)
        heapq.heappush(self._heap, (due_ms, ref))
        self._arm()

    def _refill(self) -> None:
        """Read the next window, or what of this one had no room before."""
        most = limits.ALARM_WINDOW_ROWS
        end_ms = self._clock.now_ms() + limits.ALARM_WINDOW_MS
        start = self._read_up_to or _FROM_THE_FIRST
        rows = self._store.query_now(_DUE_NEXT, (*start, end_ms, most))
        self._read_up_to = None
        if len(rows) == most:
            end_ms = rows[-1][2]
            self._read_up_to = (end_ms, rows[-1][4])
        self._window_end_ms = max(end_ms, self._window_end_ms)
        written = self._store.pending(ALARMS)  # wins over what the query saw
        for row in rows:
            if row[:2] not in written:
                self._see(row)
        for change in written.values():
            if change is not None and change[2] <= self._window_end_ms:
                self._see(change)

    def _see(self, row: Row) -> None:
        ref = EntityRef(row[0], row[1])
        if ref not in self._due and ref not in self._firing:
            self._due[ref] = (row[2], row[3])
            heapq.heappush(self._heap, (row[2], ref))

    def _is_used_up(self, now_ms: int) -> bool:
        """Whether there is more to be read."""
        if self._read_up_to is not None:
            return len(self._heap) <= limits.ALARM_WINDOW_ROWS // 2
        return now_ms >= self._window_end_ms - limits.ALARM_WINDOW_MS // 2

    def _arm(self) -> None:
        if self._closed or self._waits_for_disk:
            return
        while self._heap and self._due.get(self._heap[0][1], (None,))[0] != self._heap[0][0]:
            heapq.heappop(self._heap)  # replaced, cleared or fired since
        next_ms = self._heap[0][0] if self._heap else self._window_end_ms
        now_ms = self._clock.now_ms()
        # The timer knows nothing of a clock that is set meanwhile: look again before long.
        next_ms = min(next_ms, self._window_end_ms, now_ms + limits.ALARM_LOOK_MS)
        if self._timer is not None:
            if self._timer_ms <= next_ms:
                return
            self._timer.cancel()
        self._timer_ms = next_ms
        delay_ms = max(0, next_ms - now_ms)
        self._timer = self._loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._closed or self._store.broken is not None:
            return
        if disk_is_behind(self._store):
            self._waits_for_disk = True
            when_disk_went_on(self._store, self._disk_went_on)
            return
        now_ms = self._clock.now_ms()
        room = limits.ALARMS_PER_TURN_MAX
        while self._heap and self._heap[0][0] <= now_ms and room:
            due_ms, ref = heapq.heappop(self._heap)
            known = self._due.get(ref)
            if known is None or known[0] != due_ms or ref in self._firing:
                continue  # replaced, or to be looked at when the handler that runs has ended
            del self._due[ref]
            firing = self._firing[ref] = Firing(ref, known[1], now_ms)
            room -= 1
            self.fired += 1
            self.late_ms_max = max(self.late_ms_max, now_ms - due_ms)
            self._fire(firing)
        if self._is_used_up(now_ms):
            self._refill()
        self._arm()

    def _disk_went_on(self) -> None:
        self._waits_for_disk = False
        self._tick()

    def close(self) -> None:
        """Fire no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
