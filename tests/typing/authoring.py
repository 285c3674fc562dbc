"""What type checkers see of a workflow; checked by `make check`, never run.

`assert_type` fails the check when an inferred type is another.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

import toque


@dataclass
class Order:
    """Params."""

    amount: int


@toque.workflow
async def plain(event: toque.WorkflowEvent[Order], step: toque.WorkflowStep) -> int:
    """A decorated function stays what it is."""
    assert_type(event.payload, Order)

    async def load() -> list[int]:
        return [event.payload.amount]

    numbers = await step.do("load", load)
    assert_type(numbers, list[int])
    assert_type(await step.do("sum", lambda: sum(numbers)), int)

    @step.do("declared")
    async def declared() -> str:
        return ""

    @step.do
    def bare(declared: str) -> bytes:
        return b""

    assert_type(await declared(), str)
    assert_type(await bare(), bytes)
    assert_type(await bare, bytes)

    untyped = await step.wait_for_event("any", "any")
    assert_type(untyped, toque.ReceivedEvent[Any])
    typed = await step.wait_for_event("order", "order", payload_type=Order)
    assert_type(typed.payload, Order)

    child = await step.start_child("child", Counting, Order(1))
    assert_type(child, toque.Child[int])
    assert_type(await child.result(), int)
    assert_type(await step.run_child("child", Counting), int)
    assert_type(await step.run_child("child", named), None)
    assert_type(await step.join("all", [child]), list[int])
    assert_type(await step.join("first", [child], mode="first"), int)
    assert_type(await step.run_child("child", "by-name", id="c", on_parent_end="abandon"), Any)
    return 1


class Counting(toque.WorkflowEntrypoint):
    """A child."""

    async def run(self, event: toque.WorkflowEvent[Order], step: toque.WorkflowStep) -> int:
        return 1


@toque.workflow(name="named")
async def named(event: toque.WorkflowEvent[None], step: toque.WorkflowStep) -> None:
    """With a name it stays what it is, too."""


Plain = Callable[[toque.WorkflowEvent[Order], toque.WorkflowStep], Coroutine[Any, Any, int]]
as_before: Plain = plain


async def client(instance: toque.Instance) -> None:
    """Outputs."""
    assert_type(await instance.output(Order), Order)
    assert_type((await instance.status()).output_as(Order), Order)
