"""Instances of their own, each with a random script and what may befall it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from ..clients import Clients, quietly
from ..making import ProgramMaker, forks_of, waits_of
from ..program import EVENT_TYPES
from ..verdict import Errand
from .base import Work


class Jobs(Work):
    """See the module."""

    name = "jobs"
    counts = (
        "paused by a client",
        "resumed by a client",
        "cancelled by a client",
        "terminated by a client",
        "terminated with rollback by a client",
        "restarted by a client",
        "restarted from a step by a client",
        "client tries again",
        "client gives up",
        "create refused as a duplicate",
    )

    def begin(self) -> Iterable[Awaitable[None]]:
        numbers = range(self.run.plan.instances)
        on = self.world.switches.on
        return [self._job(number) for number in numbers if on(f"job {number}")]

    async def _job(self, number: int) -> None:
        """What clients do about one instance."""
        run, name = self.run, f"job {number}"
        chance = run.chance(name)
        clients = Clients(self.world, name)
        draw, meets = chance.randrange, run.focus.meets
        account, workflow = run.any_workflow(chance)
        maker = ProgramMaker(chance, focus=run.focus, extra=run.modes)
        scripts = [maker.script() for _ in range(1 + (draw(10) == 0))]
        errand = run.errand(account, workflow, f"job/{number}", scripts)
        start_s, again, some_s = chance.random() * 30, draw(8) == 0, chance.random() * 12
        befalls: list[tuple[str, float, Callable[[], Awaitable[Any]]]] = []

        def may(what: str, one_in: int, after_s: float, work: Callable[[], Awaitable[Any]]) -> None:
            if meets(what, one_in, chance):
                befalls.append((what, after_s, work))

        restarts = meets("restart", 7, chance)
        pause = partial(clients.pause_a_while, errand, stubborn=restarts)
        may("look", 4, 0.0, partial(self._look_around, clients, errand))
        may("terminate", 12, some_s, partial(clients.terminate, errand))
        may("pause", 5, some_s / 2, pause)
        may("cancel", 7, some_s, partial(clients.cancel, errand))
        may("undo", 14, some_s, partial(clients.terminate, errand, rollback=True))
        waits = waits_of(scripts[0].ops)
        events = {kind: draw(waits + 2) if waits else 0 for kind in EVENT_TYPES}
        on = self.world.switches.on
        await asyncio.sleep(start_s)
        creates = [quietly(clients.create(errand, n)) for n in range(len(scripts))]
        if again:
            creates.append(quietly(clients.create(errand)))
        await asyncio.gather(*creates)
        also: list[Awaitable[Any]] = [
            clients.send_events(errand, kind, n)
            for kind, n in events.items()
            if n and on(f"{name}: {kind}")
        ]
        also += [after(after_s, work) for what, after_s, work in befalls if on(f"{name}: {what}")]
        if restarts and errand.claim.acked and on(f"{name}: restart"):
            also.append(self._restart(clients, errand))
        await asyncio.gather(clients.wait(errand), *also)
        if errand.claim.restarts:
            await clients.wait(errand)

    async def _restart(self, clients: Clients, errand: Errand) -> None:
        """Once or twice from the start, or once from a step; early, or when it has ended."""
        draw = clients.entropy.randrange
        forks = forks_of(errand.script)
        if forks and draw(2):
            await self._early_or_late(clients, errand)
            await clients.restart(errand, 1, forks[draw(len(forks))][0])
            return
        for number in range(1 + draw(2)):
            await self._early_or_late(clients, errand)
            await clients.restart(errand, number)

    async def _early_or_late(self, clients: Clients, errand: Errand) -> None:
        if clients.entropy.randrange(2):
            await clients.wait(errand)
        await asyncio.sleep(clients.entropy.random() ** 2 * 10)

    async def _look_around(self, clients: Clients, errand: Errand) -> None:
        for _ in range(5):
            await asyncio.sleep(clients.entropy.random() * 6)
            await clients.look(errand)


async def after(delay_s: float, work: Callable[[], Awaitable[Any]]) -> None:
    """Do something later."""
    await asyncio.sleep(delay_s)
    await work()


ITEM = Jobs
