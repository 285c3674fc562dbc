"""An instance's events, and why it does not go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.flows import Event, Step, hanging, napping, waiting
from tests.engines.rig import KEY, Rig, on_virtual_time, rigged
from toque.engines.journal import PAYLOADS
from toque.engines.local_run import LocalRun
from toque.engines.run_port import Turn
from toque.engines.views import EventPage, InstanceEvent, WaitingView
from toque.engines.watch import EVENT_TYPES
from toque.engines.workflow import workflow
from toque.runtime import limits
from toque.runtime.codec import pack, unpack
from toque.runtime.errors import EntityReset, InstanceNotFound, InvalidArgument
from toque.runtime.ids import EntityRef

pytestmark = pytest.mark.loop(factory=on_virtual_time)


def eventful() -> Any:
    """A workflow with a retried step, a sleep, an event and a wait that times out."""
    calls = []

    @workflow(name="eventful")
    async def run(event: Event, step: Step) -> Any:
        def body() -> int:
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("once")
            return 7

        value = await step.do("a", body, {"retries": {"limit": 2, "delay": 5}})
        await step.sleep("nap", 60)
        await step.wait_for_event("w", "go")
        try:
            await step.wait_for_event("never", "gone", timeout=10)
        except TimeoutError:
            pass
        return value

    return run


async def page_of(
    rig: Rig, cursor: int = 0, limit: int = 500, types: Any = (), wait_ms: int = 0, key: str = KEY
) -> EventPage:
    """A page of events."""
    raw = await rig.call("events", cursor, limit, list(types), wait_ms, key=key)
    return msgspec.convert(raw, EventPage)


async def why(rig: Rig, key: str = KEY) -> WaitingView:
    """Why it waits."""
    return msgspec.convert(await rig.call("waiting", key=key), WaitingView)


async def followed(rig: Rig, events: list[InstanceEvent]) -> None:
    """All events as they come, by a page at a time."""
    cursor = 0
    while True:
        page = await page_of(rig, cursor, limit=3, wait_ms=5_000)
        events += page.events
        cursor = page.cursor
        if page.ended:
            return


async def play(rig: Rig) -> None:
    """`eventful`, to its end."""
    await rig.create(eventful())
    await rig.until(lambda view: any(step.name == "w-1" for step in view.steps))
    await rig.call("send_event", "go", b"1", "r2")
    await rig.ended()


EVENTFUL = [
    "workflow_queued",
    "workflow_started",
    "step_started",
    "attempt_started",
    "attempt_errored",
    "workflow_waiting",
    "workflow_queued",
    "workflow_running",
    "attempt_started",
    "attempt_completed",
    "step_completed",
    "sleep_started",
    "workflow_waiting",
    "workflow_queued",
    "workflow_running",
    "sleep_completed",
    "wait_started",
    "workflow_waiting",
    "workflow_queued",
    "workflow_running",
    "wait_completed",
    "wait_started",
    "workflow_waiting",
    "workflow_queued",
    "workflow_running",
    "wait_timed_out",
    "workflow_completed",
]


async def test_history_tells_everything_in_order(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await play(rig)
        page = await page_of(rig)
        assert [event.type for event in page.events] == EVENTFUL
        numbers = [event.no for event in page.events]
        assert numbers == sorted(set(numbers))
        assert page.ended
        assert page.cursor == numbers[-1]
        times = [event.at_ms for event in page.events]
        assert times == sorted(times)
        by_type = {event.type: event for event in page.events}
        failed = by_type["attempt_errored"]
        assert (failed.step, failed.attempt, failed.retry_delay_ms) == ("a-1", 1, 5_000)
        assert failed.error is not None
        assert failed.error.name == "ValueError"
        assert by_type["sleep_completed"].duration_ms == 60_000
        assert by_type["wait_timed_out"].event_type == "gone"
        assert by_type["step_completed"].output == b"7"
        assert by_type["workflow_completed"].output == b"7"


async def test_who_follows_sees_the_same_as_history_tells(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(eventful())
        live: list[InstanceEvent] = []
        following = rig.loop.create_task(followed(rig, live))
        await rig.until(lambda view: any(step.name == "w-1" for step in view.steps))
        await rig.call("send_event", "go", b"1", "r2")
        await following
        rig.restart()  # so that history is read off the rows
        assert live == (await page_of(rig)).events


async def test_numbers_stand_when_the_run_is_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = LocalRun._turn

    def copied(self: LocalRun) -> Any:
        return unpack(pack(turn(self)), Turn)

    monkeypatch.setattr(LocalRun, "_turn", copied)
    monkeypatch.setattr(LocalRun, "records", lambda self: None)
    async with rigged(tmp_path) as rig:
        await play(rig)
        events = (await page_of(rig)).events
        assert [event.type for event in events] == EVENTFUL
        assert [event.no for event in events] == list(range(1, len(EVENTFUL) + 1))


async def test_a_cursor_stays_valid_when_the_shard_restarts(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(eventful())
        seen: list[InstanceEvent] = []
        for _ in range(len(EVENTFUL)):
            page = await page_of(rig, seen[-1].no if seen else 0, limit=1, wait_ms=100_000)
            seen += page.events
            if seen[-1].type == "wait_started" and len(seen) < 20:
                await rig.call("send_event", "go", b"1", "r2")
            rig.restart("kept")
        assert [event.type for event in seen if "attempt" not in event.type] == [
            kind for kind in EVENTFUL if "attempt" not in kind
        ]
        assert (await page_of(rig, seen[-1].no)).ended


@pytest.mark.parametrize("at", range(1, 16))
@pytest.mark.parametrize("outcome", ["kept", "lost"])
async def test_what_was_shown_stays_as_it_was_through_a_crash(
    tmp_path: Path, at: int, outcome: Any
) -> None:
    async with rigged(tmp_path) as rig:
        rig.crash_at = (at, outcome)
        seen: dict[int, InstanceEvent] = {}
        creating = [rig.create_call(eventful())]

        async def look() -> bool:
            crashes = rig.crashes
            asked = rig.call("events", 0, 500, [], 0)
            while not asked.done():
                await rig.pass_time(0.001)
                if rig.crashes != crashes:
                    asked.cancel()
                    return False
            if asked.exception() is not None:
                assert isinstance(asked.exception(), InstanceNotFound)
                return False
            page = msgspec.convert(asked.result(), EventPage)
            now = {event.no: event for event in page.events}
            assert {no: now.get(no) for no in seen} == seen
            seen.update(now)
            if page.events[-1].type == "workflow_waiting" and page.events[-2].event_type == "go":
                rig.call("send_event", "go", b"1", "r2").add_done_callback(
                    lambda done: done.cancelled() or done.exception()
                )
            return page.ended

        for _ in range(400):
            if await look():
                break
            if rig.crashes and not seen and len(creating) == 1:
                creating.append(rig.create_call("eventful"))
            await rig.pass_time(1)
        await asyncio.gather(*creating, return_exceptions=True)
        assert list(seen.values())[-1].type == "workflow_completed"


async def test_an_event_is_not_shown_before_it_is_durable(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping())
        await rig.status("waiting")
        rig.hold_commits()
        await rig.call("view", False, False)
        asked = rig.call("events", 0, 500, ["workflow_terminated"], 60_000)
        ending = rig.call("terminate", "r9")
        await rig.pass_time(1)
        assert not asked.done()
        rig.release_commits()
        page = msgspec.convert(await asked, EventPage)
        await ending
        assert [event.type for event in page.events] == ["workflow_terminated"]
        assert page.ended


async def test_pages_filter_by_type_and_still_move_on(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await play(rig)
        page = await page_of(rig, types=["step_completed", "workflow_completed"], limit=1)
        assert [event.type for event in page.events] == ["step_completed"]
        rest = await page_of(rig, page.cursor, types=["step_completed", "workflow_completed"])
        assert [event.type for event in rest.events] == ["workflow_completed"]
        none = await page_of(rig, types=["workflow_paused"])
        assert not none.events
        assert none.ended
        assert none.cursor == rest.cursor


async def test_bad_questions_are_refused(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping())
        with pytest.raises(InvalidArgument, match="no events of type 'step_done'"):
            await page_of(rig, types=["step_done"])
        for cursor, limit in ((-1, 5), (0, 0), (0, limits.EVENTS_PAGE_MAX + 1)):
            with pytest.raises(InvalidArgument):
                await page_of(rig, cursor, limit)
        with pytest.raises(InstanceNotFound):
            await page_of(rig, key="acc/u1/other")


async def test_a_wait_for_events_ends_in_time_and_with_the_instance(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(waiting())
        await rig.status("waiting")
        first = await page_of(rig)
        idle = await page_of(rig, first.cursor, wait_ms=3_000)
        assert (idle.events, idle.cursor, idle.ended) == ([], first.cursor, False)
        asked = rig.call("events", first.cursor, 500, [], 60_000)
        await rig.call("terminate", "r3")
        page = msgspec.convert(await asked, EventPage)
        assert [event.type for event in page.events] == ["workflow_terminated"]
        assert page.ended


async def test_history_outlives_memory_and_many_changes_of_status(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:

        @workflow(name="naps")
        async def naps(event: Event, step: Step) -> None:
            for _ in range(20):
                await step.sleep("nap", 1)

        await rig.create(naps)
        await rig.ended()
        assert rig.rows("status_notes")
        assert len(rig.rows("status_notes")) > 2
        events = (await page_of(rig)).events
        kinds = [event.type for event in events]
        assert kinds.count("workflow_waiting") == 20
        assert kinds.count("sleep_completed") == 20
        assert kinds[:2] == ["workflow_queued", "workflow_started"]
        assert kinds[-1] == "workflow_completed"
        await rig.pass_time(200)  # it leaves memory
        assert (await page_of(rig)).events == events


async def test_large_outputs_are_left_out_and_given_up_steps_are_told(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:

        @workflow(name="mixed")
        async def mixed(event: Event, step: Step) -> None:
            nap = asyncio.create_task(step.sleep("long", 1_000))
            await step.do("big", lambda: "x" * 10_000)
            nap.cancel()

        await rig.create(mixed)
        await rig.ended()
        events = (await page_of(rig)).events
        done = next(event for event in events if event.type == "step_completed")
        assert (done.output, done.output_cut) == (None, True)
        assert "sleep_cancelled" in [event.type for event in events]
        assert {event.type for event in events} <= EVENT_TYPES


async def test_what_nobody_watches_is_not_kept_in_memory(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(hanging())
        await rig.status("running")
        engine: Any = rig.host.local(EntityRef("Engine", KEY))
        assert engine._rows.log is None
        await page_of(rig)
        assert engine._rows.log is not None


async def test_a_rollback_is_told(tmp_path: Path) -> None:
    @workflow(name="saga")
    async def saga(event: Event, step: Step) -> None:
        await step.do("book", lambda: 1, rollback=lambda: None)
        raise ValueError("full")

    async with rigged(tmp_path) as rig:
        await rig.create(saga)
        await rig.ended()
        kinds = [event.type for event in (await page_of(rig)).events]
        assert kinds[kinds.index("rollback_started") :] == [
            "rollback_started",
            "rollback_step_started",
            "rollback_attempt_started",
            "rollback_attempt_completed",
            "rollback_step_completed",
            "rollback_completed",
            "workflow_errored",
        ]


async def test_a_delay_that_a_function_tells_is_in_the_event(tmp_path: Path) -> None:
    calls: list[int] = []

    @workflow(name="told")
    async def told(event: Event, step: Step) -> None:
        def body() -> None:
            calls.append(1)
            if len(calls) == 1:
                raise ValueError("once")

        await step.do("a", body, {"retries": {"limit": 2, "delay": lambda ctx, error: 7}})

    async with rigged(tmp_path) as rig:
        await rig.create(told)
        await rig.ended()
        events = (await page_of(rig)).events
        failed = [event for event in events if event.type == "attempt_errored"]
        assert [(event.retry_delay_ms or 0) // 100 for event in failed] == [70]
        assert [event.no for event in events] == sorted({event.no for event in events})


async def test_a_sensitive_output_is_not_told(tmp_path: Path) -> None:
    @workflow(name="secret")
    async def secret(event: Event, step: Step) -> None:
        await step.do("a", lambda: "hush", {"sensitive": "output"})

    async with rigged(tmp_path) as rig:
        await rig.create(secret)
        await rig.ended()
        page = await page_of(rig, types=["step_completed"])
        assert page.events[0].output == b'"[REDACTED]"'
        assert "hush" not in str((await page_of(rig)).events)


async def test_numbers_go_on_over_a_restart_of_the_instance(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(5))
        await rig.ended()
        first = (await page_of(rig)).events
        await rig.call("restart", "again", "", 0, "")
        page = await page_of(rig, first[-1].no, wait_ms=10_000)
        assert page.events[0].no > first[-1].no
        assert page.events[0].type == "workflow_queued"
        await rig.ended()
        kinds = [event.type for event in (await page_of(rig, first[-1].no)).events]
        assert kinds == [event.type for event in first]


async def test_who_follows_an_entity_hears_of_its_next_run(tmp_path: Path) -> None:
    @workflow(name="twice")
    async def twice(event: Event, step: Step) -> Any:
        await step.sleep("nap", 5)
        return event.payload if event.payload else step.continue_as_new(1)

    async with rigged(tmp_path) as rig:
        await rig.create(twice, 0)
        seen: list[InstanceEvent] = []
        await followed(rig, seen)
        assert [event.no for event in seen] == sorted({event.no for event in seen})
        assert [event.type for event in seen].count("workflow_started") == 2
        assert seen[-1].type == "workflow_completed"


# --- why it waits --------------------------------------------------------------------------------


def one_of(view: WaitingView, kind: str) -> Any:
    """The one reason of a kind."""
    (found,) = [reason for reason in view.reasons if reason.kind == kind]
    return found


@pytest.mark.parametrize("is_evicted", [False, True])
async def test_a_waiting_instance_says_for_what(tmp_path: Path, is_evicted: bool) -> None:
    async with rigged(tmp_path) as rig:

        @workflow(name="waits")
        async def waits(event: Event, step: Step) -> None:
            def fails() -> None:
                raise ValueError("not yet")

            async with asyncio.timeout(500):
                await asyncio.gather(
                    step.sleep("nap", 10_000),
                    step.wait_for_event("w", "go", timeout=20_000),
                    step.do("a", fails, {"retries": {"limit": 3, "delay": 3_000}}),
                )

        await rig.create(waits)
        created = await rig.status("waiting")
        await rig.call("send_event", "odd", b"1", "e1")
        await rig.call("send_event", "odd", b"2", "e2")
        if is_evicted:
            rig.restart("kept")
            await rig.pass_time(0.1)
        view = await why(rig)
        assert view.in_memory is not is_evicted
        assert view.status == "waiting"
        begun_ms = created.created_ms
        nap, wait, retry, timer = (one_of(view, k) for k in ("sleep", "event", "retry", "timer"))
        assert nap.name == "nap-1"
        assert nap.due_ms - nap.since_ms == 10_000_000
        assert (wait.name, wait.event_type) == ("w-1", "go")
        assert wait.due_ms - wait.since_ms == 20_000_000
        assert (retry.name, retry.attempt) == ("a-1", 2)
        assert retry.due_ms - retry.since_ms == 3_000_000
        assert retry.error.message == "not yet"
        assert 500_000 <= timer.due_ms - begun_ms < 501_000
        (odd,) = view.buffered
        assert (odd.type, odd.count, odd.awaited) == ("odd", 2, False)
        assert odd.oldest_ms >= begun_ms


async def test_a_queued_instance_says_since_when_and_a_running_one_what_runs(
    tmp_path: Path,
) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(hanging())
        await rig.status("queued")
        await rig.pass_time(3)
        view = await why(rig)
        assert [reason.kind for reason in view.reasons] == ["slot"]
        assert (rig.clock.now_ms() - view.reasons[0].since_ms) >= 3_000
        await rig.grant(rig.reports[-1])
        await rig.status("running")
        running = one_of(await why(rig), "step")
        assert (running.name, running.attempt) == ("a-1", 1)


async def test_an_event_that_a_wait_asks_for_is_told_apart(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(waiting())
        await rig.status("waiting")
        rig.auto = False
        await rig.call("send_event", "go", b"1", "e1")
        view = await why(rig)
        assert view.status == "queued"
        assert view.awakened
        assert [(event.type, event.awaited) for event in view.buffered] == [("go", True)]


async def test_missing_code_is_named(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create("nowhere")
        await rig.status("running")
        reason = one_of(await why(rig), "code")
        assert "'nowhere' is not loaded" in reason.error.message


async def test_an_ended_instance_waits_for_nothing(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(hanging())
        await rig.status("running")
        await rig.call("terminate", "r1x")
        view = await why(rig)
        assert (view.status, view.reasons) == ("terminated", [])


async def test_who_waits_for_an_instance_that_is_reset_hears_of_it(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(3_600))
        await rig.status("waiting")
        last = (await rig.call("events", 0, 100, [], 0))["cursor"]
        asked = [rig.call("wait", 600_000), rig.call("events", last, 10, [], 600_000)]
        await rig.pass_time(1)
        rig.store.put(EntityRef("Engine", KEY), PAYLOADS, (KEY, "bad", 1 << 70))
        await rig.pass_time(1)
        assert rig.host.statistics()["resets"] == 1
        for each in asked:
            with pytest.raises(EntityReset):
                await asyncio.wait_for(each, 1)
        assert (await rig.view()).status == "waiting"
