"""The Engine on a real host and store: create, run, park, wake, end; bodies; events; reports."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.engines.rig import KEY, on_virtual_time, rigged, view_of
from toque.engines.env import EngineFaults
from toque.engines.failures import EventsBufferFull, NonRetryableError, StepMisuse, StepTimeout
from toque.engines.step import StepContext, WorkflowStep
from toque.engines.views import ErrorView
from toque.engines.workflow import WorkflowEntrypoint, WorkflowEvent, workflow
from toque.runtime import limits
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InstanceFinished,
    InstanceNotFound,
    InvalidId,
    InvalidPayload,
    InvalidTransition,
    Overloaded,
)
from toque.runtime.ids import EntityRef

pytestmark = pytest.mark.loop(factory=on_virtual_time)

Event = WorkflowEvent[Any]
Step = WorkflowStep
ONCE = {"retries": {"limit": 0}}


def one_step(body: Any, config: Any = None) -> Any:
    """A workflow of one step."""

    @workflow(name="one")
    async def run(event: Event, step: Step) -> Any:
        return await step.do("a", body, config)

    return run


def napping(seconds: float = 60) -> Any:
    """A workflow that sleeps."""

    @workflow(name="nap")
    async def run(event: Event, step: Step) -> Any:
        await step.sleep("nap", seconds)
        return "rested"

    return run


def waiting() -> Any:
    """A workflow that waits for an event."""

    @workflow(name="wait")
    async def run(event: Event, step: Step) -> Any:
        return (await step.wait_for_event("w", "go")).payload

    return run


def hanging() -> Any:
    """A workflow whose step never ends."""

    async def body() -> None:
        await asyncio.get_running_loop().create_future()

    return one_step(body)


# --- create -------------------------------------------------------------------------------------


async def test_an_instance_is_created_granted_run_and_ended(tmp_path: Path) -> None:
    @workflow(name="sum")
    async def run(event: Event, step: Step) -> Any:
        doubled = await step.do("double", lambda: event.payload * 2)
        return {"sum": doubled + 1, "id": event.instance_id, "of": event.workflow_name}

    async with rigged(tmp_path) as rig:
        created = await rig.create(run, 20)
        assert (created.status, created.id, created.workflow_uuid) == ("queued", "i1", "u1")
        ended = await rig.ended()
        assert ended.output == b'{"sum":41,"id":"i1","of":"sum"}'
        assert ended.step_count == 1
        states = [(r.state, r.seq, r.turn, r.status) for r in rig.reports]
        assert states == [("queued", 1, 1, "queued"), ("ended", 2, 1, "complete")]
        assert rig.grants == [(1, True)]


async def test_create_is_durable_before_it_is_answered(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.hold_commits()
        answer = rig.create_call(napping())
        await rig.pass_time(1)
        assert not answer.done()
        assert not rig.reports
        rig.release_commits()
        await answer
        await rig.status("waiting")


async def test_the_same_request_creates_once_and_another_is_refused(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        first, second = await asyncio.gather(rig.create(napping()), rig.create(napping()))
        assert first.run_id == second.run_id
        with pytest.raises(InstanceAlreadyExists):
            await rig.create("nap", request_id="other")
        with pytest.raises(InstanceAlreadyExists):
            await rig.create("nap", request_id="")
        rig.restart()
        assert (await rig.create("nap")).run_id == first.run_id


async def test_create_and_wait_is_one_request(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        view = await rig.create(napping(2), wait_ms=60_000)
        assert (view.status, view.output) == ("complete", b'"rested"')
        view = await rig.create("nap", wait_ms=500, key="acc/u1/i2")
        assert view.status == "waiting"


async def test_a_bad_id_leaves_nothing(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        with pytest.raises(InvalidId):
            await rig.create(napping(), key="acc/u1/a//b")
        assert not rig.rows("instances")
        assert not rig.rows("alarms")


async def test_large_params_and_outputs_live_in_rows_of_their_own(tmp_path: Path) -> None:
    @workflow(name="echo")
    async def run(event: Event, step: Step) -> Any:
        return event.payload

    async with rigged(tmp_path) as rig:
        assert await rig.run(run, "x" * 100_000) == "x" * 100_000
        assert sorted(row[1] for row in rig.rows("payloads")) == ["output", "params"]
        assert len(rig.rows("instances")[0][-1]) < 1_000
        assert (await rig.view()).params == b'"' + b"x" * 100_000 + b'"'


@pytest.mark.parametrize("method", ["view", "wait", "send_event", "terminate"])
async def test_what_does_not_exist_is_not_found_and_leaves_nothing(
    tmp_path: Path, method: str
) -> None:
    args: dict[str, tuple[Any, ...]] = {
        "view": (False, False),
        "wait": (1_000,),
        "send_event": ("t", b"1", ""),
        "terminate": ("",),
    }
    async with rigged(tmp_path) as rig:
        with pytest.raises(InstanceNotFound):
            await rig.call(method, *args[method])
        await rig.pass_time(0.01)
        assert not rig.rows("instances")
        assert rig.host.peek(EntityRef("Engine", KEY)) is None


# --- payloads and annotations -------------------------------------------------------------------


@dataclass
class Order:
    """A typed payload."""

    item: str
    at: datetime


async def test_payload_and_results_have_the_annotated_types(tmp_path: Path) -> None:
    class Typed(WorkflowEntrypoint):
        async def run(self, event: WorkflowEvent[Order], step: Step) -> Any:
            def next_day() -> datetime:
                return event.payload.at + timedelta(days=1)

            at = await step.do("next day", next_day)
            await step.sleep("s", 1)
            return [type(event.payload).__name__, type(at).__name__, at.day]

    async with rigged(tmp_path) as rig:
        params = {"item": "pen", "at": "2030-01-31T00:00:00Z"}
        assert await rig.run(Typed, params) == ["Order", "datetime", 1]


async def test_params_of_another_type_end_the_instance(tmp_path: Path) -> None:
    class Typed(WorkflowEntrypoint):
        async def run(self, event: WorkflowEvent[Order], step: Step) -> Any: ...

    async with rigged(tmp_path) as rig:
        await rig.create(Typed, {"item": 3})
        view = await rig.ended()
        assert view.status == "errored"
        assert view.error is not None
        assert view.error.name == "ValidationError"


async def test_the_event_tells_when_it_was_created_alike_at_replay(tmp_path: Path) -> None:
    @workflow(name="times")
    async def run(event: Event, step: Step) -> Any:
        before = event.timestamp
        await step.sleep("s", 5)
        return [before.isoformat(), event.timestamp.isoformat()]

    async with rigged(tmp_path) as rig:
        created = await rig.create(run)
        await rig.status("waiting")
        rig.restart()
        view = await rig.ended()
        at = datetime.fromtimestamp(created.created_ms / 1_000, UTC).isoformat()
        assert view.output == f'["{at}","{at}"]'.encode()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (object(), "UnencodableValue"),
        (float("nan"), "UnencodableValue"),
        ({1, object}, "UnencodableValue"),
        ("x" * limits.PAYLOAD_BYTES_MAX, "PayloadTooLarge"),
    ],
    ids=["object", "nan", "set", "large"],
)
async def test_a_result_that_cannot_be_kept_ends_the_instance_at_once(
    tmp_path: Path, value: Any, error: str
) -> None:
    @workflow(name="bad")
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.do("odd", lambda: value)
        except BaseException:
            return "swallowed"

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == error
        assert "'odd-1'" in view.error.message
        assert "'bad'" in view.error.message
        step = view.steps[0]
        assert (step.success, step.attempts_total) == (False, 1)


async def test_an_output_that_cannot_be_kept_ends_the_instance(tmp_path: Path) -> None:
    @workflow(name="bad")
    async def run(event: Event, step: Step) -> Any:
        return lambda: 1

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "UnencodableValue"
        assert view.output is None


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
        assert step.attempts[0].error == ErrorView("ValueError", "1")
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
        assert view.error == ErrorView("NonRetryableError", "no use")
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


# --- waiting and waking -------------------------------------------------------------------------


async def test_a_sleeper_holds_no_slot_and_asks_for_one_again(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(30))
        await rig.status("waiting")
        parked = rig.reports[-1]
        assert parked.state == "waiting"
        assert parked.wake_ms == (await rig.step("nap-1")).end_ms
        rig.auto = False
        await rig.status("queued")
        asked = rig.reports[-1]
        assert (asked.state, asked.turn, asked.awakened) == ("queued", 2, True)
        assert asked.since_ms >= parked.wake_ms
        assert not (await rig.step("nap-1")).finished  # not delivered without a slot
        assert not (await rig.grant(rig.reports[0]))[0]  # the first turn's slot
        assert (await rig.grant(asked))[0]
        assert (await rig.ended()).output == b'"rested"'
        assert (await rig.grant(asked)) == [False]


@pytest.mark.parametrize("outcome", ["lost", "kept"])
async def test_a_sleep_over_a_restart_ends_in_time(tmp_path: Path, outcome: Any) -> None:
    async with rigged(tmp_path) as rig:
        created = await rig.create(napping(3_600))
        await rig.status("waiting")
        rig.restart(outcome)
        view = await rig.ended()
        assert 3_600_000 <= (view.ended_ms or 0) - created.created_ms < 3_601_000


async def test_a_waiting_instance_leaves_memory_and_comes_back(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(3_600))
        await rig.status("waiting")
        await rig.pass_time(300)
        assert rig.host.peek(EntityRef("Engine", KEY)) is None
        assert (await rig.ended()).output == b'"rested"'


async def test_a_wait_that_is_satisfied_while_bodies_run_keeps_the_slot(tmp_path: Path) -> None:
    @workflow(name="both")
    async def run(event: Event, step: Step) -> Any:
        async def body() -> None:
            await asyncio.sleep(10)

        async def side() -> Any:
            await step.sleep("short", 2)
            got = await step.wait_for_event("w", "go")
            return await step.do("side", lambda: got.payload)

        _, side_result = await asyncio.gather(step.do("long", body), side())
        return side_result

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.until(lambda view: view.step_count == 3)
        await rig.call("send_event", "go", b'"x"', "")
        view = await rig.until(lambda view: view.step_count == 4)
        assert view.status == "running"
        assert (await rig.ended()).output == b'"x"'
        assert [report.state for report in rig.reports] == ["queued", "ended"]


async def test_outcomes_are_not_delivered_while_it_queues(tmp_path: Path) -> None:
    began: list[str] = []

    @workflow(name="two")
    async def run(event: Event, step: Step) -> Any:
        async def one(name: str) -> None:
            await step.wait_for_event(name, name)
            await step.do(f"after {name}", lambda: began.append(name))

        await asyncio.gather(one("a"), one("b"))

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("waiting")
        rig.auto = False
        await rig.call("send_event", "b", b"1", "")
        await rig.call("send_event", "a", b"1", "")
        await rig.pass_time(10)
        assert (await rig.view()).status == "queued"
        assert not began
        rig.grant(rig.reports[-1])
        await rig.ended()
        assert began == ["b", "a"]


async def test_a_retry_gives_the_slot_up(tmp_path: Path) -> None:
    def body() -> None:
        raise ValueError("x")

    async with rigged(tmp_path) as rig:
        await rig.create(one_step(body))
        await rig.status("waiting")
        step = await rig.step("a-1")
        assert step.retry_at_ms == rig.reports[-1].wake_ms
        assert step.success is None


# --- events -------------------------------------------------------------------------------------


async def test_events_reach_a_sleeping_and_a_queued_instance(tmp_path: Path) -> None:
    @workflow(name="chat")
    async def run(event: Event, step: Step) -> Any:
        got = [(await step.wait_for_event("w", "say")).payload for _ in range(2)]
        last = await step.wait_for_event("w", "say")
        return [*got, last.type, last.timestamp.tzinfo is not None]

    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(run)
        await rig.call("send_event", "say", b'"early"', "")
        rig.auto = True
        rig.grant(rig.reports[0])
        await rig.status("waiting")
        await rig.call("send_event", "say", b'"second"', "")
        await rig.status("waiting")
        await rig.call("send_event", "unasked", b"1", "")
        rig.restart()
        await rig.call("send_event", "say", b"3", "")
        assert (await rig.ended()).output == b'["early","second","say",true]'
        assert [row[2] for row in rig.rows("events")] == ["unasked"]


async def test_an_event_is_sent_once_per_request_id(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(waiting())
        first = await rig.call("send_event", "go", b"1", "e1")
        await rig.pass_time(5)
        rig.restart()
        assert await rig.call("send_event", "go", b"1", "e1") == first
        assert await rig.call("send_event", "go", b"1", "e2") > first
        assert len(rig.rows("events")) == 2


async def test_old_request_ids_are_forgotten(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(waiting())
        for n in range(limits.REQUEST_IDS_KEPT_MAX + 20):
            await rig.call("send_event", "go", b"1", f"e{n}")
        assert len(rig.rows("requests")) == limits.REQUEST_IDS_KEPT_MAX


async def test_bad_events_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_BUFFERED_MAX", 2)
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(waiting())
        with pytest.raises(InvalidId):
            await rig.call("send_event", "a.b", b"1", "")
        with pytest.raises(InvalidPayload):
            await rig.call("send_event", "go", b"{", "")
        for _ in range(2):
            await rig.call("send_event", "other", b"1", "")
        with pytest.raises(EventsBufferFull):
            await rig.call("send_event", "go", b"1", "")
        assert len(rig.rows("events")) == 2


async def test_an_event_to_what_has_ended_is_refused(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.run(one_step(lambda: 1))
        with pytest.raises(InstanceFinished):
            await rig.call("send_event", "go", b"1", "")


async def test_a_wait_times_out(tmp_path: Path) -> None:
    @workflow(name="patience")
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.wait_for_event("w", "go", timeout="1 minute")
        except TimeoutError as error:
            return type(error).__name__

    async with rigged(tmp_path) as rig:
        assert await rig.run(run) == "EventTimeout"
        step = await rig.step("w-1")
        assert (step.type, step.success, step.finished) == ("waitForEvent", False, True)
        assert step.event_type == "go"


# --- terminate and wait -------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["queued", "running", "waiting"])
async def test_terminate_ends_it_from_any_unfinished_status(tmp_path: Path, status: str) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = status != "queued"
        await rig.create(napping() if status == "waiting" else hanging())
        await rig.status(status)
        view = view_of(await rig.call("terminate", "t1"))
        assert view.status == "terminated"
        assert view_of(await rig.call("terminate", "t1")).status == "terminated"
        with pytest.raises(InvalidTransition):
            await rig.call("terminate", "t2")
        await rig.pass_time(100)
        assert rig.reports[-1].state == "ended"
        assert (await rig.grant(rig.reports[0])) == [False]
        rig.restart()
        await rig.pass_time(100)
        assert (await rig.view()).status == "terminated"


@pytest.mark.parametrize("status", ["complete", "errored"])
async def test_terminate_does_not_touch_what_has_ended(tmp_path: Path, status: str) -> None:
    def body() -> int:
        return 1 if status == "complete" else 1 // 0

    async with rigged(tmp_path) as rig:
        await rig.create(one_step(body, ONCE))
        await rig.ended()
        with pytest.raises(InvalidTransition, match=status):
            await rig.call("terminate", "t1")
        assert (await rig.view()).status == status


async def test_terminate_cancels_bodies_and_refuses_their_results(tmp_path: Path) -> None:
    ends: list[str] = []

    async def body() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("cancelled")
        return "late"

    async with rigged(tmp_path) as rig:
        await rig.create(one_step(body))
        await rig.until(lambda view: bool(view.steps))
        await rig.call("terminate", "")
        await rig.pass_time(1)
        assert ends == ["cancelled"]
        step = (await rig.view()).steps[0]
        assert (step.success, step.output) == (False, None)


async def test_a_wait_is_answered_at_the_end_or_in_time(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(20))
        early = rig.call("wait", 5_000)
        late = [rig.call("wait", 60_000) for _ in range(3)]
        assert view_of(await early).status == "waiting"
        assert {view_of(view).status for view in await asyncio.gather(*late)} == {"complete"}
        assert view_of(await rig.call("wait", 60_000)).output == b'"rested"'


async def test_too_many_waiters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAITERS_PER_INSTANCE_MAX", 2)
    async with rigged(tmp_path) as rig:
        await rig.create(napping(20))
        waits = [rig.call("wait", 60_000) for _ in range(2)]
        with pytest.raises(Overloaded):
            await rig.call("wait", 60_000)
        await asyncio.gather(*waits)


# --- grants, reports, the alarm -----------------------------------------------------------------


async def test_stale_grants_are_refused_and_doubled_ones_are_harmless(tmp_path: Path) -> None:
    began: list[int] = []

    async def body() -> None:
        began.append(1)
        await asyncio.sleep(5)

    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(one_step(body))
        asked = rig.reports[0]
        assert await rig.grant(asked, run_id="other") == [False]
        assert await rig.grant(asked, turn=2) == [False]
        assert await rig.grant(asked, key="acc/u1/nobody") == [False]
        answers = await asyncio.gather(rig.grant(asked), rig.grant(asked))
        assert answers == [[True], [True]]
        await rig.ended()
        assert began == [1]
        assert await rig.grant(asked) == [False]


async def test_lost_reports_are_repeated(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.deaf = True
        await rig.create(one_step(lambda: 1))
        await rig.pass_time(1)
        rig.deaf = False
        await rig.ended()


async def test_a_created_instance_runs_even_if_all_messages_about_it_are_lost(
    tmp_path: Path,
) -> None:
    async with rigged(tmp_path) as rig:
        rig.deaf = True
        await rig.create(one_step(lambda: 1))
        rig.restart()
        rig.deaf = False
        view = await rig.ended()
        assert (view.ended_ms or 0) - view.created_ms <= limits.ANNOUNCE_ALARM_MS + 100


async def test_without_the_alarm_it_would_be_lost(tmp_path: Path) -> None:
    async with rigged(tmp_path, EngineFaults(no_announce_alarm=True)) as rig:
        rig.deaf = True
        await rig.create(one_step(lambda: 1))
        rig.restart()
        rig.deaf = False
        await rig.pass_time(3_600)
        assert (await rig.view()).status == "queued"


async def test_a_confirmed_end_leaves_no_alarm_and_no_entity(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(one_step(lambda: 1), wait_ms=60_000)
        await rig.pass_time(0.1)
        assert not rig.rows("alarms")
        assert rig.host.peek(EntityRef("Engine", KEY)) is None


async def test_a_confirmed_queue_leaves_no_alarm(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(one_step(lambda: 1))
        assert len(rig.rows("alarms")) == 1
        await rig.pass_time(2)
        assert not rig.rows("alarms")
        rig.grant(rig.reports[0])
        await rig.ended()


async def test_a_sleepers_alarm_is_its_timer(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(3_600))
        await rig.status("waiting")
        await rig.pass_time(2)
        wake_ms = rig.reports[-1].wake_ms
        assert [row[2] for row in rig.rows("alarms")] == [wake_ms]


async def test_a_poke_makes_it_report_and_look(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(30))
        await rig.status("waiting")
        before = len(rig.reports)
        gone = await rig.call("poke_many", "s", 1, [KEY, "acc/u1/x"], kind="EngineShard")
        assert gone == ["acc/u1/x"]
        await rig.pass_time(0.1)
        assert [r.state for r in rig.reports[before:]] == ["waiting"]
        rig.clock.skew_ms = 40_000  # the clock jumped: it is due, and no alarm has fired yet
        await rig.call("poke_many", "s", 1, [KEY], kind="EngineShard")
        assert (await rig.ended()).status == "complete"


# --- code ---------------------------------------------------------------------------------------


async def test_changed_code_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(30))
        await rig.status("waiting")
        rig.restart()
        rig.define(napping(30), "h2")
        with caplog.at_level(logging.WARNING):
            view = await rig.ended()
        assert view.status == "complete"
        assert view.code_changed
        assert "goes on with h2" in caplog.text


async def test_code_that_is_missing_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create("later")
        view = await rig.status("running")
        assert not view.steps
        assert "not loaded" in caplog.text
        rig.restart()
        await rig.pass_time(60)

        @workflow(name="later")
        async def run(event: Event, step: Step) -> str:
            return "loaded"

        rig.define(run)
        assert (await rig.ended()).output == b'"loaded"'


async def test_an_entry_point_that_cannot_be_made_ends_the_instance(tmp_path: Path) -> None:
    class Broken(WorkflowEntrypoint):
        def __init__(self) -> None:
            raise SystemExit("no")

        async def run(self, event: Event, step: Step) -> Any: ...

    async with rigged(tmp_path) as rig:
        await rig.create(Broken)
        view = await rig.ended()
        assert view.error == ErrorView("SystemExit", "no")


async def test_non_determinism_parks_the_instance(tmp_path: Path) -> None:
    began: list[str] = []

    def make(name: str) -> Any:
        @workflow(name="changes")
        async def run(event: Event, step: Step) -> Any:
            await step.do(name, lambda: began.append(name))
            await step.sleep("s", 30)

        return run

    async with rigged(tmp_path) as rig:
        await rig.create(make("old"))
        await rig.status("waiting")
        rig.restart()
        rig.define(make("new"), "h2")
        view = await rig.ended()
        assert view.status == "errored"
        assert view.error is not None
        assert view.error.name == "NonDeterminism"
        assert "'old-1'" in view.error.message
        assert "'new-1'" in view.error.message
        assert began == ["old"]
        assert [step.name for step in view.steps] == ["old-1", "s-1"]
