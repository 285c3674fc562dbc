"""Instances leave memory, idle or under pressure, and come back in slices; nothing stays."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.flows import Event, Step, napping, one_step, waiting
from tests.engines.rig import KEY, Rig, on_virtual_time, rigged
from tests.engines.test_crashes import Everything, play_once
from toque.engines.local_run import LocalRun
from toque.engines.replay import Execution
from toque.engines.views import EventPage
from toque.engines.workflow import workflow
from toque.runtime import limits
from toque.runtime.ids import EntityRef

pytestmark = pytest.mark.loop(factory=on_virtual_time)


def live(rig: Rig, key: str = KEY) -> Any:
    """The Engine, if it is in memory."""
    return rig.host.peek(EntityRef("Engine", key))


def counting(steps: int) -> Any:
    """A workflow of that many steps, then a wait."""

    @workflow(name="counting")
    async def run(event: Event, step: Step) -> Any:
        total = 0
        for number in range(steps):
            total += await step.do("one", lambda number=number: number)
        return total, (await step.wait_for_event("w", "go")).payload

    return run


async def to_the_wait(rig: Rig, steps: int) -> None:
    """Create `counting`, and let it come to its wait and leave memory."""
    await rig.create(counting(steps))
    await rig.status("waiting")
    rig.restart("kept")
    await rig.pass_time(0.1)
    assert live(rig) is None


# --- leaving ------------------------------------------------------------------------------------


async def _seven() -> int:
    return 7


OF_AN_INSTANCE = {"Engine", "Activation", "LocalRun", "Execution", "WorkflowLoop"}


@pytest.mark.parametrize(
    "flow", [one_step(_seven), napping(), waiting()], ids=["step", "sleep", "wait"]
)
async def test_what_an_instance_leaves_is_free_without_a_collection(
    tmp_path: Path, flow: Any
) -> None:
    """Cycles would keep it until the next one, which is dear where many instances live."""
    async with rigged(tmp_path) as rig:
        gc.collect()
        gc.disable()
        # what tests before this one left may become free meanwhile: held, it is no garbage
        others = [held for held in gc.get_objects() if type(held).__qualname__ in OF_AN_INSTANCE]
        try:
            await rig.create(flow)
            await rig.pass_time(1)
            if (activation := rig.host._live.get(EntityRef("Engine", KEY))) is not None:
                rig.host.end(activation)
                del activation
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = {type(left).__qualname__ for left in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not left & OF_AN_INSTANCE
        del others


async def test_a_waiting_instance_leaves_memory_when_idle_and_wakes_by_replay(
    tmp_path: Path,
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(waiting())
        await rig.status("waiting")
        assert live(rig)._run is not None
        rig.loop.call_later(0, lambda: None)
        await rig.pass_time(2 * limits.IDLE_EVICTION_MS / 1_000)
        assert live(rig) is None
        await rig.call("send_event", "go", b'"now"', "e1")
        assert (await rig.ended()).output == b'"now"'


@pytest.mark.parametrize("most", [0, 1])
async def test_a_queued_instance_leaves_memory_soon_if_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(limits, "ENTITIES_ROOMY_MAX", most)
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(one_step(lambda: 5))
        assert live(rig) is not None
        await rig.pass_time(2)
        assert (live(rig) is None) == (most == 0)
        await rig.pass_time(2 * limits.IDLE_EVICTION_MS / 1_000)
        assert live(rig) is None
        assert not rig.due_alarms()
        await rig.grant(rig.reports[-1])
        assert (await rig.ended()).output == b"5"


async def test_a_running_instance_stays(tmp_path: Path) -> None:
    async def slow() -> int:
        await asyncio.sleep(5 * limits.IDLE_EVICTION_MS / 1_000)
        return 1

    async with rigged(tmp_path) as rig:
        await rig.create(one_step(slow))
        await rig.pass_time(4 * limits.IDLE_EVICTION_MS / 1_000)
        assert live(rig) is not None
        view = await rig.ended()
        assert len(view.steps[0].attempts) == 1


async def test_under_pressure_the_waiting_leave_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rigged(tmp_path) as rig:
        rig.define(waiting())
        for number in range(6):
            await rig.create("wait", key=f"acc/u1/i{number}", request_id=f"r{number}")
        await rig.status("waiting", "acc/u1/i5")
        await rig.pass_time(2)
        monkeypatch.setattr(limits, "ENTITIES_LIVE_MAX", 3)
        await rig.create("wait", key="acc/u1/more", request_id="more")
        await rig.pass_time(0.1)
        assert [live(rig, f"acc/u1/i{number}") for number in range(6)] == [None] * 6
        for number in range(6):
            await rig.call("send_event", "go", b"1", f"e{number}", key=f"acc/u1/i{number}")
            assert (await rig.ended(f"acc/u1/i{number}")).output == b"1"


# --- coming back in slices ----------------------------------------------------------------------


@pytest.fixture
def slices_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay three outcomes a turn."""
    monkeypatch.setattr("toque.engines.local_run.REPLAYED_PER_TURN_MAX", 3)


