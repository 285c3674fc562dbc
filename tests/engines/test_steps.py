"""What a step can be told: how long to wait, how long to take, what to hide; and its misuse."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.engines.play import Play
from tests.engines.rig import insist, on_virtual_time, rigged
from toque.engines.body_call import StepContext
from toque.engines.config import StepConfig
from toque.engines.failures import (
    NonRetryableError,
    RetryDelayFailed,
    StepFailed,
    exception_of,
    record_of,
)
from toque.engines.step import WorkflowStep
from toque.engines.workflow import WorkflowEvent, workflow
from toque.runtime.codec import decode_json

virtual = pytest.mark.loop(factory=on_virtual_time)


def nothing() -> Any:
    """A body."""


# --- delay functions ----------------------------------------------------------------------------


def asking(**retries: Any) -> dict[str, Any]:
    """Settings with a delay function that the test answers for."""
    return {"retries": {"limit": 3, "delay": lambda ctx, error: 1, **retries}}


def test_a_delay_function_is_asked_after_each_failure_and_backoff_is_on_top() -> None:
    async def run(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, asking(backoff="linear"))

    it = Play(run)
    it.fail("a-1", ValueError("x"))
    assert it.asked
    assert it.execution.next_due_ms() == 0
    assert it.execution.in_flight, "the instance may not park while it asks"
    it.tell("a-1", 5_000)
    assert it.execution.next_due_ms() == it.now_ms + 5_000
    it.advance(5_000)
    it.fail("a-1", ValueError("x"))
    it.tell("a-1", 5_000)
    assert it.execution.next_due_ms() == it.now_ms + 10_000
    assert it.records[0].delay_ms == 5_000
    it.advance(10_000)
    it.finish("a-1", 1)
    assert it.output == 1


def test_a_delay_function_is_asked_again_after_a_crash() -> None:
    async def run(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, asking())

    it = Play(run)
    it.fail("a-1", StepFailed("busy", {"retry_after": 7}))
    it.replay()
    assert list(it.asked) == ["a-1"]
    claim, _ = it.asked["a-1"]
    assert exception_of(claim.record.error).data == {"retry_after": 7}  # type: ignore[arg-type]
    assert claim.record.interruptions == 0
    it.tell("a-1", 7_000)
    it.replay()
    assert not it.asked, "what it told is recorded"
    it.advance(7_000)
    assert list(it.bodies) == ["a-1"]


def test_a_failed_delay_function_fails_the_step() -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            await step.do("a", nothing, asking())
        except RetryDelayFailed as error:
            return str(error)

    it = Play(run)
    it.fail("a-1", ValueError("x"))
    it.tell("a-1", 0, record_of(RetryDelayFailed("no")))
    assert it.output == "no"
    assert it.replay().output == "no"


def test_a_step_that_is_given_up_while_its_delay_is_asked_is_over() -> None:
    async def run(step: WorkflowStep) -> Any:
        task = asyncio.create_task(step.do("a", nothing, asking()))
        await step.do("b", nothing)
        task.cancel()
        await step.do("c", nothing)

    it = Play(run)
    it.fail("a-1", ValueError("x"))
    it.finish("b-1")
    assert it.stopped == ["a-1"]
    assert not it.tell("a-1", 1)
    it.finish("c-1")
    assert it.output is None


def test_a_delay_function_that_the_code_has_lost_gives_the_default() -> None:
    async def run(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, asking(backoff="constant"))

    async def changed(step: WorkflowStep) -> Any:
        return await step.do("a", nothing)

    it = Play(run)
    it.fail("a-1", ValueError("x"))
    it.replay(changed)
    assert it.execution.next_due_ms() == it.now_ms + 10_000


@virtual
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_delay_functions_on_a_host(tmp_path: Path, kind: str) -> None:
    asked = []

    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        def body(ctx: StepContext) -> int:
            if ctx.attempt == 1:
                raise StepFailed("busy", {"retry_after": 30})
            return ctx.attempt

        def delay(ctx: StepContext, error: Exception) -> Any:
            asked.append((ctx.step, ctx.attempt, ctx.config.delay_ms))
            return error.data["retry_after"]  # type: ignore[attr-defined]

        async def later(ctx: StepContext, error: Exception) -> Any:
            await asyncio.sleep(4)
            return delay(ctx, error)

        given = delay if kind == "sync" else later
        return await step.do("a", body, {"retries": {"limit": 2, "delay": given}})

    async with rigged(tmp_path) as rig:
        began = rig.clock.now_ms()
        assert await rig.run(flow) == 2
        assert 30_000 <= rig.clock.now_ms() - began < 40_000
        assert asked == [("a", 1, None)]
        step = await rig.step("a-1")
        assert step.retry_delay_ms == 30_000


@virtual
@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("raises", "raised KeyError: 'no'"),
        ("hangs", "took longer than 5000 ms"),
        ("text", "gave no duration: what it gave is 'soon'"),
        ("negative", "gave no duration: what it gave is -1"),
        ("exits", "raised SystemExit: 1"),
    ],
)
async def test_delay_functions_that_fail(tmp_path: Path, case: str, why: str) -> None:
    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        def body() -> None:
            raise OSError("disk")

        async def delay(ctx: StepContext, error: Exception) -> Any:
            assert isinstance(error, OSError)
            if case == "raises":
                raise KeyError("no")
            if case == "exits":
                raise SystemExit(1)
            if case == "hangs":
                await asyncio.sleep(3_600)
            return "soon" if case == "text" else -1

        try:
            await step.do("a", body, {"retries": {"limit": 5, "delay": delay}})
        except RetryDelayFailed as error:
            return [str(error), error.data]

    async with rigged(tmp_path) as rig:
        text, data = await rig.run(flow)
        assert text.startswith(f"the delay function of step 'a-1' {why}")
        assert data == {"error": {"name": "OSError", "message": "disk"}}
        assert (await rig.step("a-1")).attempts_total == 1


# --- deadlines ----------------------------------------------------------------------------------


def test_a_deadline_covers_attempts_and_backoff_over_crashes() -> None:
    config = {"retries": {"limit": 9, "delay": 40, "backoff": "constant"}, "deadline": "100 s"}

    async def run(step: WorkflowStep) -> Any:
        try:
            await step.do("a", nothing, config)
        except TimeoutError as error:
            return f"{type(error).__name__}: {error}"

    it = Play(run)
    it.advance(5_000)
    it.fail("a-1", ValueError("x"))
    it.advance(40_000)
    it.skip(30_000)
    it.replay()
    assert it.execution.next_due_ms() == it.started_ms + 100_000
    it.advance(25_000)
    assert it.stopped == ["a-1"], "the attempt under way is stopped"
    assert it.output == (
        "StepDeadline: step 'a-1' did not succeed within its deadline of 100000 ms; its last "
        "error was ValueError: x"
    )
    assert it.replay().output == it.output


def test_a_retry_that_would_come_after_the_deadline_is_not_waited_for() -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.do("a", nothing, {"retries": {"limit": 9, "delay": 40}, "deadline": 30})

    it = Play(run)
    it.fail("a-1", ValueError("x"))
    assert it.error == (
        "StepDeadline",
        "step 'a-1' did not succeed within its deadline of 30000 ms; its last error was "
        "ValueError: x",
    )


def test_a_deadline_that_passed_while_the_process_was_down_starts_nothing() -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.do("a", nothing, {"deadline": 10})

    it = Play(run)
    it.skip(11_000)
    it.replay()
    assert it.execution.outcome is not None
    assert it.error[0] == "StepDeadline"


def test_a_deadline_means_nothing_to_a_step_that_is_done() -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.do("a", nothing, {"deadline": 10})
        await step.sleep("s", 60)

    it = Play(run)
    it.finish("a-1")
    assert it.execution.next_due_ms() == it.now_ms + 60_000


# --- settings -----------------------------------------------------------------------------------


def test_settings_are_recorded_at_the_first_run_and_used_from_then_on() -> None:
    async def run(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, {"retries": {"limit": 1, "delay": 5}})

    async def changed(step: WorkflowStep) -> Any:
        return await step.do("a", nothing, {"retries": {"limit": 7, "delay": 500}, "deadline": 1})

    it = Play(run)
    it.fail("a-1", ValueError("x"))
    it.replay(changed)
    assert it.execution.next_due_ms() == it.now_ms + 5_000
    it.advance(5_000)
    it.fail("a-1", ValueError("y"))
    assert it.error == ("ValueError", "y")


@virtual
async def test_a_sensitive_output_is_shown_to_nobody_and_flows_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hidden = StepConfig(sensitive="output")

    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        secret = await step.do("secret", lambda: "hunter2", hidden)

        def unfit() -> int:
            return secret  # type: ignore[no-any-return]

        def fails() -> None:
            raise NonRetryableError("seen by all")

        try:
            await step.do("fails", fails, hidden)
        except NonRetryableError:
            pass
        if event.payload:
            await step.do("unfit", unfit, hidden)
        return len(secret)

    async with rigged(tmp_path) as rig:
        assert await rig.run(flow) == 7
        view = await rig.view()
        assert view.steps[0].output == b'"[REDACTED]"'
        assert view.steps[0].sensitive
        assert view.steps[1].error is not None
        assert view.steps[1].error.message == "seen by all"
        await rig.create(flow, 1, key="acc/u1/i2")
        view = await rig.ended("acc/u1/i2")
        assert view.error is not None
        assert view.error.name == "ResultMismatch"
        assert "unfit-1" in view.error.message
        assert b"hunter2" not in str(view).encode()
        assert "hunter2" not in caplog.text


@virtual
async def test_interruptions_are_shown_apart_from_failures(tmp_path: Path) -> None:
    gate: list[asyncio.Event] = []

    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        async def body(ctx: StepContext) -> int:
            if not gate:
                await asyncio.sleep(3_600)
            return ctx.attempt

        return await step.do("a", body, {"timeout": "2 h"})

    async with rigged(tmp_path) as rig:
        await rig.create(flow)
        await rig.pass_time(1)
        rig.restart()
        await rig.pass_time(1)
        gate.append(asyncio.Event())
        rig.restart()
        view = await rig.ended()
        assert view.output == b"3"
        step = await rig.step("a-1")
        assert (step.interruptions, step.attempts_total) == (2, 3)


# --- errors with details ------------------------------------------------------------------------


def test_details_of_errors_survive() -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            await step.do("a", nothing)
        except NonRetryableError as error:
            seen = [type(error).__name__, error.name, error.message, error.data]
            raise NonRetryableError("outer", "Outer", {"inner": seen}) from None

    it = Play(run)
    it.fail("a-1", NonRetryableError("no", "Refused", {"review": 7, "why": ["late", None]}))
    for play in (it, it.replay()):
        outcome = play.execution.outcome
        assert outcome is not None
        assert outcome.error is not None
        assert outcome.error.name == "Outer"
        seen = decode_json(outcome.error.data)["inner"]
        data = {"review": 7, "why": ["late", None]}
        assert seen == ["NonRetryableStepFailed", "Refused", "no", data]


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"a": object()}, "the data of this StepFailed holds a object"),
        ({"a": "x" * 20_000}, "the data of this StepFailed takes 20008 bytes"),
        ({"a": float("nan")}, "the data of this StepFailed holds the number nan"),
    ],
    ids=["unencodable", "long", "nan"],
)
def test_details_that_cannot_be_kept_say_so(data: Any, kept: str) -> None:
    error = exception_of(record_of(StepFailed("x", data)))
    assert error.message == "x"
    assert error.data["lost"].startswith(kept)


# --- over crashes -------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("outcome", ["lost", "kept"])
async def test_delays_deadlines_and_details_over_a_crash_at_every_commit(
    tmp_path: Path, outcome: Any
) -> None:
    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        def busy(ctx: StepContext) -> int:
            if ctx.attempt == 1:
                raise StepFailed("busy", {"retry_after": 3})
            return 7

        def told(ctx: StepContext, error: Any) -> Any:
            return error.data["retry_after"] if isinstance(error, StepFailed) else 1

        async def slow() -> None:
            await asyncio.sleep(3_600)

        def refuses() -> None:
            raise NonRetryableError("no", "Refused", {"by": "Kim"})

        settings = {"retries": {"limit": 9, "delay": told, "backoff": "constant"}}
        found: list[Any] = [await step.do("busy", busy, settings)]
        try:
            await step.do("slow", slow, {"deadline": 20, "timeout": "1 h"})
        except TimeoutError as error:
            found.append(type(error).__name__)
        try:
            await step.do("refuses", refuses, {"sensitive": "output"})
        except NonRetryableError as error:
            found.append(error.data)
        return found

    for crash_at in range(1, 40):
        folder = tmp_path / str(crash_at)
        folder.mkdir()
        async with rigged(folder) as rig:
            rig.crash_at = crash_at, outcome
            await insist(rig, lambda: rig.create_call(flow))
            view = await rig.ended()
            assert view.error is None, view.error
            assert decode_json(view.output or b"") == [7, "StepDeadline", {"by": "Kim"}]
            if rig.commits < crash_at:
                return


# --- deadlines and pauses -----------------------------------------------------------------------


def test_a_deadline_moves_with_a_pause() -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.do("a", nothing, {"deadline": 10, "retries": {"limit": 9, "delay": 5}})

    it = Play(run)
    it.fail("a-1", ValueError())
    it.execution.pause(it.now_ms)
    it.skip(100_000)
    it.look()
    it.execution.resume(it.now_ms, it.started_ms)
    it.look()
    assert it.execution.next_due_ms() == it.now_ms + 5_000
    it.replay()
    it.advance(9_999)
    assert it.execution.outcome is None
    it.advance(1)
    assert it.error[0] == "StepDeadline"


def test_a_deadline_stands_for_a_body_in_flight() -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.do("a", nothing, {"deadline": 10})

    it = Play(run)
    it.execution.pause(it.now_ms)
    assert it.execution.next_due_ms() == it.now_ms + 10_000
    it.skip(9_000)
    it.execution.resume(it.now_ms, it.started_ms)
    it.look()
    assert it.execution.outcome is None
    it.advance(1_000)
    assert it.error[0] == "StepDeadline"
    assert it.stopped == ["a-1"]
