"""In which order a SousChef gives its slots, read off each single row that it writes.

Rows that are on disk do not tell it: who queues and is chosen between two commits is never there.
So the lanes are followed write by write. A choice takes a row out of a lane and then writes one of
a slot. Of the choices of one activation between both lanes each eighth, and no other, is of who is
new; and whoever is chosen is the oldest of the lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from toque.engines.ports import SOUSCHEF_KIND
from toque.runtime.ids import EntityRef
from toque.runtime.limits import OLDEST_NEW_EVERY
from toque.souschef.rows import AWAKENED, FRESH, HELD, ORDER

from .promises import Promises

if TYPE_CHECKING:
    from toque.testkit.parts import Owner

Place = tuple[int, str]
"""Since when it queues, and its key."""


class _Taken(NamedTuple):
    lane: int
    place: Place
    oldest: Place
    is_contested: bool


class Grants:
    """The writes of one owner of a control shard.

    Args:
        owner: whose.
        promises: where checks are counted.
    """

    def __init__(self, owner: Owner, promises: Promises) -> None:
        self._owner = owner
        self._host = owner.opened.host
        self._store = owner.store
        self._promises = promises
        self._lanes: dict[str, dict[int, set[Place]]] = {}
        self._taken: dict[str, _Taken] = {}
        self._choices: dict[str, tuple[Any, int]] = {}
        self._put, self._delete = owner.store.put, owner.store.delete
        owner.store.watch(self._putting, self._deleting)

    def _of(self, entity: str) -> dict[int, set[Place]]:
        lanes = self._lanes.get(entity)
        if lanes is None:
            lanes = self._lanes[entity] = {AWAKENED: set(), FRESH: set()}
            for _, lane, at_ms, key, *_ in self._store.scan(ORDER, (entity,)):
                lanes.setdefault(lane, set()).add((at_ms, key))
        return lanes

    def _putting(self, owner: Any, table: Any, row: Any) -> int:
        if table is ORDER:
            lanes = self._of(row[0])
            written = self._put(owner, table, row)
            lanes.setdefault(row[1], set()).add(row[2:4])
            return written
        if table is HELD:
            self._given(row[0], row[1])
        return self._put(owner, table, row)

    def _deleting(self, owner: Any, table: Any, key: Any) -> int:
        if table is not ORDER:
            return self._delete(owner, table, key)
        entity, lane, *place = key
        lanes = self._of(entity)
        written = self._delete(owner, table, key)
        known, gone = lanes.get(lane, set()), (place[0], place[1])
        if gone in known:
            is_contested = bool(lanes[AWAKENED] and lanes[FRESH])
            self._taken[entity] = _Taken(lane, gone, min(known), is_contested)
            known.discard(gone)
        return written

    def _given(self, entity: str, key: str) -> None:
        taken = self._taken.pop(entity, None)
        if taken is None or taken.place[1] != key or taken.lane not in (AWAKENED, FRESH):
            return
        if self._owner.fenced:  # what it chose will not be; and it reads rows of who followed it
            return
        hold = self._promises.hold
        told = f"{entity}: {taken} was granted"
        hold("the oldest of a lane goes first", taken.place == taken.oldest, told)
        if not taken.is_contested:
            return
        activation = self._host._live.get(EntityRef(SOUSCHEF_KIND, entity))
        known, number = self._choices.get(entity, (None, 0))
        number = number + 1 if known is activation else 1
        self._choices[entity] = (activation, number)
        hold(
            "one grant in eight is a new one's",
            (taken.lane == FRESH) is (number % OLDEST_NEW_EVERY == 0),
            f"{told}, as choice {number}",
        )
