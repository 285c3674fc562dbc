"""A saga: three bookings that hold together, undone in reverse order when one of them fails.

    python examples/saga.py

Each step says how it is undone. If the trip fails, rollbacks run one at a time, the newest step's
first, the failed one included, with retries of their own; a crash in between repeats none. A trip
that is cancelled gives its traveller notice first: what stands in a shield is not cut off.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import toque

ledger: list[str] = []
"""What the outside world has been told; a real one would be a service."""


@dataclass
class Order:
    """The params: where to, and whether the card is good."""

    city: str
    card: str = "good"


class Trip(toque.WorkflowEntrypoint):
    """Books hotel and flight at once, then pays; all of it, or none."""

    async def run(self, event: toque.WorkflowEvent[Order], step: toque.WorkflowStep) -> str:
        city, card = event.payload.city, event.payload.card

        def book(what: str) -> str:
            ledger.append(f"book {what}")
            return f"{what} in {city}"

        def give_back(ctx: toque.StepContext, output: str | None) -> None:
            ledger.append(f"give back {output or ctx.step}")

        def pay() -> None:
            if card != "good":
                raise toque.NonRetryableError(f"the card is {card}")

        async with asyncio.TaskGroup() as both:
            for what in ("hotel", "flight"):
                both.create_task(step.do(what, lambda what=what: book(what), rollback=give_back))
        try:
            await step.wait_for_event("confirm", "confirmed", timeout="1 hour")
        except asyncio.CancelledError:
            async with step.shield():
                await step.do("tell", lambda: ledger.append(f"sorry, no {city}"))
            raise
        await step.do("pay", pay, rollback=lambda: ledger.append("no charge"))
        return f"off to {city}"


async def main(data: Path) -> list[str]:
    """What became of four trips, and what the world was told of those that failed."""
    told: list[str] = []
    async with toque.embedded(data, [Trip]) as runtime:
        client = runtime.client()
        for city, card in (("Rome", "good"), ("Oslo", "stolen")):
            trip = await client.create_instance("Trip", params=Order(city, card))
            await trip.send_event("confirmed")
            ended = await trip.wait()
            told.append(ended.output if ended.error is None else ended.error.message)
        told.append(f"rollback {ended.rollback.outcome}" if ended.rollback else "no rollback")
        undone = [line for line in ledger if not line.startswith("book")]

        trip = await client.create_instance("Trip", "bergen", Order("Bergen"))
        await until(trip, "waiting")
        await trip.cancel()
        ended = await trip.wait()
        told.append(f"{ended.status}: {ended.error.name if ended.error else ''}; {ledger[-1]}")

        await trip.restart()  # the same order once more
        await until(trip, "waiting")
        await trip.pause()
        await trip.send_event("confirmed")
        told.append((await trip.status()).status)
        await trip.resume()
        told.append((await trip.wait()).output)
        await trip.delete()
    return [*told, *undone]


async def until(instance: toque.Instance, status: str) -> None:
    """Wait until an instance has a status."""
    while (await instance.status()).status != status:
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    print(*asyncio.run(main(Path(".toque/saga"))), sep="\n")
