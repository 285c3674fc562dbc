"""What the victims of fault points host: entities whose state says which calls took effect.

A ledger adds `4^n` for deposit `n`. Written in base 4 its sum has a digit for each deposit: 0 it
did not take effect, 1 it did, 2 it did twice. Each deposit also tells a second ledger, on whatever
shard that lives, through the outbox, and sets an alarm that notes the sum it saw. `Three` is a
workflow of three steps whose bodies note their beginning and end (see flow).
"""

from __future__ import annotations

from typing import Any

import toque
from tests.recovery import flow
from toque.runtime.entity import AlarmInfo
from toque.runtime.ids import EntityRef

BASE = 4
KEYS = ("left", "right")


class Ledger(toque.DurableObject):
    """Sums of powers of four; see the module's description."""

    async def deposit(self, number: int) -> str:
        """Take deposit `number`; gives the sum, as hexadecimal text."""
        total = await self._add("sum", number)
        self.ctx.tell(EntityRef(self.KIND, f"{self.ctx.ref.key}-copy"), "copy", number)
        self.ctx.set_alarm(self.ctx.clock.now_ms())
        return f"{total:x}"

    async def add(self, number: int) -> str:
        """As `deposit`, and tell nobody."""
        return f"{await self._add('sum', number):x}"

    async def copy(self, number: int) -> None:
        """The other ledger has taken a deposit."""
        await self._add("sum", number)

    async def read(self) -> list[str]:
        """The sum, and the sum that the alarm saw last."""
        storage = self.ctx.storage
        return [str(await storage.get("sum", "0")), str(await storage.get("rung", "0"))]

    async def alarm(self, info: AlarmInfo) -> None:
        await self.ctx.storage.put("rung", await self.ctx.storage.get("sum", "0"))

    async def _add(self, name: str, number: int) -> int:
        total = int(str(await self.ctx.storage.get(name, "0")), 16) + BASE**number
        await self.ctx.storage.put(name, f"{total:x}")
        return total


def effects(total: str) -> dict[int, int]:
    """By deposit, how often it took effect; those that did not are left out."""
    left, number, found = int(total, 16), 0, {}
    while left:
        left, digit = divmod(left, BASE)
        if digit:
            found[number] = digit
        number += 1
    return found


class Three(toque.WorkflowEntrypoint):
    """Three steps, one after the other; returns their values."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> list[str]:
        values = []
        for number in range(3):

            async def body(number: int = number) -> str:
                return await flow.work(event.payload, event.instance_id, number, lasts_s=0)

            values.append(await step.do(f"step-{number}", body))
        return values
