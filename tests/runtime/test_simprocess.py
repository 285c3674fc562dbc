"""Processes of a simulation: their own loop, pause and death."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from toque.runtime.simloop import Deadlock, VirtualTimeLoop
from toque.runtime.simprocess import SimProcess


@pytest.fixture
def world() -> Iterator[VirtualTimeLoop]:
    """The loop that drives a simulation."""
    loop = VirtualTimeLoop()
    yield loop
    loop.close()


def advance(world: VirtualTimeLoop, seconds: float) -> None:
    """Let virtual time pass."""
    world.run_until_complete(asyncio.sleep(seconds))


def test_asyncio_works_inside_and_time_is_shared(world: VirtualTimeLoop) -> None:
    first, second = SimProcess("a", world), SimProcess("b", world)
    told: list[Any] = []

    async def work(process: SimProcess) -> None:
        assert asyncio.get_running_loop() is process
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(5)
        except TimeoutError:
            told.append((process.name, process.time()))
        both = await asyncio.gather(asyncio.sleep(1, 1), asyncio.sleep(2, 2))
        told.append((process.name, both, process.time()))

    for process in (first, second):
        process.create_task(work(process))
    advance(world, 10)
    assert sorted(told[:2]) == [("a", 1.0), ("b", 1.0)]
    assert sorted(told[2:]) == [("a", [1, 2], 3.0), ("b", [1, 2], 3.0)]


def test_what_falls_due_during_a_pause_runs_late_and_in_order(world: VirtualTimeLoop) -> None:
    process = SimProcess("a", world)
    told: list[Any] = []
    for at in (1, 2, 3, 9):
        process.call_at(at, lambda at=at: told.append((at, world.time())))
    cancelled = process.call_at(2.5, lambda: told.append("never"))
    advance(world, 1.5)
    process.pause()
    advance(world, 5)
    cancelled.cancel()
    process.resume()
    advance(world, 5)
    assert told == [(1, 1.0), (2, 6.5), (3, 6.5), (9, 9.0)]


def test_the_dead_do_nothing(world: VirtualTimeLoop) -> None:
    lost: list[Any] = []
    process = SimProcess("a", world, lambda process, context: lost.append(context))
    told: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            process.call_soon(told.append, "after death")

    process.on_death(lambda: told.append("died"))
    process.create_task(work())
    never_begun = process.create_task(work())
    process.call_later(3, told.append, "later")
    world.call_soon(process.kill)
    advance(world, 10)
    assert told == ["died"]
    assert process.is_closed()
    assert not never_begun.done()
    process.call_soon(told.append, "too late")
    process.on_death(lambda: told.append("died before"))
    advance(world, 1)
    assert told == ["died", "died before"]
    assert lost == []


def test_errors_of_the_living_are_told(world: VirtualTimeLoop) -> None:
    lost: list[Any] = []
    process = SimProcess("a", world, lambda process, context: lost.append(context["exception"]))
    process.call_soon(lambda: 1 // 0)
    advance(world, 1)
    assert [type(error) for error in lost] == [ZeroDivisionError]


def test_who_turns_for_ever_while_no_time_passes_is_noticed() -> None:
    class Watched(VirtualTimeLoop):
        turns_max = 100

    world = Watched()
    process, runs = SimProcess("a", world), 0

    def again() -> None:
        nonlocal runs
        runs += 1
        process.call_soon(again) if runs > 300 else process.call_later(0.01, again)

    process.call_soon(again)
    with pytest.raises(Deadlock, match="turned 100 times"):
        advance(world, 10)
    assert 390 < runs < 410
    world.close()


def test_time_does_not_jump_to_own_timers_that_were_cancelled(world: VirtualTimeLoop) -> None:
    timers = [world.call_later(number, runs_never) for number in range(1, 400)]
    kept: list[float] = []
    world.call_later(200.5, lambda: kept.append(world.time()))
    for timer in timers:
        timer.cancel()
    advance(world, 300)
    assert kept == [200.5]
    assert world.jumps == 2


def runs_never() -> None:
    raise AssertionError("it was cancelled")
