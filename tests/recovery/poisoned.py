"""A process one of whose entities ends it whenever its alarm fires or a message comes.

    python -m tests.recovery.poisoned DATA FIRST TRIGGER

Takes additions FIRST, FIRST + 1, ... into a ledger of the same shard and prints each number that
was acknowledged. In the first life (FIRST 0) it also poisons itself, by TRIGGER: `alarm` or
`message`. Ends with 3 when the poison works, with 0 after `ADDS_MAX` additions.
"""

from __future__ import annotations

import asyncio
import os
import sys

import toque
from tests.recovery import flow
from tests.recovery.ledger import Ledger
from toque.runtime import limits
from toque.runtime.entity import AlarmInfo
from toque.runtime.ids import EntityRef

ADDS_MAX = 3_000
PAUSE_MS = 400


class Poison(toque.DurableObject):
    """Ends its process."""

    async def take(self, trigger: str) -> None:
        """From now on."""
        await self.ctx.storage.put("taken", trigger)
        if trigger == "alarm":
            self.ctx.set_alarm(self.ctx.clock.now_ms() + PAUSE_MS)
        else:
            self.ctx.tell(EntityRef(self.KIND, "other"), "end")

    async def end(self) -> None:
        """As its alarm does, after some turns of the loop."""
        await self.ctx.storage.get("taken")
        os._exit(3)

    async def alarm(self, info: AlarmInfo) -> None:
        await self.end()


async def main(data: str, first: int, trigger: str) -> None:
    limits.ALARM_BACKOFF_MIN_MS = limits.BLAMED_PAUSE_MS = PAUSE_MS
    async with toque.embedded(data, [Ledger, Poison]) as runtime:
        ledger = runtime.object(Ledger.KIND, "left")
        if not first:
            await runtime.object(Poison.KIND, "one").take(trigger)
        for number in range(first, first + ADDS_MAX):
            await ledger.add(number)
            print(number, flush=True)
            await flow.work_for(0.005)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
