"""A limit for each workflow, and weights that change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from ..clients import Clients
from .base import Work


class Shares(Work):
    """See the module."""

    name = "shares"
    part_of = 35
    counts = ("weight changed", "a workflow has a limit of its own")

    async def prepare(self) -> None:
        run = self.run
        chance, clients = run.chance("shares"), Clients(self.world, "shares")
        self._limits: dict[tuple[str, str], int] = {}
        for account in run.plan.accounts:
            for workflow in run.plan.workflows:
                most = 1 + chance.randrange(4) if chance.randrange(3) else 0
                self._limits[account, workflow] = most
                self.world.faults["a workflow has a limit of its own"] += most > 0
                await clients.set_workflow_limit(account, workflow, most)

    def begin(self) -> Iterable[Awaitable[None]]:
        return [self._reweigh()]

    async def _reweigh(self) -> None:
        chance = self.run.chance("weights")
        clients = Clients(self.world, "weights")
        for number in range(3):
            await asyncio.sleep(4 + chance.random() * 12)
            account, workflow = self.run.any_workflow(chance)
            weight = 1 + chance.randrange(5)
            if self.world.switches.on(f"weight {number}"):
                self.world.faults["weight changed"] += 1
                most = self._limits[account, workflow]
                await clients.set_workflow_limit(account, workflow, most, weight)


ITEM = Shares
