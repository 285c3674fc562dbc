"""In which order a SousChef gives its slots, read off its rows after every commit.

Whoever was queued before a commit and may use a slot after it was chosen in that commit; whoever is
queued still was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from toque.runtime.limits import OLDEST_NEW_EVERY

from .promises import Promises

Rows = Callable[[str, str], list[Any]]

_QUEUED = (
    "SELECT entity, lane, at_ms, key, run_id, turn FROM souschef_parked WHERE state = 'queued'"
)
_HELD = "SELECT entity, key, run_id, turn FROM souschef_held"
_AWAKENED, _FRESH = 0, 1


class _Place(NamedTuple):
    lane: int
    at_ms: int
    key: str
    run_id: str
    turn: int


class Queues:
    """See the module.

    Args:
        rows: committed rows of a shard.
        promises: where checks are counted.
    """

    def __init__(self, rows: Rows, promises: Promises) -> None:
        self._rows = rows
        self._promises = promises
        self._queued: dict[str, dict[str, set[_Place]]] = {}
        self._held: dict[str, set[tuple[Any, ...]]] = {}
        self._granted: Counter[str] = Counter()
        self._granted_new: Counter[str] = Counter()

    def committed(self, shard: str) -> None:
        """Look at what a commit of a control shard has changed."""
        before, held_before = self._queued.get(shard, {}), self._held.get(shard, set())
        now: dict[str, set[_Place]] = {}
        for entity, *place in self._rows(shard, _QUEUED):
            now.setdefault(entity, set()).add(_Place(*place))
        held = set(map(tuple, self._rows(shard, _HELD)))
        self._queued[shard], self._held[shard] = now, held
        if held <= held_before:
            return
        fresh_held = held - held_before
        for entity, places in before.items():
            granted = {p for p in places if (entity, p.key, p.run_id, p.turn) in fresh_held}
            if granted:
                self._chosen(entity, granted, places & now.get(entity, set()))

    def _chosen(self, entity: str, granted: set[_Place], left: set[_Place]) -> None:
        for lane in (_AWAKENED, _FRESH):
            newest = max((p for p in granted if p.lane == lane), default=None)
            oldest = min((p for p in left if p.lane == lane), default=None)
            if newest is not None and oldest is not None:
                self._promises.hold(
                    "the oldest of a lane goes first",
                    newest < oldest,
                    f"{entity}: {newest} was granted and {oldest} was not",
                )
        # Who is queued and chosen in one commit is not seen, so twice as many may seem to be new.
        self._granted[entity] += len(granted)
        if any(p.lane == _AWAKENED for p in left):
            self._granted_new[entity] += sum(p.lane == _FRESH for p in granted)
            self._promises.hold(
                "one grant in eight is a new one's",
                self._granted_new[entity] <= 2 + self._granted[entity] // (OLDEST_NEW_EVERY // 2),
                f"{entity}: {self._granted_new[entity]} of {self._granted[entity]} were new",
            )
