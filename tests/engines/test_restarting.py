"""Restart, from the start and from a step: what is kept, what is wiped, what the SousChef hears."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.engines.flows import ONCE, Event, Step, hanging, napping, one_step, waiting
from tests.engines.rig import Rig, on_virtual_time, rigged
from toque.engines.body_call import StepContext
from toque.engines.failures import StepNotFound
from toque.engines.workflow import workflow
from toque.runtime.codec import decode_json
from toque.runtime.errors import InvalidArgument

pytestmark = pytest.mark.loop(factory=on_virtual_time)
ANEW = ("", 1, "do")


async def in_status(rig: Rig, status: str) -> None:
    """An instance in a status."""
    if status in ("queued", "paused"):
        rig.auto = False
        await rig.create(napping(5))
        if status == "paused":
            await rig.do("pause")
        rig.auto = True
    elif status in ("running", "waitingForPause"):
        await rig.create(hanging())
        await rig.status("running")
        if status == "waitingForPause":
            await rig.do("pause")
    elif status == "waiting":
        await rig.create(napping(5))
    elif status == "complete":
        await rig.create(one_step(lambda: 1))
    else:
        await rig.create(one_step(lambda: 1 // 0, ONCE) if status == "errored" else hanging())
        if status == "terminated":
            await rig.status("running")
            await rig.do("terminate")
    await rig.status(status)


@pytest.mark.parametrize(
    "status",
    [
        "queued", "running", "waiting", "paused", "waitingForPause", "complete", "errored",
        "terminated",
    ],
)  # fmt: skip
async def test_restart_from_each_status(tmp_path: Path, status: str) -> None:
    async with rigged(tmp_path) as rig:
        await in_status(rig, status)
        before = await rig.view()
        rig.auto = False
        view = await rig.do("restart", "again", *ANEW)
        assert (view.status, view.started_ms, view.ended_ms) == ("queued", None, None)
        assert view.run_id != before.run_id
        assert (view.params, view.created_ms) == (before.params, before.created_ms)
        assert (view.steps, view.error, view.output) == ([], None, None)
        assert not rig.rows("steps")
        await rig.pass_time(0.1)
        report = rig.reports[-1]
        assert (report.state, report.run_id, report.awakened) == ("queued", view.run_id, False)
        assert all(r.since_ms < report.since_ms for r in rig.reports if r.run_id == before.run_id)
        old = [r for r in rig.reports if r.run_id == before.run_id]
        for stale in old[:1]:
            assert await rig.grant(stale) == [False]
        assert (await rig.do("restart", "again", *ANEW)).run_id == view.run_id
        assert await rig.grant(report) == [True]
        await rig.pass_time(0.1)
        assert (await rig.view()).status in ("running", "waiting", "complete", "errored")


async def test_a_restarted_instance_runs_to_its_end(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(waiting())
        await rig.call("send_event", "go", b"1", "")
        assert (await rig.ended()).output == b"1"
        await rig.do("restart", "", *ANEW)
        await rig.status("waiting")  # the event is gone
        await rig.call("send_event", "go", b"2", "")
        view = await rig.ended()
        assert (view.output, view.step_count) == (b"2", 1)


async def test_an_instance_may_restart_itself(tmp_path: Path) -> None:
    runs: list[str] = []

    async with rigged(tmp_path) as rig:

        async def body() -> int:
            runs.append((await rig.view()).run_id)
            if len(runs) < 3:
                await rig.do("restart", f"r{len(runs)}", *ANEW)
            return len(runs)

        await rig.create(one_step(body))
        assert (await rig.ended()).output == b"3"
        assert len(set(runs)) == 3


# --- from a step --------------------------------------------------------------------------------


class Chain:
    """A workflow whose bodies are counted."""

    def __init__(self) -> None:
        self.began: Counter[str] = Counter()

    def body(self, seconds: float = 0) -> Any:
        async def body(ctx: StepContext) -> str:
            name = f"{ctx.step}-{ctx.count}"
            self.began[name] += 1
            await asyncio.sleep(seconds)
            return f"{name} #{self.began[name]}"

        return body

    def entry(self) -> Any:
        @workflow(name="chain")
        async def run(event: Event, step: Step) -> Any:
            first = await step.do("a", self.body())
            got = [(await step.wait_for_event("w", "go")).payload for _ in range(3)]
            slow, quick = await asyncio.gather(
                step.do("slow", self.body(5)), step.do("quick", self.body(1))
            )
            await step.sleep("nap", 2)
            again = await step.do("a", self.body())
            return [first, got, slow, quick, again]

        return run

    async def done(self, rig: Rig) -> None:
        await rig.create(self.entry())
        for number in (b"1", b"2", b"3", b"4"):
            await rig.call("send_event", "go", number, "")
        await rig.ended()


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(
    ("step", "again"),
    [
        (("a", 1, "do"), ["a-1", "slow-1", "quick-1", "a-2"]),
        (("w", 2, "waitForEvent"), ["slow-1", "quick-1", "a-2"]),
        (("slow", 1, "do"), ["slow-1", "quick-1", "a-2"]),
        (("quick", 1, "do"), ["quick-1", "a-2"]),
        (("nap", 1, "sleep"), ["a-2"]),
        (("a", 2, "step"), ["a-2"]),
    ],
)
async def test_what_began_before_the_step_is_kept(
    tmp_path: Path, step: tuple[Any, ...], again: list[str], crash: bool
) -> None:
    chain = Chain()
    async with rigged(tmp_path) as rig:
        await chain.done(rig)
        assert (await rig.view()).status == "complete"
        await rig.do("restart", "", *step)
        await rig.pass_time(0.5)
        if crash:
            rig.restart()
        view = await rig.ended()
        assert view.error is None
        twice = [name for name, times in chain.began.items() if times > 1]
        assert sorted(twice) == sorted(again)
        output = decode_json(view.output or b"")
        assert output[1] == [1, 2, 3]  # events go back in order
        assert [s.name for s in view.steps] == [
            "a-1", "w-1", "w-2", "w-3", "slow-1", "quick-1", "nap-1", "a-2",
        ]  # fmt: skip
        left = [row[4] for row in rig.rows("events")]
        assert left == [b"4"]


async def test_a_kept_result_that_came_later_is_given_when_it_is_asked_for(tmp_path: Path) -> None:
    """`slow` began before `quick` and ended after it: its result outlives a restart from quick."""
    chain = Chain()
    async with rigged(tmp_path) as rig:
        await chain.done(rig)
        await rig.do("restart", "", "quick", 1, "do")
        output = decode_json((await rig.ended()).output or b"")
        assert output[2:] == ["slow-1 #1", "quick-1 #2", "a-2 #2"]
        for _ in range(2):
            rig.restart()
            assert (await rig.view()).status == "complete"


async def test_an_unfinished_instance_restarts_from_a_failed_step(tmp_path: Path) -> None:
    broken = True

    @workflow(name="fixed")
    async def run(event: Event, step: Step) -> Any:
        def body() -> str:
            if broken:
                raise ValueError("broken")
            return "good"

        first = await step.do("first", lambda: "kept")
        return [first, await step.do("second", body, ONCE)]

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        assert (await rig.ended()).status == "errored"
        broken = False
        view = await rig.do("restart", "", "second", 1, "do")
        assert (view.status, view.error) == ("queued", None)
        await rig.pass_time(0.1)
        assert next(r.awakened for r in rig.reports if r.run_id == view.run_id)
        assert (await rig.ended()).output == b'["kept","good"]'


async def test_what_was_given_up_after_the_step_is_taken_up_again(tmp_path: Path) -> None:
    @workflow(name="race")
    async def run(event: Event, step: Step) -> Any:
        slow = asyncio.create_task(step.do("slow", lambda: asyncio.sleep(5, "slow")))
        nap = asyncio.create_task(step.sleep("nap", 900))
        fast = asyncio.create_task(step.do("fast", lambda: asyncio.sleep(1, "fast")))
        done, late = await asyncio.wait([slow, nap, fast], return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        return await step.do("who", lambda: done.pop().result())

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        assert (await rig.ended()).output == b'"fast"'
        await rig.do("restart", "", "fast", 1, "do")
        await rig.pass_time(0.2)
        rig.restart()
        view = await rig.ended()
        assert (view.output, view.error) == (b'"fast"', None)


@pytest.mark.parametrize("step", [("nope", 1, "do"), ("a", 3, "do"), ("a", 1, "sleep")])
async def test_an_unknown_step_is_refused_and_changes_nothing(
    tmp_path: Path, step: tuple[Any, ...]
) -> None:
    async with rigged(tmp_path) as rig:
        await Chain().done(rig)
        rows = rig.rows("instances"), rig.rows("steps")
        with pytest.raises(StepNotFound, match="has no"):
            await rig.do("restart", "", *step)
        with pytest.raises(InvalidArgument, match="type"):
            await rig.do("restart", "", "a", 1, "loop")
        await rig.pass_time(1)
        assert (rig.rows("instances"), rig.rows("steps")) == rows


@pytest.mark.parametrize("crash", [False, True])
async def test_a_large_instance_is_wiped_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: bool
) -> None:
    monkeypatch.setattr("toque.engines.rows.WIPE_ROWS_MAX", 7)
    monkeypatch.setattr("toque.engines.rows.SCAN_ROWS_MAX", 7)
    began: Counter[int] = Counter()

    def body(number: int) -> Any:
        def inner() -> int:
            began[number] += 1
            return number

        return inner

    @workflow(name="large")
    async def run(event: Event, step: Step) -> Any:
        return sum([await step.do("s", body(n)) for n in range(40)])

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.ended()
        rig.auto = False
        await rig.do("restart", "", *ANEW)
        if crash:
            rig.restart("kept")
        else:
            await rig.pass_time(0.003)
        assert rig.rows("steps")
        assert rig.reports[-1].state == "ended"  # it asks for no slot yet
        await rig.pass_time(6)
        assert not rig.rows("steps")
        rig.auto = True
        rig.grant(rig.reports[-1])
        assert (await rig.ended()).output == b"780"
        assert set(began.values()) == {2}


async def test_the_last_event_comes_back_too(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(waiting())
        await rig.call("send_event", "go", b"1", "")
        await rig.ended()
        await rig.do("restart", "", "w", 1, "waitForEvent")
        assert (await rig.ended()).output == b"1"
        assert not rig.rows("events")


@pytest.mark.parametrize("back", [False, True])
async def test_an_instance_that_does_not_repeat_itself_is_restarted_from_where_it_does(
    tmp_path: Path, back: bool
) -> None:
    began: Counter[str] = Counter()

    def flow(second: str) -> Any:
        @workflow(name="changed")
        async def run(event: Event, step: Step) -> Any:
            async def body(ctx: StepContext) -> str:
                began[ctx.step] += 1
                return ctx.step

            done = [await step.do("a", body), await step.do(second, body)]
            await step.sleep("nap", 60)
            return [*done, await step.do("end", body)]

        return run

    async with rigged(tmp_path) as rig:
        await rig.create(flow("b"))
        await rig.status("waiting")
        rig.restart()
        rig.define(flow("c"))
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "NonDeterminism"
        assert "step 'c-1'" in view.error.message
        assert "step 'b-1'" in view.error.message
        if back:
            rig.define(flow("b"))
            await rig.do("restart", "", "nap", 1, "sleep")
        else:
            await rig.do("restart", "", "b", 1, "do")
        view = await rig.ended()
        assert decode_json(view.output or b"") == ["a", "b" if back else "c", "end"]
        assert began == {"a": 1, "b": 1, "end": 1} | ({} if back else {"c": 1})


@pytest.mark.parametrize("how", ["restart", "delete"])
async def test_a_new_run_is_later_than_the_old_one_though_the_clock_is_set_back(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rigged(tmp_path) as rig:
        first = await rig.create(hanging())
        await rig.status("running")
        now_ms = type(rig.clock).now_ms
        monkeypatch.setattr(type(rig.clock), "now_ms", lambda clock: now_ms(clock) - 3_600_000)
        if how == "restart":
            await rig.do("restart", "", *ANEW)
        else:
            await rig.call("delete", "")
            await rig.create("one", request_id="r2")
        await rig.status("running")
        await rig.do("terminate")
        await rig.pass_time(1)
        old = [r.since_ms for r in rig.reports if r.run_id == first.run_id]
        new = [r.since_ms for r in rig.reports if r.run_id != first.run_id]
        assert max(old) < min(new)
        assert new == sorted(new)


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("queues_s", [0, 5_000])
@pytest.mark.parametrize("what", ["sleep", "wait", "time-out", "deadline"])
async def test_time_that_passed_before_a_restart_from_a_step_is_none_that_it_has_had(
    tmp_path: Path, what: str, queues_s: int, crash: bool
) -> None:
    async def hangs() -> None:
        await asyncio.sleep(100_000)

    async def long(step: Step) -> Any:
        if what == "sleep":
            return await step.sleep("long", 60)
        if what == "wait":
            return await step.wait_for_event("long", "never", timeout=60)
        if what == "deadline":
            return await step.do("long", hangs, {"deadline": 60})
        async with asyncio.timeout(60):
            return await step.do("long", hangs)

    @workflow(name="w")
    async def run(event: Event, step: Step) -> Any:
        await step.do("a", lambda: 1)
        try:
            await long(step)
        except TimeoutError:
            pass
        return await step.do("b", lambda: 2)

    kind = {"sleep": "sleep", "wait": "waitForEvent"}.get(what, "do")
    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.ended()
        await rig.pass_time(10_000)
        rig.auto = not queues_s
        await rig.do("restart", "", "long", 1, kind)
        if queues_s:
            await rig.pass_time(queues_s)
            rig.auto = True
            rig.grant(rig.reports[-1])
        began = rig.loop.time()
        if crash:
            await rig.pass_time(20)
            rig.restart()
        assert (await rig.ended()).status == "complete"
        assert 60 <= rig.loop.time() - began < 70
