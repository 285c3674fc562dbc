"""The entity of a data shard that stands for all its Engines: grants, pokes, lists, counts.

A SousChef speaks to many Engines of a shard in one call. An answer leaves only when everything
that the Engines wrote for it is durable. Calls of an older incarnation of a SousChef (a smaller
epoch than was seen) are refused: all grants False, no pokes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ClassVar, TypeVar

from ..runtime.entity import Context, DurableObject
from ..runtime.errors import CallerError, EntityReset, InvalidArgument
from ..runtime.ids import EntityRef, engine_key
from ..runtime.limits import CLEAR_BATCH_MAX, LIST_PAGE_ROWS_MAX, PACED_PER_TURN_MAX
from ..runtime.pacing import Pacer
from ..runtime.tables import Table
from .census import Census
from .engine import Engine
from .env import EngineEnv
from .journal import CODECS
from .pages import page_query
from .ports import ENGINE_KIND, ENGINE_SHARD_KIND, ClearPage, Grant
from .status import STATUSES
from .views import IndexRow, PageRequest

SEEN_SOUSCHEFS = Table(
    "souschef_epochs", (("entity", "TEXT"), ("souschef", "TEXT"), ("epoch", "INTEGER")), 2
)
T = TypeVar("T")
R = TypeVar("R")


class EngineShard(DurableObject):
    """See the module's description."""

    KIND = ENGINE_SHARD_KIND
    TABLES: ClassVar[tuple[Table, ...]] = (SEEN_SOUSCHEFS, CODECS)

    env: EngineEnv

    def __init__(self, ctx: Context, env: EngineEnv) -> None:
        super().__init__(ctx, env)
        self._epochs: dict[str, int] = {}
        self._pacer = Pacer(env.store, env.loop)
        self._census = Census(env.store, env.loop.time)

    def on_evict(self) -> None:
        self._pacer.close()

    def grant_many(
        self, souschef: str, epoch: int, grants: list[Grant]
    ) -> list[bool] | asyncio.Future[list[bool]]:
        """Hand slots to Engines, many of them over several turns of the loop; see `ports`."""
        if self._is_stale(souschef, epoch):
            return [False] * len(grants)
        return self._in_turns(self._grant, grants, list)

    def poke_many(
        self, souschef: str, epoch: int, keys: list[str]
    ) -> list[str] | asyncio.Future[list[str]]:
        """Make Engines look and report, as `grant_many` does; see `ports`."""
        if self._is_stale(souschef, epoch):
            return []

        def gone(found: list[bool]) -> list[str]:
            return [key for key, is_there in zip(keys, found, strict=True) if not is_there]

        return self._in_turns(partial(self._poke, souschef), keys, gone)

    def _grant(self, grant: Grant) -> bool:
        return self._engine(grant.key).grant(grant.run_id, grant.turn)

    def _poke(self, souschef: str, key: str) -> bool:
        return self._engine(key).poke(souschef)

    def _in_turns(
        self, work: Callable[[T], bool], pieces: list[T], told: Callable[[list[bool]], R]
    ) -> R | asyncio.Future[R]:
        """Do something with each; what is told of all of it may reveal what all have written."""
        if len(pieces) <= PACED_PER_TURN_MAX and self._pacer.idle:
            found = list(map(work, pieces))
            self.ctx.cover_shard()
            return told(found)
        answer: asyncio.Future[R] = self.env.loop.create_future()
        found = []

        def do(piece: T) -> None:
            if not answer.done():
                try:
                    found.append(work(piece))
                except Exception as error:  # the SousChef says all of it again
                    answer.set_exception(error)

        def done() -> None:
            self.ctx.cover_shard()
            if not answer.done():
                answer.set_result(told(found))

        self._pacer.add(partial(do, piece) for piece in pieces)
        self._pacer.add((done,))
        return answer

    async def list_page(self, request: PageRequest) -> list[IndexRow]:
        """This shard's part of a page of a list: committed rows only, by keyset."""
        if not 0 < request.limit <= LIST_PAGE_ROWS_MAX:
            raise InvalidArgument(f"a page takes 1 to {LIST_PAGE_ROWS_MAX} rows.")
        unknown = [status for status in request.statuses if status not in STATUSES]
        if len(unknown) == len(request.statuses) and unknown:
            return []
        prefix = f"{request.account}/{request.workflow_uuid}/"
        query, params = page_query(request, prefix)
        rows = await self.env.store.query(query, params)
        return [IndexRow(row[0][len(prefix) :], *row[1:]) for row in rows]

    async def counts(self, account: str, workflow_uuid: str) -> dict[str, int]:
        """All instances of a workflow by status; of many as they were a moment ago (`census`)."""
        return await self._census.counts(account, workflow_uuid)

    async def counts_at_least(
        self, account: str, workflow_uuid: str, id_prefix: str = ""
    ) -> dict[str, int]:
        """Instances by status, of the first COUNT_ROWS_MAX of this shard (with such an id)."""
        return await self._census.at_least(account, workflow_uuid, id_prefix)

    async def clear(
        self,
        account: str,
        workflow_uuid: str,
        how: str,
        statuses: list[str],
        after: tuple[int, str] | None,
        request_id: str,
        source: str = "api",
    ) -> ClearPage:
        """Terminate or delete the next instances of a workflow, oldest first.

        What an instance refuses (it has ended meanwhile, say) is left as it is.

        Args:
            account, workflow_uuid: whose.
            how: `terminate` or `delete`.
            statuses: those in which an instance is taken; none: all.
            after: go on behind that one; None: from the first.
            request_id: the same in a repeated call.
            source: what asks for it, as of a create.
        """
        most = CLEAR_BATCH_MAX
        request = PageRequest(account, workflow_uuid, after, False, most, statuses, None, None)
        rows = await self.list_page(request)
        for row in rows:
            engine = self._engine(engine_key(account, workflow_uuid, row.id))
            try:
                if how == "delete":
                    engine.delete(request_id)
                else:
                    engine.terminate(request_id, False, source)
            except (CallerError, EntityReset):
                continue
        self.ctx.cover_shard()
        last = (rows[-1].created_ms, rows[-1].id) if len(rows) == most else None
        return ClearPage(len(rows), last)

    def _engine(self, key: str) -> Engine:
        engine = self.env.local(EntityRef(ENGINE_KIND, key))
        assert isinstance(engine, Engine)
        return engine

    def _is_stale(self, souschef: str, epoch: int) -> bool:
        seen = self._epochs.get(souschef)
        if seen is None:
            row = self.ctx.get(SEEN_SOUSCHEFS, (self.ctx.ref.key, souschef))
            seen = 0 if row is None else row[2]
        if epoch < seen:
            return True
        if epoch > seen:
            self.ctx.put(SEEN_SOUSCHEFS, (self.ctx.ref.key, souschef, epoch))
        self._epochs[souschef] = epoch
        return False
