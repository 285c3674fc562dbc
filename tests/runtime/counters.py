"""Entities that tests of a host play with, on virtual time (`simloop`)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from toque.runtime import limits
from toque.runtime.entity import DurableObject
from toque.runtime.errors import InvalidArgument
from toque.runtime.ids import EntityRef
from toque.runtime.outbox import REPEATABLE, Letter
from toque.runtime.storage import KV


class Pair(msgspec.Struct, array_like=True):
    left: int
    right: str


class Counter(DurableObject):
    """Counts, in the key-value storage."""

    made = 0
    evicted: list[str] = []

    def __init__(self, ctx: Any, env: Any) -> None:
        super().__init__(ctx, env)
        Counter.made += 1
        self.inside = 0

    def on_evict(self) -> None:
        Counter.evicted.append(self.ctx.ref.key)

    async def add(self, by: int) -> int:
        value = await self.ctx.storage.get("n", 0) + by
        await self.ctx.storage.put("n", value)
        return value

    async def value(self) -> int:
        return await self.ctx.storage.get("n", 0)

    async def add_and_raise(self) -> None:
        await self.add(1)
        raise InvalidArgument("after the write", {"wrote": 1})

    async def bug(self) -> None:
        raise RuntimeError("a bug")

    def typed(self, pair: Pair, times: int = 2) -> str:
        return pair.right * times

    async def slow_alone(self) -> int:
        async def work() -> int:
            self.inside += 1
            await asyncio.sleep(1)
            self.inside -= 1
            return self.inside

        return await self.ctx.block_concurrency_while(work)

    async def slow_failing(self) -> None:
        async def work() -> None:
            await asyncio.sleep(0.1)
            raise RuntimeError("start-up failed")

        await self.ctx.block_concurrency_while(work)

    async def add_slowly(self, by: int) -> None:
        await asyncio.sleep(1.5 * limits.CALL_TIMEOUT_MS / 1_000)
        await self.add(by)

    def pass_on_slowly(self, key: str) -> None:
        self.ctx.tell(EntityRef("Counter", key), "add_slowly", 1)

    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "rested"

    async def via(self, keys: list[str]) -> Any:
        if not keys:
            return await self.ctx.storage.get("n", 0)
        return await self.ctx.stub("Counter", keys[0]).via(keys[1:])

    def pass_on(self, key: str, by: int) -> None:
        self.ctx.tell(EntityRef("Counter", key), "add", by)

    def pass_on_badly(self, key: str) -> None:
        self.ctx.tell(EntityRef("Counter", key), "add", "no number")
        self.ctx.tell(EntityRef("Counter", key), "add", 1)

    def write_and_tell(self, keys: list[str]) -> None:
        """A row and messages, all or none."""
        letters = [Letter(EntityRef("Counter", key), "note", (self.ctx.ref.key,)) for key in keys]
        key = (*self.ctx.ref, "told")
        self.ctx.write_all([(KV, key, (*key, b"1"))], letters)

    def note(self, who: str) -> str:
        """Does nothing the second time."""
        key = (*self.ctx.ref, who)
        self.ctx.put(KV, (*key, b"1"))
        return REPEATABLE

    def known(self) -> int:
        return len(self.ctx.scan(KV, tuple(self.ctx.ref)))

    def has_told(self) -> bool:
        return self.ctx.has_told()

    def spoil(self, key: str = "") -> None:
        """Write what no column takes, and perhaps tell somebody."""
        if key:
            self.ctx.tell(EntityRef("Counter", key), "add", 100)
        self.ctx.put(KV, (*self.ctx.ref, "bad", 1 << 70))

    def in_background(self, key: str) -> None:
        async def work() -> None:
            await asyncio.sleep(1)
            await self.ctx.storage.put("n", 99)

        self.ctx.wait_until(work())

    def leave(self) -> None:
        self.ctx.evict()


class Timer(DurableObject):
    """Counts alarms; fails the first `fails`."""

    fired: list[tuple[int, int]] = []

    async def set_in(self, in_ms: int, fails: int) -> None:
        await self.ctx.storage.put("fails", fails)
        self.ctx.set_alarm(self.ctx.clock.now_ms() + in_ms)

    async def alarm(self, info: Any) -> None:
        Timer.fired.append((self.ctx.clock.now_ms(), info.retry_count))
        if await self.ctx.storage.get("fails", 0) > info.retry_count:
            raise RuntimeError("not yet")
        await self.ctx.storage.put("done", True)

    async def done(self) -> bool:
        return await self.ctx.storage.get("done", False)

    async def due(self) -> int | None:
        return self.ctx.alarm_due_ms()

    def clear(self) -> None:
        self.ctx.delete_alarm()


CLASSES = {"Counter": Counter, "Timer": Timer}


def ref(key: str, kind: str = "Counter") -> EntityRef:
    return EntityRef(kind, key)


def start_anew() -> None:
    """Forget what was counted in classes."""
    Counter.made, Counter.evicted, Timer.fired = 0, [], []
