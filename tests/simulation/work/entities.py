"""Users' own entities: clients pay into tills, and read what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from toque.runtime.errors import StoreFailed, SystemFault
from toque.runtime.ids import EntityRef
from toque.testkit.parts import FrontEnd, FrontEndDied

from ..clients import Clients
from ..entities import Book, Till
from .base import Work

_CLIENTS = 3
_CALLS = 6
_CHANGES_NOTHING = "a row that can't be stored changes nothing"


class _Model:
    """What clients were told of one till."""

    def __init__(self, key: str, book: str) -> None:
        self.ref = EntityRef(Till.KIND, key)
        self.book = book
        self.paid: dict[str, tuple[int, list[int]]] = {}  # amount, and the answer
        self.taken: dict[str, tuple[int, int]] = {}
        self.audits: set[int] = set()
        self.seen = 0

    def known(self) -> int:
        """How many payments there are at least."""
        return max([self.seen, *(answer[0] for _, answer in self.paid.values())])


class Entities(Work):
    """See the module."""

    name = "entities"
    part_of = 45
    counts = (
        *("paid", "audited", "taken out", "nothing was left", "compared"),
        "a row could not be stored",
    )

    def begin(self) -> Iterable[Awaitable[None]]:
        self._models = [
            _Model(f"{account}/till", f"{account}/book{number}")
            for number, account in enumerate(self.run.plan.accounts)
        ]
        on = self.world.switches.on
        audits = [
            self._audits(model, f"{model.ref.key} audits")
            for model in self._models
            if on(f"{model.ref.key} audits")
        ]
        return audits + [
            self._client(model, f"{model.ref.key} {number}")
            for model in self._models
            for number in range(_CLIENTS)
            if on(f"{model.ref.key} {number}")
        ]

    async def _client(self, model: _Model, name: str) -> None:
        chance, clients = self.run.chance(name), Clients(self.world, name)
        for number in range(_CALLS):
            await asyncio.sleep(chance.random() ** 2 * 15)
            what = chance.randrange(10)
            request = f"{name.replace(' ', '-')}-{number}"
            if what < 6:
                await self._pay(clients, model, request, 1 + chance.randrange(9))
            elif what < 8:
                await self._take(clients, model, request, 1 + chance.randrange(12))
            elif what == 8:
                await self._read(clients, model)
            elif number % 2:
                await self._compare(clients, model)
            else:
                await self._spoil(clients, model, request)

    async def _audits(self, model: _Model, name: str) -> None:
        """Several at the same time."""
        chance, clients = self.run.chance(name), Clients(self.world, name)
        for number in range(4):
            await asyncio.sleep(chance.random() * 9)
            requests = [f"{name.replace(' ', '-')}-{number}-{n}" for n in range(_CLIENTS)]
            await asyncio.gather(*(self._audit(clients, model, each) for each in requests))

    async def _ask(self, clients: Clients, model: _Model, method: str, *args: Any) -> Any:
        async def work(front: FrontEnd) -> Any:
            return await front.router.call(model.ref, method, *args)

        return await clients.attempt(f"{method} {model.ref.key}", work, stubborn=True)

    async def _pay(self, clients: Clients, model: _Model, request: str, amount: int) -> None:
        known = model.known()
        answer = await self._ask(clients, model, "pay", request, amount, model.book)
        self.world.faults["paid"] += 1
        hold = self.world.promises.hold
        told = f"{model.ref.key} {request}: {answer}, {known} were known"
        hold("an entity forgets nothing that it told", answer[0] > known, told)
        taken = [number for _, (number, _) in model.paid.values()]
        hold("an entity loses no update", answer[0] not in taken, told)
        model.paid[request] = (amount, list(answer))

    async def _take(self, clients: Clients, model: _Model, request: str, amount: int) -> None:
        left = await self._ask(clients, model, "empty", request, amount)
        if left < 0:
            self.world.faults["nothing was left"] += 1
        else:
            self.world.faults["taken out"] += 1
            model.taken[request] = (amount, left)

    async def _audit(self, clients: Clients, model: _Model, request: str) -> None:
        number = await self._ask(clients, model, "audit", request, model.book)
        self.world.faults["audited"] += 1
        is_new = number not in model.audits
        told = f"{model.ref.key} {request}: {number} of {sorted(model.audits)}"
        self.world.promises.hold("an entity loses no update", is_new, told)
        model.audits.add(number)

    async def _spoil(self, clients: Clients, model: _Model, request: str) -> None:
        """Ask for what can't be; who is paid at the same time may hear of it, and is paid again."""
        world = self.world
        fronts = world.fronts
        front = fronts[clients.entropy.randrange(len(fronts))]
        pay = self._pay(clients, model, f"{request}-beside", 1)
        beside = asyncio.ensure_future(pay)
        told: object = "was told that all is well"
        try:
            await world.ask(front, lambda: _spoil(front, model))
        except StoreFailed:
            world.faults["a row could not be stored"] += 1
            told = None
        except (SystemFault, FrontEndDied):
            told = None  # nobody knows
        world.promises.hold(_CHANGES_NOTHING, told is None, model.ref.key, request, told)
        await beside

    async def _read(self, clients: Clients, model: _Model) -> list[int]:
        known = model.known()
        found: list[int] = await self._ask(clients, model, "read")
        self._saw(model, found[0], known)
        return found

    async def _compare(self, clients: Clients, model: _Model) -> None:
        known = model.known()
        count, total, noted, sum_noted = await self._ask(clients, model, "compare", model.book)
        self.world.faults["compared"] += 1
        self._saw(model, count, known)
        self.world.promises.hold(
            "an entity's messages arrive once and in order",
            noted >= 0 and (noted != count or sum_noted == total),
            f"{model.ref.key}: {count}, {total} are paid and {noted}, {sum_noted} are noted",
        )

    def _saw(self, model: _Model, count: int, known: int) -> None:
        self.world.promises.hold(
            "an entity forgets nothing that it told",
            count >= known,
            f"{model.ref.key}: {count} after {known}",
        )
        model.seen = max(model.seen, count)

    async def judge(self) -> None:
        clients = Clients(self.world, "entities at the end")
        for model in self._models:
            await self._judge(clients, model)

    async def _judge(self, clients: Clients, model: _Model) -> None:
        hold, key = self.world.promises.hold, model.ref.key
        spoilt, shared, bad = await self._ask(clients, model, "spoilt")
        is_well = spoilt is None and bad is None and (shared is None or shared > 0)
        hold(_CHANGES_NOTHING, is_well, key, spoilt, shared, bad)
        for request, (amount, answer) in model.paid.items():
            again = await self._ask(clients, model, "pay", request, amount, model.book)
            hold("an entity's answer stays", list(again) == answer, key, request, again, answer)
        count, total, rung = await self._read(clients, model)
        told = f"{key}: {count}, {total} of {len(model.paid)}"
        amounts = sum(amount for amount, _ in model.paid.values())
        hold("an entity loses no update", (count, total) == (len(model.paid), amounts), told)
        so_far = 0
        for amount, (number, after) in sorted(model.paid.values(), key=lambda paid: paid[1]):
            so_far += amount
            hold("an entity loses no update", after == so_far, key, number, after, so_far)
        out = sum(amount for amount, _ in model.taken.values())
        hold("a transaction takes what is there", out <= total, key, out, total)
        hold("an entity's alarm comes", rung == count, key, rung, count)
        book = EntityRef(Book.KIND, model.book)

        async def of_book(front: FrontEnd) -> Any:
            noted = await front.router.call(book, "of_till", key)
            return noted, await front.router.call(book, "wrong")

        noted, wrong = await clients.attempt(f"read {model.book}", of_book, stubborn=True)
        hold(
            "an entity's messages arrive once and in order",
            list(noted) == [count, total] and not wrong,
            f"{key}: {noted} of {count}, {total}; {wrong}",
        )


async def _spoil(front: FrontEnd, model: _Model) -> None:
    await front.router.call(model.ref, "spoil", "bad")


ITEM = Entities
