"""Lists, walked by cursor while instances are created, and once more in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import partial

from ..clients import Clients
from .base import Work
from .jobs import after


class Lists(Work):
    """See the module."""

    name = "lists"

    def begin(self) -> Iterable[Awaitable[None]]:
        plan, found = self.run.plan, []
        for number in range(3):
            workflow = plan.workflows[number % len(plan.workflows)]
            if self.world.switches.on(f"list {number}"):
                clients = Clients(self.world, f"list {number}")
                walk = partial(clients.list_all, plan.accounts[0], workflow)
                found.append(after(10.0 + 10 * number, walk))
        return found

    async def judge(self) -> None:
        clients = Clients(self.world, "lists at the end")
        for account in self.run.plan.accounts:
            for workflow in self.run.plan.workflows:
                await clients.list_all(account, workflow)


ITEM = Lists
