"""Cancel: what `run` sees of it, what a shield lets finish, and a crash at each commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.engines.flows import Event, Step, hanging, napping, one_step
from tests.engines.rig import Rig, on_virtual_time, rigged
from tests.engines.test_crashes import persist
from toque.engines.body_call import StepContext
from toque.engines.workflow import workflow
from toque.runtime.errors import InvalidTransition

pytestmark = pytest.mark.loop(factory=on_virtual_time)


class Cleaning:
    """A workflow that waits, in one of several ways, and cleans up when it is cancelled."""

    def __init__(self, how: str = "sleep") -> None:
        self.how = how
        self.began: Counter[str] = Counter()
        self.cleaned: list[str] = []

    async def _work(self, step: Step) -> None:
        if self.how == "sleep":
            await step.sleep("nap", 1_000)
        elif self.how == "event":
            await step.wait_for_event("w", "go")
        elif self.how == "step":
            await step.do("long", self._long)
        elif self.how == "backoff":
            await step.do("bad", self._bad, {"retries": {"limit": 5, "delay": 1_000}})
        elif self.how == "gather":
            await asyncio.gather(step.sleep("nap", 1_000), step.do("long", self._long))
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(step.sleep("nap", 1_000))
                group.create_task(step.wait_for_event("w", "go"))

    async def _long(self) -> None:
        self.began["long"] += 1
        await asyncio.sleep(10_000)

    def _bad(self) -> None:
        raise ValueError("bad")

    async def _clean(self, ctx: StepContext) -> None:
        self.began[ctx.step] += 1
        await asyncio.sleep(1)
        if ctx.step == "stubborn" and ctx.attempt == 1:
            raise ValueError("not yet")
        self.cleaned.append(ctx.step)

    def entry(self) -> Any:
        @workflow(name="cleaning")
        async def run(event: Event, step: Step) -> Any:
            await step.do("before", self._clean)
            try:
                await self._work(step)
            except asyncio.CancelledError:
                async with step.shield():
                    retry = {"retries": {"limit": 1, "delay": 60}}
                    await asyncio.gather(
                        step.do("stubborn", self._clean, retry), step.do("quick", self._clean)
                    )
                    await step.sleep("rest", 5)
                    await step.do("last", self._clean)
                self.cleaned.append("left the shield")
                await step.do("never", self._clean)
            self.cleaned.append("never")

        return run


CLEANED = ["before", "quick", "stubborn", "last", "left the shield"]
HOWS = ["sleep", "event", "step", "backoff", "gather", "group"]


def settled(cleaning: Cleaning) -> list[str]:
    """What was cleaned; a crash may do so twice, and spares `stubborn` its retry."""
    cleaned = list(dict.fromkeys(cleaning.cleaned))
    return [*cleaned[:1], *sorted(cleaned[1:3]), *cleaned[3:]]


async def ends_cancelled(rig: Rig) -> None:
    """It ends so."""
    view = await rig.ended()
    assert view.error is not None
    assert (view.status, view.error.name) == ("terminated", "Cancelled"), view.error
    assert view.error.message == "the instance was cancelled"


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("how", HOWS)
async def test_run_is_cancelled_and_cleans_up(tmp_path: Path, how: str, crash: bool) -> None:
    cleaning = Cleaning(how)
    async with rigged(tmp_path) as rig:
        await rig.create(cleaning.entry())
        await rig.pass_time(3)
        assert (await rig.view()).status in ("running", "waiting")
        await rig.do("cancel", "c1")
        if crash:
            rig.restart()
            await rig.pass_time(30)
            rig.restart()
        await ends_cancelled(rig)
        assert settled(cleaning) == CLEANED
        steps = {s.name: s for s in (await rig.view()).steps}
        assert "never-1" not in steps
        assert steps["stubborn-1"].attempts_total >= 2
        open_step = next(s for s in steps.values() if s.name in ("nap-1", "w-1", "long-1", "bad-1"))
        assert (open_step.success, open_step.error and open_step.error.name) == (
            False, "CancelledError",
        )  # fmt: skip
        assert not [s for s in steps if "cancel" in s]


@pytest.mark.parametrize("status", ["paused", "waitingForPause", "queued"])
async def test_cancel_from_other_statuses(tmp_path: Path, status: str) -> None:
    cleaning = Cleaning("step" if status == "waitingForPause" else "sleep")
    async with rigged(tmp_path) as rig:
        await rig.create(cleaning.entry())
        await rig.pass_time(3)
        if status == "queued":
            rig.auto = False
            await rig.do("pause")
            await rig.pass_time(2_000)
            await rig.do("resume")
            await rig.pass_time(2_000)
        else:
            await rig.do("pause")
        assert (await rig.view()).status == status
        view = await rig.do("cancel")
        assert view.status == ("running" if status == "waitingForPause" else "queued")
        if status == "queued":
            await rig.pass_time(1)
            assert cleaning.cleaned == ["before"]
            rig.auto = True
            rig.grant(rig.reports[-1])
        await ends_cancelled(rig)
        assert cleaning.cleaned == CLEANED


@pytest.mark.parametrize("is_paused", [False, True])
async def test_what_never_ran_has_nothing_to_clean_up(tmp_path: Path, is_paused: bool) -> None:
    async with rigged(tmp_path) as rig:
        rig.auto = False
        await rig.create(napping())
        if is_paused:
            await rig.do("pause")
        assert (await rig.do("cancel")).status == "terminated"
        await ends_cancelled(rig)
        await rig.pass_time(1)
        assert await rig.grant(rig.reports[0]) == [False]


async def test_only_the_first_cancel_counts(tmp_path: Path) -> None:
    cleaning = Cleaning()
    async with rigged(tmp_path) as rig:
        await rig.create(cleaning.entry())
        await rig.pass_time(3)
        for number in range(5):
            await rig.do("cancel", f"c{number % 3}")
            await rig.pass_time(0.7)
        await ends_cancelled(rig)
        assert cleaning.cleaned == CLEANED
        with pytest.raises(InvalidTransition):
            await rig.do("cancel", "c9")


async def test_a_shield_that_is_open_finishes_first(tmp_path: Path) -> None:
    seen: list[str] = []

    @workflow(name="shielded")
    async def run(event: Event, step: Step) -> Any:
        async with step.shield():
            await step.do("a", lambda: asyncio.sleep(10))
            async with asyncio.timeout(5):  # the author's own cancels work in a shield
                try:
                    await step.do("slow", lambda: asyncio.sleep(1_000))
                except asyncio.CancelledError:
                    seen.append("timed out")
                    raise
        seen.append("never")

    @workflow(name="clean")
    async def clean(event: Event, step: Step) -> Any:
        try:
            async with step.shield():
                await asyncio.gather(*(step.do("a", lambda: asyncio.sleep(5)) for _ in range(2)))
                seen.append("done")
            seen.append("never")
        finally:
            seen.append("finally")

    async with rigged(tmp_path) as rig:
        await rig.create(clean)
        await rig.pass_time(1)
        await rig.do("cancel")
        await ends_cancelled(rig)
        assert seen == ["done", "finally"]
        seen.clear()
        await rig.create(run, key="acc/u1/i2")
        await rig.pass_time(1)
        await rig.do("cancel", key="acc/u1/i2")
        view = await rig.ended("acc/u1/i2")
        assert seen == ["timed out"]
        assert view.error is not None
        assert view.error.name == "Cancelled"
        assert "TimeoutError" in view.error.message


async def test_a_run_that_swallows_it_can_do_no_more_and_ends_cancelled(tmp_path: Path) -> None:
    seen: list[Any] = []

    @workflow(name="stubborn")
    async def run(event: Event, step: Step) -> Any:
        for n in range(3):
            try:
                await step.sleep("nap", 100)
            except asyncio.CancelledError:
                seen.append(n)
        return "went on"

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("waiting")
        await rig.do("cancel")
        view = await rig.ended()
        assert (view.status, view.output, seen) == ("terminated", None, [0, 1, 2])


async def test_tasks_that_run_left_behind_are_cancelled_and_waited_for(tmp_path: Path) -> None:
    cleaned: list[str] = []

    @workflow(name="tasks")
    async def run(event: Event, step: Step) -> Any:
        async def helper(name: str) -> None:
            try:
                await step.sleep(name, 1_000)
            finally:
                async with step.shield():
                    await step.do(f"clean {name}", lambda: cleaned.append(name))

        kept = [asyncio.create_task(helper(name)) for name in ("a", "b")]
        await step.sleep("main", 500)
        await asyncio.gather(*kept)

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("waiting")
        await rig.do("cancel")
        await rig.pass_time(0.003)
        rig.restart()
        await ends_cancelled(rig)
        assert sorted(set(cleaned)) == ["a", "b"]


async def test_a_cleanup_that_fails_is_told(tmp_path: Path) -> None:
    @workflow(name="failing")
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.sleep("nap", 100)
        finally:
            raise ValueError("no soap")

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("waiting")
        await rig.do("cancel")
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "Cancelled"
        assert view.error.message.endswith("its cleanup failed: ValueError: no soap")


async def test_terminate_does_not_wait_for_the_cleanup(tmp_path: Path) -> None:
    cleaning = Cleaning()
    async with rigged(tmp_path) as rig:
        await rig.create(cleaning.entry())
        await rig.pass_time(3)
        await rig.do("cancel")
        await rig.pass_time(0.5)
        view = await rig.do("terminate")
        assert (view.status, view.error) == ("terminated", None)
        assert cleaning.cleaned == ["before"]


async def test_an_instance_may_cancel_itself(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:

        async def body() -> None:
            await rig.do("cancel", "self")
            await asyncio.sleep(100)

        await rig.create(one_step(body))
        await ends_cancelled(rig)


async def test_a_restart_forgets_the_cancel(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(hanging())
        await rig.status("running")
        await rig.do("cancel")
        await ends_cancelled(rig)
        await rig.do("restart", "", "", 1, "do")
        assert (await rig.status("running")).error is None


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("at", range(1, 20))
async def test_a_crash_at_any_commit_changes_nothing(
    tmp_path: Path, at: int, outcome: Literal["lost", "kept"]
) -> None:
    cleaning = Cleaning("gather")
    async with rigged(tmp_path) as rig:
        await rig.create(cleaning.entry())
        await rig.pass_time(3)
        rig.crash_at = rig.commits + at, outcome
        await persist(rig, lambda: rig.call("cancel", "c1"))
        await ends_cancelled(rig)
        assert settled(cleaning) == CLEANED
