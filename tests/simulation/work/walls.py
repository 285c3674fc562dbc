"""The same ids in two accounts, and one account that asks for the other's instances."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from toque.runtime.errors import InstanceNotFound, WorkflowNotFound
from toque.testkit.parts import FrontEnd

from ..clients import Clients
from ..making import ProgramMaker
from .base import Work

_WORKFLOW = "alpha"
_HOLDS = "accounts are walls"


class Walls(Work):
    """See the module. Without a second account there is nothing to be seen."""

    name = "walls"
    part_of = 50
    counts = ("the same id in two accounts", "another account's instance asked for")

    def begin(self) -> Iterable[Awaitable[None]]:
        if len(self.run.plan.accounts) < 2 or not self.world.switches.on("walls"):
            return []
        return [self._twins(), self._strangers()]

    async def _twins(self) -> None:
        """Each account has an instance of that id, and it is its own."""
        chance, clients = self.run.chance("twins"), Clients(self.world, "twins")
        maker = ProgramMaker(chance, size=2, extra=self.run.modes)
        errands = [
            self.run.errand(account, _WORKFLOW, "twin/1", [maker.script()])
            for account in self.run.plan.accounts
        ]
        await asyncio.sleep(chance.random() * 20)
        self.world.faults["the same id in two accounts"] += 1
        await asyncio.gather(*(clients.create_surely(errand) for errand in errands))
        await asyncio.gather(*(clients.wait(errand) for errand in errands))

    async def _strangers(self) -> None:
        """One account has an instance; to the other it does not exist, whatever is asked."""
        chance, clients = self.run.chance("strangers"), Clients(self.world, "strangers")
        maker = ProgramMaker(chance, size=3, extra=self.run.modes)
        owner, stranger = self.run.plan.accounts
        errand = self.run.errand(owner, _WORKFLOW, "only/1", [maker.script()])
        await asyncio.sleep(chance.random() * 10)
        await clients.create_surely(errand)
        asks = _asks(stranger, errand.id)
        for name, ask in asks.items():
            await asyncio.sleep(chance.random() * 3)
            await self._ask(clients, name, ask)
        await clients.wait(errand)

    async def _ask(
        self, clients: Clients, name: str, ask: Callable[[FrontEnd], Awaitable[Any]]
    ) -> None:
        async def work(front: FrontEnd) -> Any:
            return await ask(front)

        hold = self.world.promises.hold
        self.world.faults["another account's instance asked for"] += 1
        try:
            told = await clients.attempt(f"stranger's {name}", work, stubborn=True)
        except (InstanceNotFound, WorkflowNotFound):
            hold(_HOLDS, True)
        else:
            hold(_HOLDS, False, name, told)


def _asks(account: str, id: str) -> dict[str, Callable[[FrontEnd], Awaitable[Any]]]:
    def ask(method: str, *args: Any, **options: Any) -> Callable[[FrontEnd], Awaitable[Any]]:
        return partial(_call, method, (account, _WORKFLOW, id, *args), options)

    return {
        "view": ask("get_instance"),
        "event": ask("send_event", "order", b"0", request_id="stranger-event"),
        "pause": ask("change_status", "pause", request_id="stranger-pause"),
        "terminate": ask("change_status", "terminate", request_id="stranger-end"),
        "delete": ask("delete_instance", request_id="stranger-delete"),
    }


def _call(
    method: str, args: tuple[Any, ...], options: dict[str, Any], front: FrontEnd
) -> Awaitable[Any]:
    asked: Awaitable[Any] = getattr(front.plane, method)(*args, **options)
    return asked


ITEM = Walls
