"""Steps that fail: retries with backoff, an error that no retry can help, and a fallback.

    python examples/retries.py

`quote` asks three carriers. One answers at the third attempt, one is down for good, one refuses
the parcel with `NonRetryableError` and is asked once only. The instance completes with what it
got, and its record shows every attempt.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import toque

RETRY = {
    "retries": {"limit": 2, "delay": "20 ms", "backoff": "exponential"},
    "timeout": "5 seconds",
}


@dataclass
class Quotes:
    """What each carrier asks, and why the others ask nothing."""

    prices: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)


def ask(carrier: str, attempt: int) -> float:
    """A carrier's price; stands for a call over the network."""
    if carrier == "swift" and attempt <= 2:
        raise ConnectionError(f"no answer, attempt {attempt}")
    if carrier == "cheap":
        raise ConnectionError("down for maintenance")
    if carrier == "grand":
        raise toque.NonRetryableError("the parcel is too heavy")
    return 12.5


@toque.workflow
async def quote(event: toque.WorkflowEvent[list[str]], step: toque.WorkflowStep) -> Quotes:
    """The prices of all carriers that can be had."""
    quotes = Quotes()
    for carrier in event.payload:

        async def body(ctx: toque.StepContext, carrier: str = carrier) -> float:
            return ask(carrier, ctx.attempt)

        try:
            quotes.prices[carrier] = await step.do(f"ask {carrier}", body, RETRY)
        except ConnectionError as error:
            quotes.refusals[carrier] = str(error)
        except toque.NonRetryableError as error:
            quotes.refusals[carrier] = str(error)
    return quotes


async def main(data: Path) -> tuple[Quotes, dict[str, int]]:
    """The quotes, and how many attempts each step took."""
    async with toque.embedded(data, [quote]) as runtime:
        client = runtime.client()
        instance = await client.create_instance("quote", params=["swift", "cheap", "grand"])
        await instance.wait(raise_on_error=True)
        status = await instance.status()
        attempts = {step.name: step.attempts_total for step in status.steps}
        return status.output_as(Quotes), attempts


if __name__ == "__main__":
    print(*asyncio.run(main(Path(".toque/retries"))), sep="\n")
