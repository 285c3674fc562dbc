"""What runs in the stores of older formats. It stays as it is: what was begun must end by it."""

from __future__ import annotations

import asyncio
from typing import Any

from toque import workflow
from toque.runtime.entity import AlarmInfo, DurableObject

Held = asyncio.Event
held: dict[asyncio.AbstractEventLoop, Held] = {}
"""By loop: what the body of `holds` waits for."""


@workflow
async def adds(event: Any, step: Any) -> int:
    first = await step.do("first", lambda: event.payload + 1)
    second = await step.do("second", lambda: [first, "zwei", {"drei": 3.5}])
    return int(await step.do("third", lambda: second[0] + 1))


@workflow
async def fails(event: Any, step: Any) -> None:
    def body() -> None:
        raise LookupError("nothing there")

    await step.do("look", body, {"retries": {"limit": 0}})


@workflow
async def sleeps(event: Any, step: Any) -> list[Any]:
    before = await step.do("before", lambda: "before")
    await step.sleep("long", "1 hour")
    early = await step.wait_for_event("early", "early", timeout="1 hour")
    return [before, early.payload, await step.do("after", lambda: "after")]


@workflow
async def asks(event: Any, step: Any) -> str:
    name = await step.do("name", lambda: event.payload["name"])
    answer = await step.wait_for_event("answer", "answer", timeout="10 days")
    return f"{name}: {answer.payload}"


@workflow
async def holds(event: Any, step: Any) -> str:
    async def body() -> str:
        await held[asyncio.get_running_loop()].wait()
        return "let go"

    return str(await step.do("hold", body))


class Counter(DurableObject):
    """A user's entity: counts, and counts once more when its alarm fires."""

    async def add(self, by: int) -> int:
        total: int = (await self.ctx.storage.get("total", 0)) + by
        await self.ctx.storage.put("total", total)
        return total

    async def add_later(self, by: int, in_ms: int) -> None:
        await self.ctx.storage.put("later", by)
        self.ctx.set_alarm(self.ctx.clock.now_ms() + in_ms)

    async def alarm(self, info: AlarmInfo) -> None:
        await self.add(await self.ctx.storage.get("later", 0))


FLOWS = (adds, fails, sleeps, asks, holds)
