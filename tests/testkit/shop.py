"""Workflows that the tests of the test kit test."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from toque import DurableObject, WorkflowEntrypoint, WorkflowEvent, WorkflowStep, workflow


@dataclass
class Cart:
    """What is ordered."""

    total: int
    country: str = "FR"


class Receipt(BaseModel):
    """What the customer gets."""

    paid: int
    parcel: str


class Order(WorkflowEntrypoint):
    """Charges, waits three days, waits for the event `packed`, ships."""

    async def run(self, event: WorkflowEvent[Cart], step: WorkflowStep) -> Receipt:
        """See the class."""
        cart = event.payload

        async def charge() -> int:
            return cart.total

        paid = await step.do("charge", charge)
        await step.sleep("cool off", "3 days")
        packed = await step.wait_for_event("packed", "packed", timeout="30 days")
        parcel = await step.do("ship", lambda: f"parcel {packed.payload}")
        return Receipt(paid=paid, parcel=parcel)


@workflow
async def two_steps(event: Any, step: Any) -> list[Any]:
    """One synchronous body and one that takes five minutes."""

    async def slow() -> str:
        await asyncio.sleep(300)
        return "slow"

    return [await step.do("quick", lambda: "quick"), await step.do("slow", slow)]


@workflow
async def parallel(event: Any, step: Any) -> list[str]:
    """The order in which three bodies end."""
    ended: list[str] = []

    async def one(name: str) -> None:
        async def body() -> None:
            await asyncio.sleep(0.1)

        await step.do(name, body)
        ended.append(name)

    await asyncio.gather(one("a"), one("b"), one("c"))
    return ended


class Counter(DurableObject):
    """Counts."""

    async def add(self, by: int) -> int:
        """The sum so far."""
        total = await self.ctx.storage.get("total", 0) + by
        await self.ctx.storage.put("total", total)
        return int(total)
