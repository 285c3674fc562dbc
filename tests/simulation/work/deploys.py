"""Another version of a workflow is deployed while instances of the one before run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from ..clients import Clients
from .base import Work


class Deploys(Work):
    """See the module."""

    name = "deploys"
    part_of = 40
    counts = ("another version deployed",)

    def begin(self) -> Iterable[Awaitable[None]]:
        return [self._deploy()]

    async def _deploy(self) -> None:
        chance = self.run.chance("deploys")
        clients = Clients(self.world, "deploys")
        for number in range(2, 5):
            await asyncio.sleep(3 + chance.random() * 14)
            account, workflow = self.run.any_workflow(chance)
            if self.world.switches.on(f"deploy {number}"):
                self.world.faults["another version deployed"] += 1
                await clients.deploy(account, workflow, f"v{number}")


ITEM = Deploys
