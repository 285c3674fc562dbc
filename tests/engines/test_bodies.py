"""Bodies of steps on a real host and store: when they start, how they end.

And what they may not do.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.engines.flows import ONCE, Event, Step, one_step
from tests.engines.rig import on_virtual_time, rigged, unplaced
from toque.engines.body_call import StepContext
from toque.engines.env import EngineFaults
from toque.engines.failures import NonRetryableError, StepMisuse, StepTimeout
from toque.engines.views import ErrorView
from toque.engines.workflow import workflow
from toque.runtime import limits

pytestmark = pytest.mark.loop(factory=on_virtual_time)

# --- bodies -------------------------------------------------------------------------------------


async def test_a_body_gets_its_context(tmp_path: Path) -> None:
    seen: list[StepContext] = []

    def body(ctx: StepContext) -> None:
        seen.append(ctx)
        if ctx.attempt < 3:
            raise ValueError(ctx.attempt)

    config = {"retries": {"limit": 4, "delay": "1 second", "backoff": "constant"}}
    async with rigged(tmp_path) as rig:
        await rig.run(one_step(body, config))
        assert [(c.step, c.count, c.attempt) for c in seen] == [("a", 1, n) for n in (1, 2, 3)]
        assert seen[0].config.limit == 4
        step = await rig.step("a-1")
        assert step.success
        assert [a.success for a in step.attempts] == [False, False, True]
        assert unplaced(step.attempts[0].error) == ErrorView("ValueError", "1")
        gaps = [b.start_ms - (a.end_ms or 0) for a, b in pairwise(step.attempts)]
        assert all(1_000 <= gap < 1_100 for gap in gaps), gaps
        assert [report.state for report in rig.reports] == (
            ["queued", "waiting", "queued", "waiting", "queued", "ended"]
        )


async def test_a_body_starts_only_when_its_record_is_durable(tmp_path: Path) -> None:
    began: list[int] = []
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(one_step(lambda: began.append(1)))
        rig.hold_commits()
        granted = rig.grant(rig.reports[0])
        await rig.pass_time(1)
        assert not began
        assert not granted.done()
        rig.release_commits()
        assert await granted == [True]
        await rig.ended()
        assert began == [1]


async def test_the_next_attempt_shares_the_commit_of_the_last_result(tmp_path: Path) -> None:
    @workflow(name="three")
    async def run(event: Event, step: Step) -> Any:
        for _ in range(3):
            await step.do("a", lambda: None)

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        before = rig.commits
        await rig.ended()
        await rig.pass_time(1)
        # grant and start | result and start, twice | result and end | report confirmed
        assert rig.commits - before == 5


async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again(
    tmp_path: Path,
) -> None:
    cancelled: list[int] = []

    async def body(ctx: StepContext) -> str:
        try:
            await asyncio.sleep(60 if ctx.attempt == 1 else 0)
        except asyncio.CancelledError:
            cancelled.append(ctx.attempt)
            raise
        return f"attempt {ctx.attempt}"

    config = {"timeout": 5, "retries": {"limit": 1, "delay": 0}}
    async with rigged(tmp_path) as rig:
        assert await rig.run(one_step(body, config)) == "attempt 2"
        assert cancelled == [1]
        first = (await rig.step("a-1")).attempts[0]
        assert first.error is not None
        assert first.error.name == "StepTimeout"
        assert (first.end_ms or 0) - first.start_ms in range(5_000, 5_020)


async def test_a_step_that_timed_out_for_good_raises_step_timeout(tmp_path: Path) -> None:
    async def body() -> None:
        await asyncio.sleep(60)

    @workflow(name="slow")
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.do("a", body, {"timeout": "5 ms", "retries": {"limit": 0}})
        except StepTimeout as error:
            return str(error)

    async with rigged(tmp_path) as rig:
        assert "5 ms" in await rig.run(run)


async def test_a_body_that_will_not_be_cancelled_hurts_nobody(tmp_path: Path) -> None:
    late = asyncio.get_running_loop().create_future()

    async def body(ctx: StepContext) -> int:
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await late
        return ctx.attempt

    async with rigged(tmp_path) as rig:
        config = {"timeout": 5, "retries": {"limit": 1, "delay": 0}}
        assert await rig.run(one_step(body, config)) == 2
        late.set_result(None)
        await rig.pass_time(1)
        assert (await rig.view()).output == b"2"


async def test_the_fault_switch_takes_results_of_old_attempts(tmp_path: Path) -> None:
    late = asyncio.get_running_loop().create_future()

    async def body(ctx: StepContext) -> int:
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await late
        else:
            late.set_result(None)
            await asyncio.sleep(60)
        return ctx.attempt

    async with rigged(tmp_path, EngineFaults(unfenced_attempts=True)) as rig:
        config = {"timeout": "1 minute", "retries": {"limit": 1, "delay": 0}}
        assert await rig.run(one_step(body, config)) == 1


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_body_that_exits_fails_like_any_other(
    tmp_path: Path, error: BaseException, is_async: bool
) -> None:
    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    async with rigged(tmp_path) as rig:
        await rig.create(one_step(coroutine if is_async else plain, ONCE))
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == type(error).__name__


async def test_non_retryable_is_one_attempt(tmp_path: Path) -> None:
    def body() -> None:
        raise NonRetryableError("no use")

    async with rigged(tmp_path) as rig:
        await rig.create(one_step(body))
        view = await rig.ended()
        assert unplaced(view.error) == ErrorView("NonRetryableError", "no use")
        assert view.steps[0].attempts_total == 1


async def test_a_long_error_message_is_cut(tmp_path: Path) -> None:
    def body() -> None:
        raise ValueError("x" * 100_000 + "\ud800")

    async with rigged(tmp_path) as rig:
        await rig.create(one_step(body, ONCE))
        view = await rig.ended()
        assert view.error is not None
        assert len(view.error.message) == limits.ERROR_MESSAGE_CHARS_MAX


async def test_a_body_sees_the_context_variables_of_its_caller(tmp_path: Path) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")

    def body() -> str:
        known = tenant.get()
        tenant.set("changed by the body")
        return known

    @workflow(name="ctx")
    async def run(event: Event, step: Step) -> Any:
        before = tenant.get()
        tenant.set("acme")
        return [before, await step.do("a", body), tenant.get()]

    tenant.set("of the shard")
    async with rigged(tmp_path) as rig:
        assert await rig.run(run) == ["nobody", "acme", "acme"]


async def test_a_step_inside_a_step_is_refused_and_not_retried(tmp_path: Path) -> None:
    @workflow(name="nested")
    async def run(event: Event, step: Step) -> Any:
        async def body() -> Any:
            return await step.do("inner", lambda: 1)

        return await step.do("outer", body)

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "StepMisuse"
        assert "inside the body of step 'outer-1'" in view.error.message
        assert view.steps[0].attempts_total == 1


async def test_a_step_after_the_end_is_refused(tmp_path: Path) -> None:
    kept: list[Step] = []

    @workflow(name="leaks")
    async def run(event: Event, step: Step) -> Any:
        kept.append(step)

    async with rigged(tmp_path) as rig:
        await rig.run(run)
        with pytest.raises(StepMisuse, match="ended"):
            await kept[0].do("a", lambda: 1)


async def test_run_that_waits_for_nothing_is_told_so(tmp_path: Path) -> None:
    @workflow(name="stuck")
    async def run(event: Event, step: Step) -> Any:
        await asyncio.Event().wait()

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "WorkflowStuck"
