"""In which order a SousChef gives its slots, read off its rows after every commit.

Whoever was queued before a commit and may use a slot after it was chosen in that commit; whoever is
queued still was not.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from toque.runtime.limits import OLDEST_NEW_EVERY

from .kept import TableRows
from .promises import Promises

_QUEUED = "queued"
_AWAKENED, _FRESH = 0, 1
_Place = tuple[int, int, str, str, int]
"""Lane, since when, and who: key, run and turn."""


class Queues:
    """See the module.

    Args:
        promises: where checks are counted.
    """

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._parked: dict[str, list[Any]] = {}
        self._held: dict[str, set[tuple[Any, ...]]] = {}
        self._granted: Counter[str] = Counter()
        self._granted_new: Counter[str] = Counter()

    def committed(self, shard: str, table: TableRows) -> None:
        """Look at what a commit of a control shard has changed.

        Args:
            shard: whose commit.
            table: gives the rows of `kept.COLUMNS`.
        """
        before, held_before = self._parked.get(shard, []), self._held.get(shard, set())
        now, held = table("souschef_parked"), set(table("souschef_held"))
        self._parked[shard], self._held[shard] = now, held
        fresh_held = held - held_before
        if not fresh_held:
            return
        left = set(now)
        granted: dict[str, set[_Place]] = {}
        stay: dict[str, set[_Place]] = {}
        for row in before:
            entity, state, *_ = row
            if state != _QUEUED:
                continue
            if (entity, *row[4:]) in fresh_held:
                granted.setdefault(entity, set()).add(row[2:])
            if row in left:
                stay.setdefault(entity, set()).add(row[2:])
        for entity, chosen in granted.items():
            self._chosen(entity, chosen, stay.get(entity, set()))

    def _chosen(self, entity: str, granted: set[_Place], left: set[_Place]) -> None:
        for lane in (_AWAKENED, _FRESH):
            newest = max((p for p in granted if p[0] == lane), default=None)
            oldest = min((p for p in left if p[0] == lane), default=None)
            if newest is not None and oldest is not None:
                self._promises.hold(
                    "the oldest of a lane goes first",
                    newest < oldest,
                    f"{entity}: {newest} was granted and {oldest} was not",
                )
        # Who is queued and chosen in one commit is not seen, so twice as many may seem to be new.
        self._granted[entity] += len(granted)
        if any(p[0] == _AWAKENED for p in left):
            self._granted_new[entity] += sum(p[0] == _FRESH for p in granted)
            self._promises.hold(
                "one grant in eight is a new one's",
                self._granted_new[entity] <= 2 + self._granted[entity] // (OLDEST_NEW_EVERY // 2),
                f"{entity}: {self._granted_new[entity]} of {self._granted[entity]} were new",
            )
