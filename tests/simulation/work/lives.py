"""Ids that are deleted and used again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from ..clients import Clients
from ..making import ProgramMaker
from .base import Work


class Lives(Work):
    """See the module."""

    name = "lives"
    part_of = 80
    counts = ("deleted by a client",)

    def begin(self) -> Iterable[Awaitable[None]]:
        on = self.world.switches.on
        return [self._lives(f"lives {number}") for number in range(3) if on(f"lives {number}")]

    async def _lives(self, name: str) -> None:
        chance = self.run.chance(name)
        account, workflow = self.run.any_workflow(chance)
        maker = ProgramMaker(chance, size=3, extra=self.run.modes)
        scripts = [maker.script() for _ in range(2 + chance.randrange(2))]
        goes = chance.randrange(2) == 0
        await asyncio.sleep(chance.random() * 25)
        clients = Clients(self.world, name)
        await clients.live_again(account, workflow, name.replace(" ", "/"), scripts, goes=goes)


ITEM = Lives
