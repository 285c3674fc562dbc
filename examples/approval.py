"""Waiting for a person: an order over a limit waits for an event, and gives up in the end.

    python examples/approval.py

While it waits an instance holds neither a slot nor memory, for a year if need be. An event that
comes before the wait is kept for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import toque


@dataclass
class Order:
    """The params: what is bought, and how long to wait for leave."""

    item: str
    amount: float
    patience: str = "3 days"


class Purchase(toque.WorkflowEntrypoint):
    """Buys at once what is cheap, and asks about the rest."""

    async def run(self, event: toque.WorkflowEvent[Order], step: toque.WorkflowStep) -> str:
        order = event.payload
        if order.amount > 100:
            try:
                answer = await step.wait_for_event("leave", "decision", timeout=order.patience)
            except toque.EventTimeout:
                return "nobody answered"
            if not answer.payload["approved"]:
                return f"refused by {answer.payload['by']}"
        return await step.do("buy", lambda: f"bought {order.item}")


async def main(data: Path) -> list[str]:
    """What became of four orders."""
    async with toque.embedded(data, [Purchase]) as runtime:
        client = runtime.client()
        pen = await client.create_instance("Purchase", params=Order("pen", 2))
        desk = await client.create_instance("Purchase", params=Order("desk", 400))
        yacht = await client.create_instance("Purchase", params=Order("yacht", 9e5))
        lamp = await client.create_instance("Purchase", params=Order("lamp", 101, "10 ms"))
        await desk.send_event("decision", {"approved": True, "by": "Kim"})
        await yacht.send_event("decision", {"approved": False, "by": "Kim"})
        ended = [await order.wait(raise_on_error=True) for order in (pen, desk, yacht, lamp)]
        return [status.output for status in ended]


if __name__ == "__main__":
    print(*asyncio.run(main(Path(".toque/approval"))), sep="\n")
