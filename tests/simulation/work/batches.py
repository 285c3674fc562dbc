"""Several instances by one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from ..clients import Clients
from ..making import ProgramMaker
from .base import Work


class Batches(Work):
    """See the module."""

    name = "batch"
    part_of = 70

    def begin(self) -> Iterable[Awaitable[None]]:
        return [self._batch()] if self.world.switches.on("batch") else []

    async def _batch(self) -> None:
        run, name = self.run, f"batch{self.world.seed}"
        chance = run.chance("batch")
        clients = Clients(self.world, "batch")
        account, workflow = run.any_workflow(chance)
        maker = ProgramMaker(chance, size=2, extra=run.modes)
        errands = [
            run.errand(account, workflow, f"{name}/{number}", [maker.script()])
            for number in range(2 + chance.randrange(5))
        ]
        await asyncio.sleep(chance.random() * 30)
        await clients.create_batch(errands, name)
        await asyncio.gather(*(clients.wait(errand) for errand in errands))


ITEM = Batches
