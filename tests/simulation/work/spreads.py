"""The number of a workflow's SousChefs, set and left to follow its load again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from ..clients import Clients
from .base import Work


class Spreads(Work):
    """See the module."""

    name = "souschefs"
    part_of = 30
    counts = ("souschefs set",)

    def begin(self) -> Iterable[Awaitable[None]]:
        return [self._set()]

    async def _set(self) -> None:
        chance = self.run.chance("souschefs")
        clients = Clients(self.world, "souschefs")
        for number in range(3):
            await asyncio.sleep(2 + chance.random() * 12)
            account, workflow = self.run.any_workflow(chance)
            wanted = chance.randrange(5) or None
            if self.world.switches.on(f"souschefs {number}"):
                self.world.faults["souschefs set"] += 1
                await clients.set_souschefs(account, workflow, wanted)


ITEM = Spreads
