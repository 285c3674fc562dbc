"""An entity of one's own: a counter that is addressed by name and forgets nothing.

    python examples/durable_object.py

No other event comes in while an entity waits for its storage, so `add` needs no lock. Its answer
leaves only when what it wrote is on disk. Its alarm comes at least once, also if the process is
down when it is due.

Who runs the runtime reaches an entity, as here by `runtime.object`. A server (`toque dev`,
`toque up`) has no path for it: serve it from a program of yours that hosts the runtime.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import toque
from toque.runtime.entity import AlarmInfo

REST_MS = 50


class Counter(toque.DurableObject):
    """Counts, and rings after a rest in which nobody has added anything."""

    async def add(self, amount: int) -> int:
        """Add to the counter; gives the new value."""
        total = await self.value() + amount
        await self.ctx.storage.put("total", total)
        self.ctx.set_alarm(self.ctx.clock.now_ms() + REST_MS)
        return total

    async def value(self) -> int:
        """The value as it stands."""
        return int(await self.ctx.storage.get("total", 0))

    async def rung(self) -> int:
        """The value at which the alarm rang last; 0 if it never did."""
        return int(await self.ctx.storage.get("rung", 0))

    async def alarm(self, info: AlarmInfo) -> None:
        await self.ctx.storage.put("rung", await self.value())


async def main(data: Path) -> tuple[int, int]:
    """Two counters: one is added to by many at once, and is the same after a restart."""
    async with toque.embedded(data, [Counter]) as runtime:
        apples, pears = runtime.object("Counter", "apples"), runtime.object("Counter", "pears")
        await asyncio.gather(*(apples.add(1) for _ in range(100)), pears.add(5))
    async with toque.embedded(data, [Counter]) as runtime:
        apples, pears = runtime.object("Counter", "apples"), runtime.object("Counter", "pears")
        while not await pears.rung():
            await asyncio.sleep(REST_MS / 1000)
        return await apples.value(), await pears.rung()


if __name__ == "__main__":
    print(*asyncio.run(main(Path(".toque/durable_object"))))
