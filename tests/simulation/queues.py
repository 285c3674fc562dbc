"""In which order a SousChef gives its slots, read off its rows after every commit.

Whoever was queued before a commit and may use a slot after it was chosen in that commit; whoever is
queued still was not. What happens between two commits see `grants`.
"""

from __future__ import annotations

from typing import Any

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
            self._chosen(entity, chosen, stay.get(entity, set()) - chosen)

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
