"""The limit of an account, lowered and raised while its instances run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from ..clients import Clients
from .base import Work


class Limits(Work):
    """See the module."""

    name = "limit"
    part_of = 35
    counts = ("limit changed",)

    def begin(self) -> Iterable[Awaitable[None]]:
        return [self._change()]

    async def _change(self) -> None:
        chance, account = self.run.chance("limit"), self.run.plan.accounts[0]
        clients = Clients(self.world, "limit")
        for number in range(5):
            await asyncio.sleep(4 + chance.random() * 10)
            limit = 1 + chance.randrange(10)
            if self.world.switches.on(f"limit {number}"):
                self.world.faults["limit changed"] += 1
                await clients.set_limit(account, limit)


ITEM = Limits
