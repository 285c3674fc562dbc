"""Worker slots: first come, first served, a reserve for other accounts, nothing lost."""

from __future__ import annotations

import asyncio

from toque.engines.worker_slots import WorkerSlots


async def settled(*tasks: asyncio.Task[None]) -> list[bool]:
    """Which have a place once all that can go on has."""
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() and not task.cancelled() for task in tasks]


def asked(slots: WorkerSlots, *accounts: str) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(slots.acquire(account)) for account in accounts]


async def test_one_account_leaves_some_to_others() -> None:
    slots = WorkerSlots(4, 1)
    greedy = asked(slots, "a", "a", "a", "a", "a")
    assert await settled(*greedy) == [True, True, True, False, False]
    other = asked(slots, "b")
    assert await settled(*other) == [True], "it waits for nobody"
    slots.release("b")
    assert await settled(*greedy) == [True, True, True, False, False]
    slots.release("a")
    assert await settled(*greedy) == [True, True, True, True, False], "in their order"
    greedy[-1].cancel()
    assert await settled(*greedy) == [True, True, True, True, False]


async def test_who_is_cancelled_takes_no_place_with_it() -> None:
    slots = WorkerSlots(1, 0)
    first, second, third, fourth = asked(slots, "a", "a", "b", "a")
    assert await settled(first, second) == [True, False]
    second.cancel()
    slots.release("a")
    assert await settled(second, third) == [False, True]
    slots.release("b")
    fourth.cancel()  # it was given the place, and has not heard of it
    assert await settled(fourth) == [False]
    assert await settled(*asked(slots, "a")) == [True]
