"""Parked instances in the order in which they are to be asked how they stand. Pure.

Who waits until a time has its place in the lane WAKING of ORDER at that time; who is to be asked
sooner, or was asked and may have to be asked again, is moved there. Somebody asked late is none
the worse for it: Engines wake themselves and tell so.

Guaranteed: whom `overdue` gives has a later place when it returns, so nobody is asked without end.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runtime import limits
from ..runtime.tables import Row
from .rows import NO_LANE, ORDER, PARKED, WAITING, WAKING, Rows


class Sleepers:
    """See the module.

    Args:
        rows: the store.
        entity: the SousChef's key.
        changing: called before something is written.

    Attributes:
        next_ms: when the first one means to wake, or is to be asked; None: nobody has a place.
    """

    __slots__ = ("_changing", "_entity", "_rows", "next_ms")

    def __init__(self, rows: Rows, entity: str, changing: Callable[[], None]) -> None:
        self._rows = rows
        self._entity = entity
        self._changing = changing
        self.next_ms: int | None = None

    def add(self, at_ms: int, key: str, run_id: str, seq: int, turn: int, shard: str) -> None:
        """Give a parked instance its place; its row in PARKED is the caller's."""
        self._rows.put(ORDER, (self._entity, WAKING, at_ms, key, run_id, seq, turn, shard))
        if self.next_ms is None or at_ms < self.next_ms:
            self.next_ms = at_ms

    def remove(self, at_ms: int, key: str) -> None:
        """Take away its place; its row in PARKED is the caller's."""
        self._rows.delete(ORDER, (self._entity, WAKING, at_ms, key))

    def look_ahead(self) -> None:
        """Find the first one."""
        self.next_ms = None
        for row in self._rows.scan(ORDER, (self._entity, WAKING), limit=1):
            self.next_ms = row[2]

    def ask_later(self, row: Row, at_ms: int) -> None:
        """Have a parked instance asked POKE_AFTER_MS after `at_ms`.

        Args:
            row: its row in PARKED.
        """
        _, key, run_id, seq, _, turn, lane, before_ms, _, _, shard = row
        self._changing()
        if lane == WAKING:
            self.remove(before_ms, key)
        self.add(at_ms, key, run_id, seq, turn, shard)
        self._rows.put(PARKED, (*row[:6], WAKING, at_ms, *row[8:]))

    def ask_newcomer(self, key: str, now_ms: int) -> None:
        """Somebody who was not on the roster is paused, or waits; or who was, and of whom we have
        nothing but reports. That may be late news of a run that has ended or was replaced, whose
        end nobody tells; what is paused has no time at which it is asked, and what waits may have
        a late one."""
        row = self._rows.get(PARKED, (self._entity, key))
        assert row is not None, f"{key} was entered"
        self.ask_later(row, now_ms - limits.POKE_AFTER_MS)

    @staticmethod
    def is_to_be_asked(row: Row) -> bool:
        """Whether a paused or waiting one is to say once more how it stands, or was asked to."""
        _, _, _, _, state, _, lane, at_ms, _, wake_ms, _ = row
        return bool(lane == WAKING and (state != WAITING or at_ms != wake_ms))

    def as_known(self, row: Row, now_ms: int) -> None:
        """It stands as it said before. That is enough if it was asked early: one that is paused is
        asked no more, and one that waits when it ought to have woken. Before it is asked, it may be
        a second late copy of what it said long ago."""
        _, key, _, _, state, _, lane, at_ms, _, wake_ms, _ = row
        if lane != WAKING or at_ms + limits.POKE_AFTER_MS <= now_ms:
            return
        if state == WAITING and wake_ms:
            if at_ms < wake_ms:
                self.ask_later(row, wake_ms)
            return
        self._changing()
        self.remove(at_ms, key)
        self._rows.put(PARKED, (*row[:6], NO_LANE, 0, *row[8:]))

    def overdue(self, now_ms: int, most: int) -> list[tuple[str, str, str]]:
        """`(key, shard, run id)` of at most so many whose time was POKE_AFTER_MS ago or more."""
        found: list[tuple[str, str, str]] = []
        for row in self._rows.scan(ORDER, (self._entity, WAKING), limit=most):
            _, _, at_ms, key, run_id, _, _, shard = row
            if at_ms + limits.POKE_AFTER_MS > now_ms:
                break
            found.append((key, shard, run_id))
            parked = self._rows.get(PARKED, (self._entity, key))
            assert parked is not None, f"{key} is in ORDER alone"
            assert parked[6:8] == (WAKING, at_ms), f"{key} is in ORDER twice"
            self.ask_later(parked, now_ms)
        return found
