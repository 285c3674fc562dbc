"""The process dies at every commit, lost or kept; the instance ends all the same.

A crash drops everything but the committed rows, with the entity and its loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.engines.rig import Rig, on_virtual_time, rigged
from toque.engines.body_call import StepContext
from toque.engines.journal import DONE, record_from_row
from toque.engines.step import WorkflowStep
from toque.engines.workflow import WorkflowEvent, workflow

pytestmark = pytest.mark.loop(factory=on_virtual_time)


class Everything:
    """A workflow that uses all there is, and counts the starts of its bodies."""

    def __init__(self) -> None:
        self.began: Counter[str] = Counter()
        self.outputs: list[Any] = []

    def entry(self) -> Any:
        """The workflow."""

        @workflow(name="everything")
        async def run(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
            first = await step.do("first", self.body(1))
            parts = await asyncio.gather(*(step.do("part", self.body(n)) for n in range(3)))
            await step.sleep("nap", 3)
            flaky = await step.do(
                "flaky", self.flaky(), {"retries": {"limit": 2, "delay": 1, "backoff": "linear"}}
            )
            got = await step.wait_for_event("go", "go")
            winner = await self.race(step)
            try:
                await step.do("bad", self.bad(), {"retries": {"limit": 1, "delay": 0}})
            except ValueError as error:
                caught = str(error)
            try:
                await asyncio.wait_for(step.do("slow", self.slow()), 2)
            except TimeoutError:
                caught += " late"
            return [first, parts, flaky, got.payload, winner, caught]

        return run

    async def race(self, step: WorkflowStep) -> str:
        """Whoever is first."""
        tasks = [
            asyncio.create_task(step.do(name, self.slow(seconds)), name=name)
            for name, seconds in (("b", 2), ("a", 1))
        ]
        done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        return done.pop().get_name()

    def body(self, value: Any) -> Any:
        async def body(ctx: StepContext) -> Any:
            self.began[f"{ctx.step}-{ctx.count}"] += 1
            return value

        return body

    def flaky(self) -> Any:
        def body(ctx: StepContext) -> str:
            self.began["flaky-1"] += 1
            if ctx.attempt == 1:
                raise ValueError("once")
            return "good"

        return body

    def bad(self) -> Any:
        def body(ctx: StepContext) -> str:
            self.began["bad-1"] += 1
            raise ValueError("always")

        return body

    def slow(self, seconds: float = 50) -> Any:
        async def body(ctx: StepContext) -> str:
            self.began[f"{ctx.step}-{ctx.count}"] += 1
            await asyncio.sleep(seconds)
            return ctx.step

        return body


EXPECTED = b'[1,[0,1,2],"good","x","a","always late"]'


async def play_once(rig: Rig, everything: Everything) -> None:
    """One instance from create to end; callers repeat what got no answer."""
    rig.define(everything.entry())
    await persist(rig, lambda: rig.create_call("everything"))
    await persist(rig, lambda: rig.call("send_event", "go", b'"x"', "e1"))
    view = await rig.ended()
    assert view.error is None, view.error
    assert view.output == EXPECTED
    await rig.pass_time(20)
    assert rig.due_alarms() == []
    assert not rig.rows("events")
    assert [row[1] for row in rig.rows("steps")] == list(range(1, len(rig.rows("steps")) + 1))


async def persist(rig: Rig, send: Any) -> Any:
    """Send until an answer comes."""
    while True:
        crashes, answer = rig.crashes, send()
        while not answer.done() and rig.crashes == crashes:
            await rig.pass_time(0.001)
        if answer.done() and answer.exception() is None:
            return answer.result()
        answer.cancel()


async def test_all_goes_well_without_a_crash(tmp_path: Path) -> None:
    everything = Everything()
    async with rigged(tmp_path) as rig:
        await play_once(rig, everything)
        assert everything.began == {
            "first-1": 1, "part-1": 1, "part-2": 1, "part-3": 1, "flaky-1": 2, "b-1": 1, "a-1": 1,
            "bad-1": 2, "slow-1": 1,
        }  # fmt: skip
        assert rig.commits < 40


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("at", range(1, 33))
async def test_a_crash_at_any_commit_changes_nothing(
    tmp_path: Path, at: int, outcome: Literal["lost", "kept"]
) -> None:
    everything = Everything()
    done: dict[str, int] = {}

    class Watching(Rig):
        def open(self) -> None:
            super().open()
            for row in self.rows("steps"):
                record = record_from_row(row)
                if record.state == DONE:
                    done[record.public_name] = everything.began[record.public_name]

    rig = Watching(tmp_path)
    rig.crash_at = at, outcome
    try:
        await play_once(rig, everything)
    finally:
        await rig.close()
    again = {name: everything.began[name] for name in done}
    assert again == done  # what was recorded as done did not run again
    assert sum(everything.began.values()) <= 11 + 3 + 1  # at most what was in flight, once more


@pytest.mark.parametrize("period", [0.011, 0.211, 0.497, 0.9])
async def test_crash_after_crash_after_crash(tmp_path: Path, period: float) -> None:
    everything = Everything()
    async with rigged(tmp_path) as rig:

        def again() -> None:
            if rig.crashes < 9:  # STEP_INTERRUPTIONS_MAX is 10
                rig.restart("kept" if rig.crashes % 2 else "lost")
                rig.loop.call_later(period, again)

        rig.loop.call_later(0.1, again)
        await play_once(rig, everything)
        assert rig.crashes == 9


async def test_an_interrupted_step_with_no_retries_is_not_run_again(tmp_path: Path) -> None:
    began = []

    @workflow(name="once")
    async def run(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        async def body() -> None:
            began.append(1)
            await asyncio.sleep(5)

        await step.do("a", body, {"retries": {"limit": 0}})

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.pass_time(1)
        rig.restart()
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "StepInterrupted"
        assert began == [1]


async def test_what_was_created_but_not_answered_may_be_asked_for_again(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.define(Everything().entry())
        rig.crash_at = 1, "kept"
        rig.create_call("everything").cancel()
        await rig.pass_time(1)
        assert rig.crashes == 1
        await rig.create("everything")
        assert len(rig.rows("instances")) == 1


@pytest.mark.parametrize("rows_max", [0, 1, 2, 3])
async def test_a_full_batch_of_the_store_only_delays_it(
    tmp_path: Path, rows_max: int, caplog: pytest.LogCaptureFixture
) -> None:
    everything = Everything()
    async with rigged(tmp_path) as rig:
        group = rig.store._group
        roomy = group._rows_max

        def toggle(times: int) -> None:
            group._rows_max = roomy if group._rows_max == rows_max else rows_max
            if times:
                rig.loop.call_later(0.4, toggle, times - 1)

        await rig.create_call(everything.entry())
        rig.loop.call_later(0.003, toggle, 9)
        await play_once(rig, everything)
    assert "starts over" in caplog.text
