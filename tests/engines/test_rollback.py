"""Rollback: what is undone, in which order, with what; and a crash at each of its commits."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.engines.flows import ONCE, Event, Step
from tests.engines.rig import Rig, on_virtual_time, rigged, unplaced
from toque.engines.body_call import StepContext
from toque.engines.failures import NonRetryableError, StepUndone
from toque.engines.views import ErrorView, RollbackView, WaitingView
from toque.engines.workflow import workflow
from toque.runtime.errors import InvalidArgument, InvalidTransition

pytestmark = pytest.mark.loop(factory=on_virtual_time)
DONE = RollbackView("complete", None)


class Saga:
    """A workflow that books three things, two at once, and fails at the fourth."""

    def __init__(self, *, fails: bool = True) -> None:
        self.fails = fails
        self.undone: list[Any] = []
        self.began: Counter[str] = Counter()
        self.broken = 0

    def undo(self) -> Any:
        async def undo(ctx: StepContext, error: Exception, output: Any) -> None:
            self.began[f"undo {ctx.step}"] += 1
            if ctx.step == "hotel" and ctx.attempt <= self.broken:
                raise ValueError("the hotel does not answer")
            await asyncio.sleep(1)
            self.undone.append((ctx.step, output, type(error).__name__, str(error)))

        return undo

    def book(self, seconds: float = 1) -> Any:
        async def body(ctx: StepContext) -> str:
            self.began[ctx.step] += 1
            await asyncio.sleep(seconds)
            return f"{ctx.step} booked"

        return body

    def pay(self) -> None:
        if self.fails:
            raise ValueError("no money")

    def entry(self) -> Any:
        undo = self.undo()

        @workflow(name="trip")
        async def run(event: Event, step: Step) -> Any:
            await step.do("look", self.book())
            await step.do("flight", self.book(), rollback=undo)
            await asyncio.gather(
                step.do("hotel", self.book(3), rollback=undo, rollback_config=RETRY),
                step.do("car", self.book(1), rollback=undo),
            )
            await step.sleep("nap", 1)
            await step.do("pay", self.pay, TWICE, rollback=undo)
            return "good trip"

        return run


TWICE = {"retries": {"limit": 1, "delay": 0}}
RETRY = {"retries": {"limit": 2, "delay": 5, "backoff": "constant"}}
WHY = ("ValueError", "no money")
EXPECTED = [
    ("pay", None, *WHY),
    ("car", "car booked", *WHY),
    ("hotel", "hotel booked", *WHY),
    ("flight", "flight booked", *WHY),
]


async def test_what_was_done_is_undone_in_reverse_order_of_starts(tmp_path: Path) -> None:
    saga = Saga()
    async with rigged(tmp_path) as rig:
        await rig.create(saga.entry())
        view = await rig.status("rollingBack")
        assert (unplaced(view.error), unplaced(view.rollback)) == (ErrorView(*WHY), None)
        assert rig.reports[-1].state == "running"
        view = await rig.ended()
        assert (view.status, unplaced(view.error), view.rollback) == (
            "errored",
            ErrorView(*WHY),
            DONE,
        )
        assert saga.undone == EXPECTED
        undone = [(s.name, s.type, s.success) for s in view.steps if s.type == "rollback"]
        assert undone == [
            (f"rollback {name}-1", "rollback", True) for name in ("pay", "car", "hotel", "flight")
        ]
        assert rig.reports[-1].state == "ended"


async def test_a_rollback_is_retried_and_the_first_that_fails_ends_it(tmp_path: Path) -> None:
    saga = Saga()
    saga.broken = 2
    async with rigged(tmp_path) as rig:
        await rig.create(saga.entry())
        began = rig.loop.time()
        assert (await rig.ended()).rollback == DONE
        assert rig.loop.time() - began > 10
        assert saga.undone == EXPECTED
        assert (await rig.step("rollback hotel-1")).attempts_total == 3
        saga.broken, saga.undone = 3, []
        await rig.create("trip", key="acc/u1/i2")
        view = await rig.ended("acc/u1/i2")
        why = ErrorView("ValueError", "the hotel does not answer")
        assert (unplaced(view.error), unplaced(view.rollback)) == (
            ErrorView(*WHY),
            RollbackView("failed", why),
        )
        assert [name for name, *_ in saga.undone] == ["pay", "car"]


async def test_why_names_a_rollback_that_hangs(tmp_path: Path) -> None:
    async def never(output: Any) -> None:
        await asyncio.sleep(500)

    @workflow(name="hung")
    async def run(event: Event, step: Step) -> None:
        await step.do("seat", lambda: 1, rollback=never)
        raise ValueError("no money")

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("rollingBack")
        await rig.pass_time(1)
        view = msgspec.convert(await rig.call("waiting"), WaitingView)
        assert [(r.kind, r.name, r.attempt) for r in view.reasons] == [
            ("rollback", "rollback seat-1", 1)
        ]


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("at", range(1, 30))
async def test_a_crash_at_any_commit_changes_nothing(
    tmp_path: Path, at: int, outcome: Literal["lost", "kept"]
) -> None:
    saga = Saga()
    saga.broken = 1
    rig = Rig(tmp_path)
    rig.define(saga.entry())
    rig.crash_at = at, outcome
    try:
        while not rig.rows("instances"):
            rig.create_call("trip").cancel()
            await rig.pass_time(0.01)
        view = await rig.ended()
        assert (view.status, unplaced(view.error), view.rollback) == (
            "errored",
            ErrorView(*WHY),
            DONE,
        )
        order = list(dict.fromkeys(saga.undone))
        assert order == EXPECTED
        assert len(saga.undone) <= len(EXPECTED) + 1  # what was in flight, once more
    finally:
        await rig.close()


async def test_success_and_plain_terminate_undo_nothing(tmp_path: Path) -> None:
    saga = Saga(fails=False)
    async with rigged(tmp_path) as rig:
        assert await rig.run(saga.entry()) == "good trip"
        assert (await rig.view()).rollback is None
        await rig.create("trip", key="acc/u1/i2")
        await rig.pass_time(1.5)
        view = await rig.do("terminate", "", key="acc/u1/i2")
        assert (view.status, view.rollback) == ("terminated", None)
        await rig.create("trip", key="acc/u1/i3")
        await rig.pass_time(1.5)
        await rig.call("delete", "", key="acc/u1/i3")
        await rig.pass_time(60)
        assert not saga.undone


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("status", ["running", "waiting", "paused", "waitingForPause", "queued"])
async def test_terminate_with_rollback(tmp_path: Path, status: str, crash: bool) -> None:
    saga = Saga(fails=False)
    async with rigged(tmp_path) as rig:
        await rig.create(saga.entry())
        if status in ("running", "waitingForPause"):
            await rig.pass_time(3.5)  # the car is booked, the hotel not yet
            if status == "waitingForPause":
                await rig.do("pause")
        else:
            await rig.status("waiting")
            if status == "paused":
                await rig.do("pause")
            elif status == "queued":
                rig.auto = False
                await rig.status("queued")
        assert (await rig.view()).status == status
        view = await rig.do("terminate", "t1", True)
        held = status in ("running", "waitingForPause")
        assert view.status == ("rollingBack" if held else "queued")
        with pytest.raises(InvalidTransition, match="is rollingBack, so it can't be paused"):
            await rig.do("pause")
        again = await rig.do("terminate", "t1", True)
        assert again.status in (view.status, "rollingBack")
        if crash:
            rig.restart()
        if status == "queued":
            await rig.pass_time(0.1)
            rig.auto = True
            rig.grant(rig.reports[-1])
        view = await rig.ended()
        assert (view.status, view.error, view.rollback) == ("terminated", None, DONE)
        names = [(name, output) for name, output, *_ in saga.undone]
        hotel = None if held else "hotel booked"
        assert names == [("car", "car booked"), ("hotel", hotel), ("flight", "flight booked")]
        assert "pay" not in saga.began


async def test_with_nothing_to_undo_it_is_terminated_at_once(tmp_path: Path) -> None:
    @workflow(name="plain")
    async def run(event: Event, step: Step) -> Any:
        await step.do("a", lambda: 1)
        await step.sleep("nap", 100)

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("waiting")
        view = await rig.do("terminate", "", True)
        assert (view.status, view.rollback) == ("terminated", None)


async def test_a_rollback_can_be_cut_short_and_restarted(tmp_path: Path) -> None:
    saga = Saga()
    async with rigged(tmp_path) as rig:
        await rig.create(saga.entry())
        await rig.status("rollingBack")
        with pytest.raises(InvalidTransition, match="rollingBack"):
            await rig.do("pause")
        assert (await rig.do("resume")).status == "rollingBack"
        view = await rig.do("terminate")
        assert view.status == "terminated"
        assert view.rollback == RollbackView(
            "failed", ErrorView("Terminated", "the instance was terminated")
        )
        assert unplaced(view.error) == ErrorView(*WHY)
        saga.fails = False
        await rig.do("restart", "", "pay", 1, "do")
        view = await rig.ended()
        assert (view.output, view.error, view.rollback) == (b'"good trip"', None, None)
        assert saga.began["flight"] == 1


async def test_a_caught_failure_undoes_nothing_until_the_workflow_fails(tmp_path: Path) -> None:
    undone: list[str] = []

    @workflow(name="caught")
    async def run(event: Event, step: Step) -> Any:
        def bad() -> None:
            raise NonRetryableError("no")

        try:
            await step.do("bad", bad, rollback=lambda: undone.append("bad"))
        except ValueError:
            pass
        except Exception:
            await step.do("good", lambda: 1, rollback=lambda: undone.append("good"))
        await step.sleep("nap", 5)
        assert not undone
        raise KeyError("late")

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        rig_view = await rig.ended()
        assert undone == ["good", "bad"]
        assert unplaced(rig_view.error) == ErrorView("KeyError", "'late'")


async def test_a_handler_that_is_gone_fails_the_rollback(tmp_path: Path) -> None:
    saga = Saga()
    async with rigged(tmp_path) as rig:
        await rig.create(saga.entry())
        await rig.status("waiting")
        undo = saga.undo()

        @workflow(name="trip")
        async def run(event: Event, step: Step) -> Any:
            await step.do("look", saga.book())
            await step.do("flight", saga.book(), rollback=undo)
            await asyncio.gather(
                step.do("hotel", saga.book(3)), step.do("car", saga.book(1), rollback=undo)
            )
            await step.sleep("nap", 1)
            await step.do("pay", saga.pay, TWICE, rollback=undo)

        rig.restart()
        rig.define(run)
        view = await rig.ended()
        assert view.rollback is not None
        assert view.rollback.outcome == "failed"
        assert view.rollback.error is not None
        assert view.rollback.error.name == "RollbackMissing"
        assert "hotel-1" in view.rollback.error.message
        assert [name for name, *_ in saga.undone] == ["pay", "car"]


async def test_a_rollback_with_no_retries_runs_at_most_once(tmp_path: Path) -> None:
    began: list[int] = []

    @workflow(name="once")
    async def run(event: Event, step: Step) -> Any:
        async def undo() -> None:
            began.append(1)
            await asyncio.sleep(5)

        await step.do("a", lambda: 1, rollback=undo, rollback_config=ONCE)
        raise ValueError("no")

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.pass_time(2)
        rig.restart()
        view = await rig.ended()
        assert view.rollback is not None
        assert view.rollback.error is not None
        assert view.rollback.error.name == "StepInterrupted"
        assert began == [1]


async def test_a_declared_step_has_a_rollback_too(tmp_path: Path) -> None:
    undone: list[Any] = []

    @workflow(name="declared")
    async def run(event: Event, step: Step) -> Any:
        @step.do("a", rollback=lambda output: undone.append(output))
        def a() -> int:
            return 7

        await a()
        raise ValueError("no")

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.ended()
        assert undone == [7]


async def test_wrong_rollbacks_are_refused_where_they_are_given(tmp_path: Path) -> None:
    told: list[str] = []

    @workflow(name="wrong")
    async def run(event: Event, step: Step) -> Any:
        for options in (
            {"rollback": lambda card: None},
            {"rollback_config": ONCE},
            {"rollback": 7},
            {"rollback": lambda: None, "rollback_config": {"retry": 1}},
        ):
            try:
                step.do("a", lambda: 1, **options)  # type: ignore[call-overload]
            except InvalidArgument as error:
                told.append(str(error))

    async with rigged(tmp_path) as rig:
        await rig.run(run)
        assert len(told) == 4
        assert "error" in told[0]
        assert "no rollback" in told[1]


@pytest.mark.parametrize("how", ["it hangs", "it fails and waits"])
async def test_a_rollback_has_a_deadline_over_all_its_attempts_and_crashes(
    tmp_path: Path, how: str
) -> None:
    @workflow(name="late")
    async def run(event: Event, step: Step) -> Any:
        async def undo() -> None:
            if how == "it hangs":
                await asyncio.get_running_loop().create_future()
            raise ValueError("no answer")

        config = {"deadline": 100, "retries": {"limit": 100, "delay": 15, "backoff": "constant"}}
        await step.do("a", lambda: 1, rollback=undo, rollback_config=config)
        raise ValueError("no")

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        await rig.status("rollingBack")
        began = rig.loop.time()
        await rig.pass_time(40)
        rig.restart()
        view = await rig.ended()
        assert 84 < rig.loop.time() - began < 102
        assert view.rollback is not None
        assert view.rollback.error is not None
        assert view.rollback.error.name == "StepDeadline"
        assert (view.status, unplaced(view.error)) == ("errored", ErrorView("ValueError", "no"))


@pytest.mark.parametrize("asked", [False, True])
async def test_asking_for_a_rollback_that_is_under_way_changes_nothing(
    tmp_path: Path, asked: bool
) -> None:
    saga = Saga(fails=not asked)
    async with rigged(tmp_path) as rig:
        await rig.create(saga.entry())
        if asked:
            await rig.pass_time(4.5)
            await rig.do("terminate", "", True)
        await rig.status("rollingBack")
        for number in range(2):
            view = await rig.do("terminate", f"t{number}", True)
            assert (view.status, view.rollback) == ("rollingBack", None)
            await rig.pass_time(0.5)
        view = await rig.ended()
        assert (view.status, view.rollback) == ("terminated" if asked else "errored", DONE)
        assert [name for name, *_ in saga.undone][-3:] == ["car", "hotel", "flight"]


@pytest.mark.parametrize("when", ["after it", "amid it"])
async def test_what_was_undone_is_not_kept_by_a_restart(tmp_path: Path, when: str) -> None:
    saga = Saga()
    async with rigged(tmp_path) as rig:
        await rig.create(saga.entry())
        if when == "after it":
            await rig.ended()
            first, kept = "flight", ("flight", 1, "do")
        else:
            await rig.until(lambda view: any(s.name == "rollback car-1" for s in view.steps))
            first, kept = "car", ("car", 1, "do")
        rows = rig.rows("steps")
        with pytest.raises(StepUndone, match=f"{first}-1.*'{first}', 1") as refused:
            await rig.do("restart", "no", "pay", 1, "do")
        assert refused.value.data == {"name": first, "count": 1}
        assert rig.rows("steps") == rows
        saga.fails = False
        await rig.do("restart", "yes", *kept)
        view = await rig.ended()
        assert (view.output, view.rollback) == (b'"good trip"', None)
        assert saga.began["look"] == 1
        assert saga.began[first] == 2
        assert saga.began["flight"] == (2 if when == "after it" else 1)


async def test_a_restart_that_keeps_nothing_to_undo_undoes_nothing(tmp_path: Path) -> None:
    saga = Saga()
    async with rigged(tmp_path) as rig:
        await rig.create(saga.entry())
        await rig.ended()
        rig.auto = False
        await rig.do("restart", "", "flight", 1, "do")
        view = await rig.do("terminate", "", True)
        assert (view.status, view.rollback) == ("terminated", None)
