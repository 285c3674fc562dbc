"""The deterministic core: order of delivery, identity, replay, divergence."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.engines.play import Play, Run
from toque.engines.failures import EventTimeout
from toque.engines.step import WorkflowStep


def nothing() -> Any:
    """A body; the test decides how it ends."""


@pytest.fixture
def play() -> Iterator[Any]:
    """Makes plays, and closes them."""
    made = []

    def make(run: Run) -> Play:
        made.append(Play(run))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_steps_run_one_after_another_and_answer_from_the_record(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        first = await step.do("a", nothing)
        second = await step.do("a", nothing)
        return [first, second]

    it = play(run)
    assert list(it.bodies) == ["a-1"]
    it.finish("a-1", 1)
    assert list(it.bodies) == ["a-2"]
    it.replay()
    assert list(it.bodies) == ["a-2"]
    assert it.records[1].attempt == 2
    it.finish("a-2", 2)
    assert it.output == [1, 2]
    it.replay()
    assert not it.bodies
    assert it.output == [1, 2]


# --- races take the same branch -----------------------------------------------------------------


async def first_completed(step: WorkflowStep) -> Any:
    tasks = {asyncio.create_task(step.do(n, nothing), name=n) for n in "abcd"}
    order = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        order += [task.get_name() for task in done]
        await step.do(f"after {order[-1]}", nothing)
    return order


async def gathered(step: WorkflowStep) -> Any:
    order = []

    async def one(name: str) -> None:
        await step.do(name, nothing)
        order.append(name)
        await step.do("then", nothing)

    await asyncio.gather(*(one(n) for n in "abcd"))
    return order


async def grouped(step: WorkflowStep) -> Any:
    order = []

    async def one(name: str) -> None:
        await step.do(name, nothing)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for n in "abcd":
            group.create_task(one(n))
    return order


async def as_they_complete(step: WorkflowStep) -> Any:
    async def one(name: str) -> str:
        await step.do(name, nothing)
        return name

    order = []
    for soon in asyncio.as_completed([one(n) for n in "abcd"]):
        order.append(await soon)
        await step.do(f"after {order[-1]}", nothing)
    return order


async def by_queue(step: WorkflowStep) -> Any:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def worker(name: str) -> None:
        await step.do(name, nothing)
        await queue.put(name)

    tasks = [asyncio.create_task(worker(n)) for n in "abcd"]
    order = [await queue.get() for _ in tasks]
    await asyncio.gather(*tasks)
    return order


async def by_lock(step: WorkflowStep) -> Any:
    lock, order = asyncio.Lock(), []

    async def one(name: str) -> None:
        await step.do(name, nothing)
        async with lock:
            order.append(name)
            await step.do("locked", nothing)

    await asyncio.gather(*(one(n) for n in "abcd"))
    return order


RACES = [first_completed, gathered, grouped, as_they_complete, by_queue, by_lock]


@pytest.mark.parametrize("run", RACES, ids=lambda run: run.__name__)
@pytest.mark.parametrize("order", list(itertools.permutations("abcd"))[::5], ids="".join)
def test_a_race_takes_the_same_branch_at_each_replay(
    play: Any, run: Run, order: tuple[str, ...]
) -> None:
    it = play(run)
    for name in order:
        it.finish(f"{name}-1", name)
        while others := [known for known in it.bodies if known[0] not in "abcd" or "aft" in known]:
            it.finish(others[0])
    assert it.output == list(order)
    live = it.idents
    for rows in it.history:  # a crash after every turn
        again = Play(run).replay(rows=rows)
        assert again.idents == live[: len(rows)]
        assert again.execution.outcome is None or again.output == list(order)
        again.close()
    assert it.replay().output == list(order)


def test_many_tasks_in_a_set_iterate_alike(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        tasks = {asyncio.create_task(step.do(f"s{n}", nothing), name=f"{n}") for n in range(50)}
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    it = play(run)
    for name in reversed(list(it.bodies)):
        it.finish(name)
    live = it.output
    assert it.replay().output == live


def test_outcomes_of_one_turn_are_released_one_at_a_time(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        flag = []

        async def one(name: str) -> None:
            await step.do(name, nothing)
            flag.append(name)
            if len(flag) == 1:
                await step.do("first only", nothing)

        await asyncio.gather(one("a"), one("b"))
        return flag

    it = play(run)
    it.finish("b-1")
    it.finish("a-1")
    assert list(it.bodies) == ["first only-1"]
    assert it.replay().bodies.keys() == {"first only-1"}
    it.finish("first only-1")
    assert it.output == ["b", "a"]


# --- identity -----------------------------------------------------------------------------------


def test_wait_for_does_not_change_who_a_step_is(play: Any) -> None:
    async def child(step: WorkflowStep) -> Any:
        await step.do("x", nothing)
        return await asyncio.wait_for(step.do("y", nothing), 60)

    async def run(step: WorkflowStep) -> Any:
        await asyncio.wait_for(child(step), 60)
        return await step.do("x", nothing)

    it = play(run)
    it.finish("x-1")
    it.finish("y-1")
    it.finish("x-2")
    assert it.idents == ["!do!x:1", "!do!y:1", "!do!x:2"]  # as without a task (3.12)
    assert it.output is None


def test_public_names_are_fixed_at_first_start(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        async def late() -> Any:
            await step.do("gate", nothing)
            return await step.do("x", nothing)

        task = asyncio.create_task(late())
        await step.do("x", nothing)
        return await task

    it = play(run)
    assert sorted(it.bodies) == ["gate-1", "x-1"]
    it.finish("gate-1")
    it.finish("x-1", "main")
    it.finish("x-2", "late")
    assert it.output == "late"
    assert it.replay().output == "late"


def test_a_do_a_sleep_and_a_wait_may_share_a_name(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.do("x", nothing)
        await step.sleep("x", 1)
        await step.wait_for_event("x", "x")
        return "end"

    it = play(run)
    it.finish("x-1")
    it.advance(1_000)
    it.send("x")
    it.look()
    assert [r.public_name for r in it.records] == ["x-1", "x-1", "x-1"]
    assert it.output == "end"
    assert it.replay().output == "end"


# --- time ---------------------------------------------------------------------------------------


def test_sleeps_end_in_order_of_their_due_times(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        order = []

        async def one(seconds: int) -> None:
            await step.sleep(f"s{seconds}", seconds)
            order.append(seconds)

        await asyncio.gather(*(one(n) for n in (5, 1, 3)))
        return order

    it = play(run)
    it.skip(60_000)  # nobody was there when they fell due
    it.look()
    assert it.output == [1, 3, 5]
    assert it.replay().output == [1, 3, 5]


def test_a_sleep_goes_on_over_a_crash(play: Any) -> None:
    async def run(step: WorkflowStep) -> str:
        await step.sleep("s", "1 minute")
        return "awake"

    it = play(run)
    it.advance(50_000)
    it.replay()
    assert it.execution.outcome is None
    it.advance(9_999)
    assert it.execution.outcome is None
    it.advance(1)
    assert it.output == "awake"


@pytest.mark.parametrize(
    "when", [5.0, 0, datetime(1970, 1, 1, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC)], ids=str
)
def test_sleep_until_the_past_ends_at_once_and_replays(play: Any, when: Any) -> None:
    async def run(step: WorkflowStep) -> str:
        await step.sleep_until("s", when)
        await step.do("a", nothing)
        return "end"

    it = play(run)
    assert it.bodies.keys() == {"a-1"}
    it.skip(1_000)
    it.replay()
    it.finish("a-1")
    assert it.output == "end"


def test_a_sleep_until_the_epoch_holds_nothing_up(play: Any) -> None:
    async def run(step: WorkflowStep) -> bool:
        past = asyncio.create_task(step.sleep_until("past", 0))
        await step.sleep("s", 1)
        return past.done()

    it = play(run)
    it.advance(1_000)
    assert it.output is True


def test_asyncio_timers_are_durable_and_leave_a_record_only_when_they_fire(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(10)
        assert loop.time() == began + 10
        async with asyncio.timeout(60):
            await step.do("a", nothing)
        return loop.time() - began

    it = play(run)
    assert not it.records
    it.advance(10_000)
    assert [record.kind for record in it.records] == ["timer", "do"]
    it.advance(5_000)
    it.replay()
    it.finish("a-1")
    assert it.output == 15
    assert it.replay().output == 15


def test_wait_for_times_out_a_step_alike(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            await asyncio.wait_for(step.do("slow", nothing), 5)
        except TimeoutError:
            await step.do("plan b", nothing)
            return "b"
        return "a"

    it = play(run)
    slow = it.bodies["slow-1"]
    it.advance(5_000)
    assert it.stopped == ["slow-1"]
    assert not it.late(*slow, "too late")
    it.replay()
    assert it.bodies.keys() == {"plan b-1"}
    it.finish("plan b-1")
    assert it.output == "b"
    assert it.replay().output == "b"


def test_sleep_zero_needs_no_record(play: Any) -> None:
    async def run(step: WorkflowStep) -> str:
        for _ in range(100):
            await asyncio.sleep(0)
        await asyncio.sleep(-1)
        return "end"

    it = play(run)
    assert it.output == "end"
    assert not it.records


# --- events -------------------------------------------------------------------------------------


async def two_waits(step: WorkflowStep) -> Any:
    async def one(name: str) -> Any:
        try:
            return (await step.wait_for_event(name, "t", timeout=10)).payload
        except EventTimeout:
            return "none"

    return await asyncio.gather(one("w"), one("w"))


def test_the_oldest_wait_gets_the_oldest_event(play: Any) -> None:
    it = play(two_waits)
    it.send("t", 1)
    it.send("other", 9)
    it.send("t", 2)
    it.look()
    assert it.output == [1, 2]
    assert it.replay().output == [1, 2]


def test_early_events_are_kept_in_order(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.do("a", nothing)
        return [(await step.wait_for_event("w", "t")).payload for _ in range(3)]

    it = play(run)
    for n in range(12):
        it.send("t", n)
    it.look()
    it.finish("a-1")
    assert it.output == [0, 1, 2]


def test_a_timed_out_wait_takes_no_event(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            await step.wait_for_event("w", "t", timeout=5)
        except TimeoutError as error:
            kind = type(error).__name__
        return [kind, (await step.wait_for_event("w", "t", timeout=5)).payload]

    it = play(run)
    it.advance(6_000)
    it.send("t", "late")
    it.look()
    assert it.output == ["EventTimeout", "late"]
    assert it.replay().output == ["EventTimeout", "late"]


def test_an_event_that_came_in_time_wins_even_if_looked_at_late(play: Any) -> None:
    it = play(two_waits)
    it.skip(9_000)
    it.send("t", "in time")
    it.skip(3_000)
    it.send("t", "too late")
    it.look()
    assert it.output == ["in time", "none"]


def test_a_cancelled_wait_takes_no_event(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            await asyncio.wait_for(step.wait_for_event("w", "t"), 5)
        except TimeoutError:
            pass
        return (await step.wait_for_event("w", "t")).payload

    it = play(run)
    it.advance(5_000)
    it.replay()
    it.send("t", 1)
    it.look()
    assert it.output == 1
    assert it.replay().output == 1
