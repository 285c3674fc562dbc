"""Users' own entities, as an author would write them: storage, an alarm, the outbox, calls.

A `Till` takes payments and tells a `Book` of each, through the outbox. It has no locks: whatever it
reads and writes in one event nobody else changes between. A `Book` notes what it is told. Tills
have tables, too, with a row that all share, and may write what no table takes.
"""

from __future__ import annotations

from typing import Any, ClassVar

from toque.runtime.entity import AlarmInfo, DurableObject
from toque.runtime.ids import EntityRef
from toque.runtime.tables import Table

RING_AFTER_MS = 1_500
SHARED = Table("till_shared", (("scope", "TEXT"), ("total", "INTEGER")), key_size=1)
BAD = Table("till_bad", (("till", "TEXT"), ("number", "INTEGER")), key_size=1)
TOO_MUCH = 1 << 70
"""No column takes it."""


class Till(DurableObject):
    """Takes payments; each request counts once."""

    TABLES: ClassVar[tuple[Table, ...]] = (SHARED, BAD)

    async def pay(self, request: str, amount: int, book: str) -> list[int]:
        """Take a payment; gives its number and the sum up to it, the same for the same request.

        `book` is told of it, unless it is empty.
        """
        storage = self.ctx.storage
        known = await storage.get(f"paid/{request}")
        if known is not None:
            return list(known)
        number = await storage.get("count", 0) + 1
        total = await storage.get("total", 0) + amount
        await storage.put("count", number)
        await storage.put("total", total)
        await storage.put(f"paid/{request}", [number, total])
        if book:
            self.ctx.tell(EntityRef(Book.KIND, book), "note", self.ctx.ref.key, number, amount)
        self.ctx.set_alarm(self.ctx.clock.now_ms() + RING_AFTER_MS)
        if amount % 2:  # who writes the same row in one commit shares what becomes of it
            self.ctx.put(SHARED, ("all", total))
        return [number, total]

    async def spoil(self, request: str) -> None:
        """Write a row that can't be stored, among others that can."""
        await self.ctx.storage.put("spoilt", request)
        self.ctx.put(SHARED, ("all", -1))
        self.ctx.put(BAD, (self.ctx.ref.key, TOO_MUCH))

    async def spoilt(self) -> Any:
        """What is left of that: nothing."""
        shared = self.ctx.get(SHARED, ("all",))
        bad = self.ctx.get(BAD, (self.ctx.ref.key,))
        return [await self.ctx.storage.get("spoilt"), shared and shared[1], bad]

    async def read(self) -> list[int]:
        """Number of payments, their sum, and the number at which the alarm rang last."""
        found = await self.ctx.storage.get_many(("count", "total", "rung"))
        return [found.get(name, 0) for name in ("count", "total", "rung")]

    async def compare(self, book: str) -> list[int]:
        """What the till has taken, and then what the book has been told of it by a call."""
        count, total, _ = await self.read()
        noted: Any = await self.ctx.stub(Book.KIND, book).of_till(self.ctx.ref.key)
        return [count, total, *noted]

    async def audit(self, request: str, book: str) -> int:
        """Compare with the book, and count that; nothing else comes in meanwhile."""

        async def compare() -> int:
            storage = self.ctx.storage
            known = await storage.get(f"audit/{request}")
            if known is not None:
                return int(known)
            number = await storage.get("audits", 0) + 1
            await self.ctx.stub(Book.KIND, book).of_till(self.ctx.ref.key)
            await storage.put_many({"audits": number, f"audit/{request}": number})
            return int(number)

        return int(await self.ctx.block_concurrency_while(compare))

    async def empty(self, request: str, amount: int) -> int:
        """Take money out if there is enough, in a transaction; gives what is left, or -1."""

        async def take(txn: Any) -> int:
            known = await txn.get(f"taken/{request}")
            if known is not None:
                return int(known)
            left = await txn.get("total", 0) - await txn.get("out", 0) - amount
            if left < 0:
                txn.rollback()
                return -1
            await txn.put("out", await txn.get("out", 0) + amount)
            await txn.put(f"taken/{request}", left)
            return int(left)

        return await self.ctx.storage.transaction(take)

    async def alarm(self, info: AlarmInfo) -> None:
        count = await self.ctx.storage.get("count", 0)
        if info.retry_count < count % 3:
            if count % 2 and not info.retry_count:  # another alarm is set, and then it fails
                self.ctx.set_alarm(self.ctx.clock.now_ms())
            raise ValueError("an author's mistake")
        await self.ctx.storage.put("rung", await self.ctx.storage.get("count", 0))


class Book(DurableObject):
    """Notes what tills tell it."""

    async def note(self, till: str, number: int, amount: int) -> None:
        """Take a message; `wrong` holds each that was not the next one of its till."""
        count, total = await self.ctx.storage.get(till, [0, 0])
        if number != count + 1:
            wrong = await self.ctx.storage.get("wrong", [])
            await self.ctx.storage.put("wrong", [*wrong, [till, count, number]])
        await self.ctx.storage.put(till, [count + 1, total + amount])

    async def of_till(self, till: str) -> list[int]:
        """How many payments of a till are noted, and their sum."""
        return list(await self.ctx.storage.get(till, [0, 0]))

    async def wrong(self) -> list[Any]:
        """Messages that were not the next one."""
        return list(await self.ctx.storage.get("wrong", []))
