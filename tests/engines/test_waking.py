"""An Engine that waits: sleeps, events, slots, reports, the alarm, its end.

On a real host and store, with a SousChef that does what the test says.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engines.flows import ONCE, Event, Step, hanging, napping, one_step, waiting
from tests.engines.rig import KEY, on_virtual_time, rigged, view_of
from toque.engines.env import EngineFaults
from toque.engines.failures import EventsBufferFull
from toque.engines.workflow import workflow
from toque.runtime import limits
from toque.runtime.errors import (
    InstanceFinished,
    InvalidId,
    InvalidPayload,
    InvalidTransition,
    Overloaded,
    RequestIdReused,
)
from toque.runtime.ids import EntityRef

pytestmark = pytest.mark.loop(factory=on_virtual_time)

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
        ended = await rig.ended()
        assert ended.output == b'"rested"'
        assert ended.created_ms == ended.queued_ms <= (ended.started_ms or 0) < parked.wake_ms
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
        for other in (("go", b"2"), ("stop", b"1")):
            with pytest.raises(RequestIdReused):
                await rig.call("send_event", *other, "e1")
        with pytest.raises(RequestIdReused):
            await rig.call("pause", "e1")
        assert len(rig.rows("events")) == 2


async def test_a_request_id_stands_for_one_create(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        made = await rig.create(waiting(), {"n": 1})
        rig.restart()
        assert (await rig.create(waiting(), {"n": 1})).run_id == made.run_id
        for other in ({"params": b"2"}, {"retention": (1, 1)}):
            with pytest.raises(RequestIdReused):
                await rig.create(waiting(), **{"params": {"n": 1}, **other})


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
        assert rig.due_alarms() == []
        assert rig.host.peek(EntityRef("Engine", KEY)) is None


async def test_a_confirmed_queue_leaves_no_alarm(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(one_step(lambda: 1))
        assert len(rig.due_alarms()) == 1
        await rig.pass_time(2)
        assert rig.due_alarms() == []
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


async def test_a_request_that_changed_something_can_not_delete_as_well(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(100))
        await rig.status("waiting")
        await rig.call("pause", "X")
        with pytest.raises(RequestIdReused):
            await rig.call("delete", "X")
        assert (await rig.view()).status == "paused"
        assert await rig.call("delete", "Y") is True
        assert await rig.call("delete", "Y") is True  # the same request again
