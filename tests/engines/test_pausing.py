"""Pause and resume: what waits for what, how timers move, and crashes between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.flows import Event, Step, hanging, napping, one_step, waiting
from tests.engines.rig import KEY, Rig, on_virtual_time, rigged, view_of
from toque.engines.body_call import StepContext
from toque.engines.views import InstanceView, WaitingView
from toque.engines.workflow import workflow
from toque.runtime.errors import InvalidTransition
from toque.runtime.ids import EntityRef

pytestmark = pytest.mark.loop(factory=on_virtual_time)


async def do(rig: Rig, operation: str, request_id: str = "") -> InstanceView:
    """An operation."""
    return view_of(await rig.call(operation, request_id))


def two_steps(seconds: float = 10) -> Any:
    """A workflow of two steps that take a while."""

    async def body(ctx: StepContext) -> str:
        await asyncio.sleep(seconds)
        return ctx.step

    @workflow(name="two")
    async def run(event: Event, step: Step) -> Any:
        return [await step.do("a", body), await step.do("b", body)]

    return run


async def test_pause_waits_for_the_step_in_flight_and_starts_no_other(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(two_steps())
        await rig.status("running")
        assert (await do(rig, "pause")).status == "waitingForPause"
        assert rig.reports[-1].state == "running"
        view = await rig.status("paused")
        assert [(s.name, s.success) for s in view.steps] == [("a-1", True), ("b-1", None)]
        assert not view.steps[1].attempts
        assert rig.reports[-1].state == "paused"
        await rig.pass_time(1_000)
        assert (await rig.view()).status == "paused"
        assert not rig.rows("alarms")
        assert (await do(rig, "resume")).status == "queued"
        assert (await rig.ended()).output == b'["a","b"]'


async def test_pause_waits_for_all_that_is_in_flight(tmp_path: Path) -> None:
    def sleeper(seconds: float) -> Any:
        return lambda: asyncio.sleep(seconds, seconds)

    @workflow(name="many")
    async def run(event: Event, step: Step) -> Any:
        done = await asyncio.gather(*(step.do(f"s{n}", sleeper(n)) for n in (1, 5, 9)))
        await step.sleep("nap", 1)
        return done

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("running")
        await do(rig, "pause")
        await rig.pass_time(6)
        view = await rig.view()
        assert view.status == "waitingForPause"
        assert [s.success for s in view.steps] == [True, True, None]
        await rig.status("paused")
        await do(rig, "resume")
        assert (await rig.ended()).output == b"[1,5,9]"


async def test_a_run_that_ends_meanwhile_has_ended(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(one_step(lambda: asyncio.sleep(3, "x")))
        await rig.status("running")
        await do(rig, "pause")
        assert (await rig.ended()).output == b'"x"'


async def test_resume_takes_back_a_pending_pause(tmp_path: Path) -> None:
    @workflow(name="mixed")
    async def run(event: Event, step: Step) -> Any:
        quick = asyncio.create_task(step.do("quick", lambda: asyncio.sleep(1)))
        slow = asyncio.create_task(step.do("slow", lambda: asyncio.sleep(100)))
        await quick
        await step.do("next", lambda: None)
        await slow

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("running")
        await do(rig, "pause")
        await rig.pass_time(10)
        assert not (await rig.step("next-1")).attempts
        assert (await do(rig, "resume")).status == "running"
        await rig.pass_time(1)
        assert (await rig.step("next-1")).success
        assert (await rig.ended()).status == "complete"


@pytest.mark.parametrize("crash", [False, True])
async def test_timers_move_by_the_length_of_the_pause(tmp_path: Path, crash: bool) -> None:
    @workflow(name="timers")
    async def run(event: Event, step: Step) -> Any:
        fired: list[str] = []

        async def note(name: str, awaitable: Any) -> None:
            try:
                await awaitable
            except TimeoutError:
                name += " timed out"
            fired.append(name)

        def bad(ctx: StepContext) -> None:
            if ctx.attempt == 1:
                raise ValueError

        retry = {"retries": {"limit": 1, "delay": 30}}
        await asyncio.gather(
            note("nap", step.sleep("nap", 10)),
            note("loop", asyncio.sleep(20)),
            note("retry", step.do("bad", bad, retry)),
            note("wait", step.wait_for_event("w", "go", timeout=40)),
        )
        return fired

    async with rigged(tmp_path) as rig:
        began_ms = rig.clock.now_ms()
        await rig.create(run)
        await rig.status("waiting")
        for length_s in (100, 1_000):
            await do(rig, "pause")
            assert (await rig.view()).status == "paused"
            await rig.pass_time(length_s)
            if crash:
                rig.restart()
            assert (await do(rig, "resume")).status == "waiting"
            await rig.pass_time(5)
        assert b"nap" not in ((await rig.view()).output or b"")
        view = await rig.ended()
        assert view.output == b'["nap","loop","retry","wait timed out"]'
        ends = {s.name: ((s.end_ms or 0) - began_ms) // 1000 for s in view.steps}
        assert ends == {"nap-1": 1_110, "bad-1": 1_130, "w-1": 1_140}


async def test_what_came_due_meanwhile_asks_for_a_slot(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(waiting())
        await rig.status("waiting")
        await do(rig, "pause")
        await rig.call("send_event", "other", b"0", "")
        await rig.call("send_event", "go", b"7", "")
        await rig.pass_time(50)
        assert (await rig.view()).status == "paused"
        assert (await do(rig, "resume")).status == "queued"
        assert (await rig.ended()).output == b"7"


async def test_a_queued_instance_is_paused_at_once_and_its_grant_refused(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(napping(1))
        await rig.pass_time(0.1)
        assert (await do(rig, "pause")).status == "paused"
        assert await rig.grant(rig.reports[0]) == [False]
        rig.restart()
        assert (await do(rig, "resume")).status == "queued"
        await rig.pass_time(0.1)
        assert not rig.reports[-1].awakened
        assert await rig.grant(rig.reports[0]) == [False]
        rig.auto = True
        assert await rig.grant(rig.reports[-1]) == [True]
        assert (await rig.ended()).output == b'"rested"'


async def test_a_crash_while_pausing_leaves_it_paused(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(two_steps())
        await rig.status("running")
        await do(rig, "pause")
        await rig.pass_time(1)
        rig.restart()
        assert (await rig.status("paused")).steps[0].attempts[-1].end_ms is None
        await rig.pass_time(1)
        assert rig.reports[-1].state == "paused"
        await do(rig, "resume")
        view = await rig.ended()
        assert view.output == b'["a","b"]'
        assert [a.error.name for a in view.steps[0].attempts if a.error] == ["StepInterrupted"]


async def test_a_request_takes_effect_once(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(60))
        await rig.status("waiting")
        await do(rig, "pause", "p1")
        assert (await do(rig, "pause", "p1")).status == "paused"
        with pytest.raises(InvalidTransition, match="paused"):
            await do(rig, "pause", "p2")
        await do(rig, "resume", "r1")
        assert (await do(rig, "pause", "p1")).status == "waiting"
        assert (await do(rig, "resume", "r2")).status == "waiting"  # no effect
        rig.restart()
        assert (await do(rig, "pause", "p1")).status == "waiting"


@pytest.mark.parametrize("operation", ["pause", "resume"])
async def test_what_has_ended_takes_none(tmp_path: Path, operation: str) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(one_step(lambda: 1))
        await rig.ended()
        rows = rig.rows("instances")
        with pytest.raises(InvalidTransition, match="complete"):
            await do(rig, operation)
        await rig.pass_time(1)
        assert rig.rows("instances") == rows


async def test_a_paused_instance_can_be_terminated(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(hanging())
        await rig.status("running")
        await do(rig, "pause")
        assert (await do(rig, "terminate")).status == "terminated"
        await rig.pass_time(1)
        assert rig.reports[-1].state == "ended"


async def test_an_instance_may_pause_itself(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:

        async def body() -> str:
            return view_of(await rig.call("pause", "self")).status

        await rig.create(one_step(body))
        await rig.ended()
        assert (await rig.view()).output == b'"waitingForPause"'


@pytest.mark.parametrize("operation", ["cancel", "resume", "terminate", "restart"])
async def test_an_operation_finds_a_pending_pause_whose_bodies_a_reset_took(
    tmp_path: Path, operation: str
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(two_steps())
        await rig.status("running")
        assert (await do(rig, "pause")).status == "waitingForPause"
        ref = EntityRef("Engine", KEY)
        rig.host.reset(rig.host._live[ref], RuntimeError("a fault"))
        more = ("", 1, "do") if operation == "restart" else ()
        await rig.call(operation, "r2", *more)
        view = await rig.ended()
        ends_early = operation in ("cancel", "terminate")
        assert view.status == ("terminated" if ends_early else "complete")


# --- deadlines, instants and what is told of a paused instance ------------------------------------


def overdue() -> Any:
    """A workflow whose step would hang past its deadline."""

    @workflow(name="overdue")
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.do("a", hang, {"deadline": 60})
        except TimeoutError as error:
            await step.do("note", lambda: None)
            return type(error).__name__

    return run


async def hang() -> None:
    """A body."""
    await asyncio.get_running_loop().create_future()


async def test_a_pause_waits_for_no_step_past_its_deadline(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(overdue())
        await rig.status("running")
        await rig.pass_time(10)
        await do(rig, "pause")
        await rig.pass_time(45)
        assert (await rig.view()).status == "waitingForPause"
        await rig.pass_time(10)
        view = await rig.view()
        assert view.status == "paused"
        assert view.steps[0].error is not None
        assert view.steps[0].error.name == "StepDeadline"
        assert not view.steps[1].attempts
        await do(rig, "resume")
        assert (await rig.ended()).output == b'"StepDeadline"'


async def test_a_deadline_runs_on_while_its_step_does(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        began_s = rig.loop.time()
        await rig.create(overdue())
        await rig.status("running")
        for _ in range(2):
            await do(rig, "pause")
            await rig.pass_time(20)
            assert (await do(rig, "resume")).status == "running"
        await rig.ended()
        assert 60 <= rig.loop.time() - began_s < 62


async def test_a_deadline_stands_still_while_its_step_waits_for_the_end_of_a_pause(
    tmp_path: Path,
) -> None:
    """It failed in a pause that was pending; the time before that counts."""

    @workflow(name="late")
    async def run(event: Event, step: Step) -> Any:
        async def bad(ctx: StepContext) -> None:
            await asyncio.sleep(20 if ctx.attempt == 1 else 1_000)
            raise ValueError

        retries = {"limit": 5, "delay": 10, "backoff": "constant"}
        await step.do("a", bad, {"deadline": 60, "retries": retries})

    async with rigged(tmp_path) as rig:
        began_s = rig.loop.time()
        await rig.create(run)
        await rig.status("running")
        await do(rig, "pause")
        await rig.status("paused")
        waited_s = rig.loop.time() - began_s
        await rig.pass_time(500)
        await do(rig, "resume")
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "StepDeadline"
        assert 20 <= waited_s < 22
        assert 560 <= rig.loop.time() - began_s < 563


def dated(rig: Rig) -> Any:
    """A workflow that sleeps until an instant, and by the clock of asyncio and of a sleep."""
    until_s = rig.clock.now_ms() / 1_000 + 100

    @workflow(name="dated")
    async def run(event: Event, step: Step) -> Any:
        fired: list[str] = []

        async def note(name: str, awaitable: Any) -> None:
            await awaitable
            fired.append(name)

        await asyncio.gather(
            note("for", step.sleep("for", 50)),
            note("until", step.sleep_until("until", until_s)),
            note("later", step.sleep_until("later", until_s + 900)),
            note("loop", asyncio.sleep(60)),
        )
        return fired

    return run


@pytest.mark.parametrize("crash", [False, True])
async def test_an_instant_does_not_move_by_a_pause(tmp_path: Path, crash: bool) -> None:
    async with rigged(tmp_path) as rig:
        began_ms = rig.clock.now_ms()
        await rig.create(dated(rig))
        await rig.status("waiting")
        await do(rig, "pause")
        await rig.pass_time(80)
        if crash:
            rig.restart()
        assert (await do(rig, "resume")).status == "waiting"
        view = await rig.ended()
        assert view.output == b'["until","for","loop","later"]'
        ends = {s.name: ((s.end_ms or 0) - began_ms) // 1000 for s in view.steps}
        assert ends == {"until-1": 100, "for-1": 130, "later-1": 1_000}


async def test_an_instant_that_a_pause_outlasts_has_come(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(dated(rig))
        await rig.status("waiting")
        await do(rig, "pause")
        await rig.pass_time(200)
        assert (await do(rig, "resume")).status == "queued"
        assert (await rig.ended()).output == b'["until","for","loop","later"]'


async def test_an_instant_does_not_move_by_a_pause_that_is_taken_back(tmp_path: Path) -> None:
    @workflow(name="both")
    async def run(event: Event, step: Step) -> Any:
        until = step.sleep_until("until", rig.clock.now_ms() / 1_000 + 30)
        await asyncio.gather(step.do("a", lambda: asyncio.sleep(20)), until)

    async with rigged(tmp_path) as rig:
        began_s = rig.loop.time()
        await rig.create(run)
        await rig.status("running")
        await do(rig, "pause")
        await rig.pass_time(10)
        await do(rig, "resume")
        await rig.ended()
        assert rig.loop.time() - began_s < 32


async def test_a_paused_instance_shows_no_times_that_have_passed(tmp_path: Path) -> None:
    """What stands still is shown as it would be if it were resumed now."""
    async with rigged(tmp_path) as rig:

        @workflow(name="all")
        async def run(event: Event, step: Step) -> Any:
            def bad() -> None:
                raise ValueError

            await asyncio.gather(
                step.sleep("nap", 50),
                step.sleep_until("until", rig.clock.now_ms() / 1_000 + 5_000),
                step.wait_for_event("w", "go", timeout=70),
                step.do("bad", bad, {"retries": {"limit": 1, "delay": 40}}),
                asyncio.sleep(30),
            )

        began_ms = rig.clock.now_ms()
        await rig.create(run)
        await rig.status("waiting")
        await rig.pass_time(10)
        for _ in range(2):
            await do(rig, "pause")
            await rig.pass_time(300)
            told = msgspec.convert(await rig.call("waiting"), WaitingView)
            shown = {r.name or r.kind: r.due_ms for r in told.reasons}
            view = await rig.view()
            shown_of_steps = {s.name: s.retry_at_ms or s.end_ms for s in view.steps}
            await do(rig, "resume")
        assert told.reasons[0].kind == "pause"
        assert shown.pop("pause") is None
        due_s = {name: ((due or 0) - began_ms) // 1000 for name, due in shown.items()}
        expected = {"nap-1": 650, "until-1": 5_000, "w-1": 670, "bad-1": 640}
        assert due_s == {**expected, "timer": 630}
        assert {n: ((due or 0) - began_ms) // 1000 for n, due in shown_of_steps.items()} == expected
