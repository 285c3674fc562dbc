"""All instances of a workflow are ended in the background, while shards die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from toque.testkit.parts import FrontEnd

from ..clients import Clients
from ..making import ProgramMaker
from ..promises import FINAL
from .base import Work

_WORKFLOW = "delta"
_INSTANCES = 5


class Clearings(Work):
    """See the module. The workflow is one that no other item uses."""

    name = "clearing"
    part_of = 25
    counts = ("a workflow was cleared",)

    async def prepare(self) -> None:
        chance = self.run.chance("cleared account")
        accounts = self.run.plan.accounts
        self._account = accounts[chance.randrange(len(accounts))]
        await Clients(self.world, "clearing").deploy(self._account, _WORKFLOW)

    def begin(self) -> Iterable[Awaitable[None]]:
        return [self._clear()] if self.world.switches.on("clearing") else []

    async def _clear(self) -> None:
        chance, clients = self.run.chance("clearing"), Clients(self.world, "clear")
        maker = ProgramMaker(chance, size=3, extra=self.run.modes)
        errands = [
            self.run.errand(self._account, _WORKFLOW, f"cleared/{number}", [maker.script()])
            for number in range(_INSTANCES)
        ]
        for errand in errands:
            errand.may_be_terminated = True
        await asyncio.sleep(chance.random() * 15)
        await asyncio.gather(*(clients.create_surely(errand) for errand in errands))
        await asyncio.sleep(chance.random() * 4)

        async def begin(front: FrontEnd) -> Any:
            return await front.plane.terminate_all(self._account, _WORKFLOW, [])

        began_s = self.world.loop.time()
        await clients.attempt("clear", begin, stubborn=True)
        self.world.faults["a workflow was cleared"] += 1
        await asyncio.gather(*(clients.wait(errand) for errand in errands))
        ends = [errand.claim.final and errand.claim.final[0] in FINAL for errand in errands]
        self.world.promises.hold(
            "a cleared workflow ends", all(ends), f"{began_s:.3f}", errands[0].claim.last
        )


ITEM = Clearings