@pytest.mark.usefixtures("slices_of_three")
async def test_others_have_their_turn_during_a_long_replay(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await to_the_wait(rig, 60)
        turns = 0

        def tick() -> None:
            nonlocal turns
            engine = live(rig)
            if engine is not None and engine._run is not None and engine._run._acts is not None:
                turns += 1
            rig.loop.call_soon(tick)

        await rig.call("send_event", "go", b"5", "e1")
        ticking = rig.loop.call_soon(tick)
        for _ in range(200):
            await asyncio.sleep(0)
        assert 60 // 3 - 2 <= turns <= 60 // 3 + 2
        ticking.cancel()
        tick = ticking.cancel  # stops the chain
        assert (await rig.ended()).output == b"[1770,5]"


async def reading(rig: Rig) -> Any:
    """The Engine, amid reading its journal."""
    while live(rig) is None or not live(rig)._reading:
        await asyncio.sleep(0)
    return live(rig)


async def test_others_have_their_turn_while_a_long_journal_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECORDS_READ_PER_TURN_MAX", 3)
    async with rigged(tmp_path) as rig:
        await to_the_wait(rig, 60)
        lengths: list[int] = []
        await rig.call("send_event", "go", b"5", "e1")
        engine = await reading(rig)
        while engine._reading is not None:
            lengths.append(len(engine._reading))
            await asyncio.sleep(0)
        assert lengths == [*range(3, 61, 3)]
        assert (await rig.ended()).output == b"[1770,5]"


@pytest.mark.parametrize(
    "operation", ["pause", "cancel", "terminate", "restart", "delete", "event"]
)
async def test_what_is_asked_while_a_journal_is_read_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(limits, "RECORDS_READ_PER_TURN_MAX", 3)
    async with rigged(tmp_path) as rig:
        await to_the_wait(rig, 30)
        await rig.call("send_event", "go", b"5", "e1")
        engine = await reading(rig)
        if operation == "delete":
            engine.delete("o1")
            await rig.pass_time(1)
            assert not rig.rows("steps")
            return
        if operation == "event":
            engine.send_event("go", b"6", "e2")
        elif operation == "restart":
            engine.restart("o1", "", 1, "do")
            await rig.status("waiting")
            await rig.call("send_event", "go", b"5", "e3")
        else:
            getattr(engine, operation)("o1")
        if operation == "pause":
            await rig.pass_time(100)
            assert (await rig.view()).status == "paused"
            await rig.do("resume")
        view = await rig.ended()
        ends_early = operation in ("cancel", "terminate")
        assert view.status == ("terminated" if ends_early else "complete")
        assert view.output == (None if ends_early else b"[435,5]")


@pytest.mark.parametrize("how", ["crash", "reset"])
async def test_a_journal_that_is_half_read_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(limits, "RECORDS_READ_PER_TURN_MAX", 3)
    async with rigged(tmp_path) as rig:
        await to_the_wait(rig, 30)
        await rig.call("send_event", "go", b"5", "e1")
        engine = await reading(rig)
        if how == "crash":
            rig.restart()
        else:
            engine._start_over(RuntimeError("a bug"))
        view = await rig.ended()
        assert view.output == b"[435,5]"
        page = msgspec.convert(await rig.call("events", 0, 500, [], 0), EventPage)
        numbers = [event.no for event in page.events]
        assert len(set(numbers)) == len(numbers) > 120


@pytest.mark.usefixtures("slices_of_three")
async def test_what_comes_during_a_long_replay_is_done_after_it(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await to_the_wait(rig, 30)
        rig.auto = False
        await rig.call("send_event", "other", b"1", "e0")
        await rig.call("send_event", "go", b"5", "e1")
        await rig.status("queued")
        granted = rig.grant(rig.reports[-1])
        while live(rig)._run is None:
            await asyncio.sleep(0)
        assert live(rig)._run._acts == []
        sent = [rig.call("send_event", "go", b"6", f"x{n}") for n in range(3)]
        view = await rig.view()
        assert len(view.steps) == 31
        await asyncio.gather(granted, *sent)
        assert (await rig.ended()).output == b"[435,5]"


@pytest.mark.usefixtures("slices_of_three")
async def test_an_instance_can_be_terminated_during_a_long_replay(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await to_the_wait(rig, 30)
        rig.auto = False
        await rig.call("send_event", "go", b"5", "e1")
        granted = rig.grant(rig.reports[-1])
        while live(rig) is None or live(rig)._run is None:
            await asyncio.sleep(0)
        assert live(rig)._run._acts is not None
        engine = live(rig)
        engine.terminate("t1")
        await granted
        view = await rig.ended()
        assert view.status == "terminated"
        await rig.pass_time(1)
        assert engine._run is None


@pytest.mark.usefixtures("slices_of_three")
@pytest.mark.parametrize("at", range(2, 18, 3))
async def test_a_replay_in_slices_gives_the_same_after_a_crash(tmp_path: Path, at: int) -> None:
    everything = Everything()
    async with rigged(tmp_path) as rig:
        rig.crash_at = (at, "kept")
        await play_once(rig, everything)
        assert rig.crashes == 1


async def test_a_replay_that_breaks_off_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toque.engines.local_run.REPLAYED_PER_TURN_MAX", 3)
    broken = iter([True])
    replay = Execution.replay

    def sometimes(self: Execution, *args: Any) -> bool:
        if self._queue and len(self._queue) < 20 and next(broken, False):
            raise RuntimeError("a bug")
        return replay(self, *args)

    monkeypatch.setattr(Execution, "replay", sometimes)
    async with rigged(tmp_path) as rig:
        await to_the_wait(rig, 30)
        await rig.call("send_event", "go", b"5", "e1")
        assert (await rig.ended()).output == b"[435,5]"
        assert next(broken, None) is None


# --- nothing stays ------------------------------------------------------------------------------


def live_runs() -> list[object]:
    """What runs instances in this process; a failed test may have left some of its own."""
    return [thing for thing in gc.get_objects() if isinstance(thing, LocalRun | Execution)]


async def test_what_an_ended_instance_held_is_gone(tmp_path: Path) -> None:
    made: list[weakref.ref[Any]] = []
    futures: list[weakref.ref[Any]] = []

    class Held:
        """Something that `run` and its tasks refer to."""

    @workflow(name="holds")
    async def holds(event: Event, step: Step) -> Any:
        held = Held()
        made.append(weakref.ref(held))
        task = asyncio.current_task()
        assert task is not None
        made.append(weakref.ref(task))
        made.append(weakref.ref(asyncio.get_running_loop()))
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def other() -> None:
            futures.append(weakref.ref(held))
            await queue.get()

        pending = asyncio.create_task(other())
        made.append(weakref.ref(pending))
        asyncio.get_running_loop().call_later(10_000, print, held)
        hangs = asyncio.create_task(step.do("hangs", lambda: asyncio.sleep(10_000, held)))
        made.append(weakref.ref(hangs))
        await step.sleep("nap", 5)
        await step.do("quick", lambda: 1)
        return 1

    async with rigged(tmp_path) as rig:
        gc.collect()
        before = live_runs()
        tasks = len(asyncio.all_tasks())
        await rig.run(holds)
        await rig.pass_time(5)
        gc.collect()
        assert [ref() for ref in made if ref() is not None] == []
        assert len(asyncio.all_tasks()) <= tasks
        assert [thing for thing in live_runs() if thing not in before] == []
        scheduled = [str(timer) for _, timer in rig.loop.timers if not timer.cancelled()]
        assert not [handle for handle in scheduled if "time_out" in handle]


async def test_a_parked_instance_that_leaves_takes_everything_along(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        before = live_runs()
        await rig.create(napping(100_000))
        await rig.status("waiting")
        await rig.pass_time(2 * limits.IDLE_EVICTION_MS / 1_000)
        gc.collect()
        assert [thing for thing in live_runs() if thing not in before] == []
