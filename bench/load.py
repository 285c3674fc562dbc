"""Load at a fixed rate, and one call after another; each gives how long its calls took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def open_loop(
    rate: float, until: Callable[[], bool], act: Callable[[int], Awaitable[Any]]
) -> list[float]:
    """`act(n)` at a rate until told to stop; milliseconds of each from the time it was due."""
    loop = asyncio.get_running_loop()
    start, number = loop.time(), 0
    took: list[float] = []
    under_way: set[asyncio.Task[None]] = set()

    async def one(n: int, due: float) -> None:
        await act(n)
        took.append((loop.time() - due) * 1000)

    while not until():
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - loop.time()))
        task = loop.create_task(one(number, due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        number += 1
    await asyncio.gather(*under_way)
    return took


async def one_by_one(n: int, act: Callable[[int], Awaitable[Any]]) -> list[float]:
    """`act` so many times, each after the last; milliseconds of each."""
    took = []
    for number in range(n):
        start = time.perf_counter()
        await act(number)
        took.append((time.perf_counter() - start) * 1000)
    return took
