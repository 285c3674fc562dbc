"""The deterministic core when things go wrong: errors, interruptions, divergence, limits.

Each must be the same live and at replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.engines.play import Play, Run
from toque.engines.failures import NonRetryableError, StepFailed, StepTimeout
from toque.engines.journal import record_from_row
from toque.engines.step import WorkflowStep


def nothing() -> Any:
    """A body; the test decides how it ends."""


@pytest.fixture
def play() -> Iterator[Any]:
    """Makes plays, and closes them."""
    made = []

    def make(run: Run, **options: Any) -> Play:
        made.append(Play(run, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ("constant", [2_000, 2_000, 2_000]),
        ("linear", [2_000, 4_000, 6_000]),
        ("exponential", [2_000, 4_000, 8_000]),
    ],
)
def test_retries_wait_as_configured(play: Any, backoff: str, delays: list[int]) -> None:
    config = {"retries": {"limit": 3, "delay": "2 seconds", "backoff": backoff}}

    async def run(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, config)

    it = play(run)
    for delay in delays:
        it.fail("a-1", ValueError("no"))
        it.advance(delay - 1)
        assert not it.bodies
        it.replay()
        it.advance(1)
        assert it.bodies
    it.fail("a-1", ValueError("never"))
    assert it.error == ("ValueError", "never")
    assert it.records[0].attempt == 4
    assert it.replay().error == ("ValueError", "never")


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        (ValueError("v"), ValueError),
        (KeyError("k"), KeyError),
        (OSError(2, "no file"), OSError),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), UnicodeDecodeError),
        (TimeoutError("t"), TimeoutError),
        (StopIteration("s"), StepFailed),
        (ExceptionGroup("g", [ValueError()]), StepFailed),
        (type("Odd", (Exception,), {})("odd"), StepFailed),
        (SystemExit(3), StepFailed),
        (asyncio.CancelledError(), StepFailed),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_failed_step_raises_alike_live_and_at_replay(
    play: Any, raised: BaseException, caught: type[BaseException]
) -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            await step.do("a", nothing, {"retries": {"limit": 0}})
        except caught as error:
            failed = cast(StepFailed, error)
            shown = [type(error).__name__, failed.name, failed.message, str(error)]
            await step.do("b", nothing)
            return isinstance(error, StepFailed) and shown
        return None

    it = play(run)
    it.fail("a-1", raised)
    rows = dict(it.rows)
    it.finish("b-1")
    live = it.output
    assert live[1] == type(raised).__name__
    again = it.replay(rows=rows)
    again.finish("b-1")
    assert again.output == live


def test_a_non_retryable_error_ends_the_step_at_once(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            await step.do("a", nothing)
        except NonRetryableError as error:
            return [error.name, error.message]  # type: ignore[attr-defined]
        return None

    it = play(run)
    it.fail("a-1", NonRetryableError("broken", "Broken"))
    assert it.output == ["Broken", "broken"]
    assert it.replay().output == ["Broken", "broken"]


def test_an_interruption_is_no_failure_and_is_capped(play: Any) -> None:
    config = {"retries": {"limit": 1, "delay": 0}}

    async def run(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, config)

    it = play(run)
    for n in range(10):
        it.replay()
        assert it.records[0].attempt == n + 2
        assert it.records[0].failures == 0
    it.replay()
    assert it.error[0] == "StepInterrupted"


def test_limit_zero_is_at_most_once(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, {"retries": {"limit": 0}})

    it = play(run)
    it.replay()
    assert not it.bodies
    assert it.error[0] == "StepInterrupted"
    assert it.replay().error[0] == "StepInterrupted"


def test_a_late_result_is_refused(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, {"retries": {"limit": 2, "delay": 1}})

    it = play(run)
    first = it.bodies["a-1"]
    it.fail("a-1", StepTimeout("slow"))
    assert not it.late(*first, "of a given up attempt")
    it.advance(1_000)
    assert not it.late(*first, "of a given up attempt")
    it.finish("a-1", "good")
    assert it.output == "good"
    assert not it.late(*first, "after the end")


def test_a_failing_sibling_cancels_the_group_alike(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(step.do("bad", nothing, {"retries": {"limit": 0}}))
                group.create_task(step.do("slow", nothing))
        except* ValueError:
            pass
        return await step.do("after", nothing)

    it = play(run)
    slow = it.bodies["slow-1"]
    it.fail("bad-1", ValueError("x"))
    assert it.stopped == ["slow-1"]
    assert not it.late(*slow)
    it.replay()
    assert it.bodies.keys() == {"after-1"}
    it.finish("after-1", 1)
    assert it.output == 1


# --- divergence ---------------------------------------------------------------------------------


async def old_code(step: WorkflowStep) -> Any:
    await step.do("a", nothing)
    await step.do("b", nothing)
    return await step.do("c", nothing)


async def other_name(step: WorkflowStep) -> Any:
    await step.do("a", nothing)
    await step.do("new", nothing)
    return await step.do("c", nothing)


async def other_order(step: WorkflowStep) -> Any:
    await step.do("b", nothing)
    await step.do("a", nothing)
    return await step.do("c", nothing)


async def one_less(step: WorkflowStep) -> Any:
    await step.do("a", nothing)
    return await step.do("c", nothing)


async def one_inserted(step: WorkflowStep) -> Any:
    await step.do("a", nothing)
    await step.do("a", nothing)
    await step.do("b", nothing)
    return await step.do("c", nothing)


async def ends_early(step: WorkflowStep) -> Any:
    return await step.do("a", nothing)


async def waits_elsewhere(step: WorkflowStep) -> Any:
    await step.do("a", nothing)
    await asyncio.get_running_loop().create_future()


async def catches_all(step: WorkflowStep) -> Any:
    try:
        await other_order(step)
    except BaseException:
        return "swallowed"


OTHER_CODE = [
    other_name, other_order, one_less, one_inserted, ends_early, waits_elsewhere, catches_all,
]  # fmt: skip


@pytest.mark.parametrize("run", OTHER_CODE, ids=lambda run: run.__name__)
def test_other_code_ends_the_instance_and_runs_nothing_again(play: Any, run: Run) -> None:
    it = play(old_code)
    it.finish("a-1")
    it.finish("b-1")
    before = dict(it.rows)
    it.replay(run)
    name, message = it.error
    assert name == "NonDeterminism"
    assert "'b-1'" in message
    assert not it.bodies
    assert it.rows == before


def test_a_record_in_flight_that_nothing_asks_for_is_divergence_too(play: Any) -> None:
    it = play(old_code)
    it.finish("a-1")  # b is in flight
    it.replay(one_less)
    assert it.error[0] == "NonDeterminism"
    assert "'b-1'" in it.error[1]
    assert not it.bodies


def test_the_end_before_a_record_in_flight_is_divergence_not_a_call_left_over(play: Any) -> None:
    it = play(old_code)
    it.finish("a-1")  # b is in flight, and was called since

    async def returns(step: WorkflowStep) -> Any:
        await step.do("a", nothing)
        return "early"

    it.replay(returns)
    name, message = it.error
    assert name == "NonDeterminism"
    assert "'b-1'" in message


def test_a_step_added_at_the_end_is_fine(play: Any) -> None:
    async def longer(step: WorkflowStep) -> Any:
        await old_code(step)
        return await step.do("d", nothing)

    it = play(old_code)
    it.finish("a-1")
    it.finish("b-1")
    it.replay(longer)
    it.finish("c-1")
    it.finish("d-1", "new")
    assert it.output == "new"


def test_a_result_of_another_type_than_recorded_is_an_error(play: Any) -> None:
    def text() -> str: ...

    def number() -> int: ...

    async def before(step: WorkflowStep) -> Any:
        await step.do("a", text)
        await step.do("b", nothing)

    async def after(step: WorkflowStep) -> Any:
        await step.do("a", number)
        await step.do("b", nothing)

    it = play(before)
    it.finish("a-1", "x")
    it.replay(after)
    assert "'a-1'" in it.error[1]


# --- limits and misuse --------------------------------------------------------------------------


def test_run_that_never_waits_is_stopped(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toque.engines.loop.DETERMINISTIC_CALLBACKS_PER_TURN_MAX", 1_000)

    async def run(step: WorkflowStep) -> Any:
        while True:
            await asyncio.sleep(0)

    assert play(run).error[0] == "LimitExceeded"


def test_too_many_steps_end_the_instance(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        for _ in range(3):
            await step.do("a", nothing)
            await step.sleep("not counted", 0)
        try:
            await step.do("a", nothing)
        except BaseException:
            return "swallowed"

    it = play(run, steps_max=3)
    for n in range(3):
        it.finish(f"a-{n + 1}")
    name, message = it.error
    assert name == "LimitExceeded"
    assert "3 steps" in message


def test_an_exception_in_a_callback_ends_the_instance(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        def fail() -> None:
            raise ZeroDivisionError("in a callback")

        asyncio.get_running_loop().call_soon(fail)
        await step.do("a", nothing)

    assert play(run).error == ("ZeroDivisionError", "in a callback")


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_run_that_exits_hurts_itself_only(play: Any, error: BaseException) -> None:
    async def run(step: WorkflowStep) -> Any:
        raise type(error)(*error.args)  # the parameter would keep the traceback, and all in it

    assert play(run).error[0] == type(error).__name__


def test_a_step_called_by_a_callback_is_refused(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        coro = step.do("a", nothing)
        asyncio.get_running_loop().call_soon(coro.send, None)
        await step.sleep("s", 1)

    name, message = play(run).error
    assert name == "StepMisuse"
    assert "callback" in message


def test_a_coroutine_awaited_twice_is_named(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        coro = step.do("a", nothing)
        await coro
        await coro

    it = play(run)
    it.finish("a-1")
    assert it.error[0] == "StepMisuse"


def test_results_keep_no_identity_with_what_was_returned(play: Any) -> None:
    async def run(step: WorkflowStep) -> Any:
        value = await step.do("a", nothing)
        return [type(value).__name__, value]

    it = play(run)
    it.finish("a-1", (1, 2))
    assert it.output == ["list", [1, 2]]


def test_records_are_rewritten_no_more_than_needed(play: Any) -> None:
    it = play(old_code)
    it.finish("a-1")
    it.finish("b-1")
    it.finish("c-1")
    assert len(it.history) == 4  # start a | end a, start b | end b, start c | end c
    assert record_from_row(it.rows[1]).ended_ms is not None
