"""The deterministic loop alone: what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.engines.play import Play
from toque.engines.failures import StepMisuse
from toque.engines.loop import WorkflowLoop
from toque.engines.step import WorkflowStep
from toque.runtime.limits import REFUSALS_AFTER_END_MAX


def nothing() -> Any:
    """A body; the test decides how it ends."""


REFUSED: dict[str, Callable[[], Any]] = {
    "threads": lambda: asyncio.to_thread(print),
    "executors": lambda: asyncio.get_running_loop().run_in_executor(None, print),
    "sockets": lambda: asyncio.open_connection("localhost", 1),
    "servers": lambda: asyncio.start_server(print, "localhost", 1),
    "processes": lambda: asyncio.create_subprocess_exec("true"),
    "signals": lambda: asyncio.get_running_loop().add_signal_handler(2, print),
    "readers": lambda: asyncio.get_running_loop().add_reader(0, print),
    "names": lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    "other threads": lambda: asyncio.get_running_loop().call_soon_threadsafe(print),
    "other loops": lambda: asyncio.get_running_loop().run_until_complete(asyncio.sleep(0)),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_replay_is_refused_with_the_right_form(kind: str) -> None:
    async def run(step: WorkflowStep) -> Any:
        result = REFUSED[kind]()
        if asyncio.iscoroutine(result):
            await result

    name, message = Play(run).error
    assert name == "StepMisuse"
    assert "Right: `await step.do(" in message


async def test_the_outer_loop_and_task_are_as_before() -> None:
    outer, task = asyncio.get_running_loop(), asyncio.current_task()
    seen: list[Any] = []

    async def run(step: WorkflowStep) -> None:
        seen.append(asyncio.get_running_loop())

    Play(run)
    assert isinstance(seen[0], WorkflowLoop)
    assert asyncio.get_running_loop() is outer
    assert asyncio.current_task() is task


@pytest.mark.filterwarnings("error")
def test_closing_leaves_no_task_no_coroutine_and_runs_no_more_steps() -> None:
    ended: list[str] = []
    refusals: list[str] = []

    async def child(step: WorkflowStep) -> None:
        try:
            await step.do("a", nothing)
        finally:
            ended.append("child")
            try:
                await step.do("cleanup", nothing)
            except StepMisuse as error:
                refusals.append(str(error))

    async def generator() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(5)
        finally:
            ended.append("generator")

    async def run(step: WorkflowStep) -> None:
        kept = [asyncio.create_task(child(step)) for _ in range(2)]
        kept += [asyncio.create_task(asyncio.sleep(9))]
        try:
            async for _ in generator():
                await asyncio.sleep(0)
        finally:
            ended.append("run")
            with pytest.raises((StepMisuse, RuntimeError)):
                kept += [asyncio.create_task(child(step))]

    play = Play(run)
    play.close()
    play.close()
    del play
    gc.collect()
    assert sorted(ended) == ["child", "child", "generator", "run"]
    assert len(refusals) == 2


async def by_step(step: WorkflowStep) -> None:
    await step.do("again", nothing)


async def by_task(step: WorkflowStep) -> None:
    await asyncio.create_task(step.do("again", nothing))


async def by_gather(step: WorkflowStep) -> None:
    await asyncio.gather(step.sleep("nap", 5), step.sleep("doze", 5))


async def by_timer(step: WorkflowStep) -> None:
    await asyncio.sleep(5)


@pytest.mark.parametrize(
    "again", [by_step, by_task, by_gather, by_timer], ids=lambda how: how.__name__
)
def test_a_run_that_swallows_every_refusal_does_not_hang_its_close(
    again: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = 0

    async def run(step: WorkflowStep) -> None:
        nonlocal rounds
        while True:
            rounds += 1
            assert rounds < 100_000, "it is never let go"
            try:
                await again(step)
            except AssertionError:
                raise
            except BaseException:
                continue

    play = Play(run)
    play.close()
    assert rounds <= REFUSALS_AFTER_END_MAX + 100
    del play
    rounds = 0
    gc.collect()
    assert rounds == 0, "the collector, which knows no loop, is not sent into it again"
    assert "Right: `except Exception`" in caplog.text


def test_tasks_have_names_that_replay() -> None:
    async def run(step: WorkflowStep) -> Any:
        async def one() -> Any:
            task = asyncio.current_task()
            return task.get_name() if task else None

        tasks = [asyncio.create_task(one()) for _ in range(2)]
        named = asyncio.create_task(one(), name="mine")
        return await asyncio.gather(*tasks, named)

    path = "/test_tasks_have_names_that_replay.<locals>.run.<locals>.one"
    assert Play(run).output == [f"{path}:1", f"{path}:2", "mine"]


def test_a_step_from_another_thread_is_refused() -> None:
    said: list[str] = []

    async def run(step: WorkflowStep) -> None:
        def other() -> None:
            try:
                asyncio.run(use(step))
            except StepMisuse as error:
                said.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    async def use(step: WorkflowStep) -> None:
        await step.do("a", nothing)

    assert Play(run).output is None
    assert "another thread" in said[0]


def test_as_completed_is_untouched_outside_of_workflows() -> None:
    async def outside() -> list[int]:
        async def one(n: int) -> int:
            return n

        return sorted([await soon for soon in asyncio.as_completed([one(1), one(2)])])

    assert asyncio.run(outside()) == [1, 2]


def test_as_completed_times_out_alike() -> None:
    async def run(step: WorkflowStep) -> Any:
        got = []
        steps = [step.do("quick", nothing), step.do("slow", nothing)]
        try:
            for soon in asyncio.as_completed(steps, timeout=5):
                got.append(await soon)
        except TimeoutError:
            got.append("late")
        return got

    play = Play(run)
    play.finish("quick-1", "quick")
    play.advance(5_000)
    assert play.output == ["quick", "late"]
    assert play.replay().output == ["quick", "late"]


def test_timers_can_be_cancelled_and_moved() -> None:
    async def run(step: WorkflowStep) -> Any:
        loop = asyncio.get_running_loop()
        fired: list[str] = []
        loop.call_later(1, fired.append, "cancelled").cancel()
        loop.call_at(loop.time() + 2, fired.append, "two")
        async with asyncio.timeout(1) as limit:
            limit.reschedule(loop.time() + 5)
            await asyncio.sleep(3)
        return fired

    play = Play(run)
    play.advance(10_000)
    assert play.output == ["two"]
    assert play.replay().output == ["two"]
    assert len(play.records) == 2


@pytest.mark.parametrize("delay", [float("nan"), float("inf")])
def test_a_timer_that_is_never_due_is_refused(delay: float) -> None:
    async def run(step: WorkflowStep) -> None:
        asyncio.get_running_loop().call_later(delay, print)

    assert Play(run).error[0] == "ValueError"
