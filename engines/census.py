"""How many instances of a workflow a shard has, by status.

They are counted in the order of their creation, COUNT_ROWS_MAX at a time, so that other reads of
the shard have their turn between. Each is counted once, as it stood when its part was read. What is
found of more than one part is told for a while, a millisecond per COUNTED_PER_MS instances: so
counting takes a small part of the time, however many there are and however often somebody asks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from ..runtime.limits import COUNT_ROWS_MAX, COUNTED_PER_MS, COUNTS_KEPT_MAX
from ..runtime.store import Store
from ..runtime.tables import Query
from .pages import range_of

Counts = dict[str, int]
_OF_IDS = Query(
    "instances by status, of some ids",
    "SELECT status, count(*) FROM (SELECT status FROM instances"
    " WHERE +workflow_uuid = ? AND entity >= ? AND entity < ? LIMIT ?) GROUP BY status",
)
_LATER = (
    "INDEXED BY instances_by_creation WHERE workflow_uuid = ? AND entity >= ? AND entity < ?"
    " AND (created_ms, entity) > (?, ?)"
)
_PART = Query(
    "instances by status, a part",
    "SELECT status, count(*) FROM (SELECT status FROM instances "
    f"{_LATER} ORDER BY created_ms, entity LIMIT ?) GROUP BY status",
)
_NEXT_PART = Query(
    "where the next part of the instances begins",
    f"SELECT created_ms, entity FROM instances {_LATER}"
    " ORDER BY created_ms, entity LIMIT 1 OFFSET ?",
)
_UP_TO = Query(
    "instances by status, up to the next part",
    f"SELECT status, count(*) FROM instances {_LATER} AND (created_ms, entity) <= (?, ?)"
    " GROUP BY status",
)
_FROM_THE_FIRST = (-1, "")


class Census:
    """See the module.

    Args:
        store: the shard's.
        now_s: any clock that does not go back.
    """

    def __init__(self, store: Store, now_s: Callable[[], float]) -> None:
        self._store = store
        self._now_s = now_s
        self._kept: dict[str, tuple[float, Counts]] = {}
        self._lock = asyncio.Lock()

    async def counts(self, account: str, workflow_uuid: str) -> Counts:
        """All instances of a workflow."""
        few = await self.at_least(account, workflow_uuid)
        if sum(few.values()) < COUNT_ROWS_MAX:
            return few
        key = f"{account}/{workflow_uuid}/"
        async with self._lock:  # who comes meanwhile is told what is found now
            until_s, kept = self._kept.get(key, (0.0, few))
            if self._now_s() < until_s:
                return kept
            counts = await self._all(workflow_uuid, key)
            self._keep(key, counts)
            return counts

    async def at_least(self, account: str, workflow_uuid: str, id_prefix: str = "") -> Counts:
        """The first COUNT_ROWS_MAX instances of a workflow (with such an id)."""
        which = (workflow_uuid, *range_of(f"{account}/{workflow_uuid}/{id_prefix}"))
        if id_prefix:
            return dict(await self._store.query(_OF_IDS, (*which, COUNT_ROWS_MAX)))
        return dict(await self._store.query(_PART, (*which, *_FROM_THE_FIRST, COUNT_ROWS_MAX)))

    async def _all(self, workflow_uuid: str, key: str) -> Counts:
        counts: Counter[str] = Counter()
        which = (workflow_uuid, *range_of(key))
        after: tuple[int, str] = _FROM_THE_FIRST
        while True:
            last = await self._store.query(_NEXT_PART, (*which, *after, COUNT_ROWS_MAX - 1))
            if not last:
                rest = await self._store.query(_PART, (*which, *after, COUNT_ROWS_MAX))
                counts.update(dict(rest))
                return dict(counts)
            counts.update(dict(await self._store.query(_UP_TO, (*which, *after, *last[0]))))
            after = last[0][0], last[0][1]

    def _keep(self, key: str, counts: Counts) -> None:
        until_s = self._now_s() + sum(counts.values()) / COUNTED_PER_MS / 1_000
        self._kept.pop(key, None)
        self._kept[key] = until_s, counts
        while len(self._kept) > COUNTS_KEPT_MAX:
            del self._kept[next(iter(self._kept))]
