"""The index of instances, wherever an account has it: read for lists and counts.

On V2 each data shard has that of its Engines. On V1 AccountOld has the one of all. While an account
heals, what AccountOld holds without an Engine is read *first*: what leaves it in between has an
Engine by then, so that a list misses none; one that is in both is taken once. A count is read
likewise, and may count those twice that get their Engine in that moment.

The plane is decided once for a whole read; if the account turns out to be elsewhere, all of it
is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from ..engines.ports import ENGINE_SHARD_KIND
from ..engines.views import IndexRow, PageRequest
from ..runtime.ids import EntityRef, Placement, old_account
from .calls import Caller
from .planes import Planes

T = TypeVar("T")


class Index:
    """See the module's description.

    Args:
        caller: for calls.
        planes: where accounts are.
        placement: which shards there are.
    """

    def __init__(self, caller: Caller, planes: Planes, placement: Placement) -> None:
        self._caller = caller
        self._planes = planes
        self._shards = [EntityRef(ENGINE_SHARD_KIND, name) for name in placement.data_names()]

    async def rows(self, deadline: float, request: PageRequest) -> list[list[IndexRow]]:
        """The next rows of each part of the index, in the order of the list; each row once."""
        methods = "list_page", "list_page", "unborn_page"
        args = (request,)
        pages: list[list[IndexRow]]
        pages, unborn = await self._read(
            list[IndexRow], deadline, request.account, methods, args, args
        )
        if unborn:
            known = {row.id for page in pages for row in page}
            pages.append([row for row in unborn[0] if row.id not in known])
        return pages

    async def counts(
        self, deadline: float, account: str, uuid: str, *some: str
    ) -> list[dict[str, int]]:
        """How many instances of a workflow there are by status, of each part of the index.

        `some`: with an id that begins so, and no more than what is quick to count.
        """
        methods = "counts_at_least" if some else "counts", "counts", "unborn_counts"
        of_shard, of_old = (account, uuid, *some), (uuid, *(some or ("",)))
        parts, unborn = await self._read(
            dict[str, int], deadline, account, methods, of_shard, of_old
        )
        return [*parts, *unborn]

    async def _read(
        self,
        expected: type[T],
        deadline: float,
        account: str,
        methods: tuple[str, str, str],
        of_shard: tuple[Any, ...],
        of_old: tuple[Any, ...],
    ) -> tuple[list[T], list[T]]:
        """What each part answers; and, if the account heals, what those without an Engine are.

        Args:
            expected: an answer's type.
            deadline: see `Caller`.
            account: whose.
            methods: of a shard; of AccountOld on V1; of AccountOld for those without an Engine.
            of_shard, of_old: their arguments.
        """
        call, old = self._caller.call, old_account(account)
        of_shards, of_v1, of_unborn = methods

        async def read() -> tuple[list[T], list[T]]:
            info = self._planes.of(account)
            if info.plane != "v2":
                return [await call(expected, deadline, old, of_v1, *of_old)], []
            unborn: list[T] = []
            if info.healing:
                unborn.append(await call(expected, deadline, old, of_unborn, *of_old))
            calls: list[Awaitable[T]] = [
                call(expected, deadline, shard, of_shards, *of_shard) for shard in self._shards
            ]
            return await asyncio.gather(*calls), unborn

        return await self._caller.routed(deadline, read)
