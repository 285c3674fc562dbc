"""All operations in all statuses, a crash at each commit of each, and operations that meet.

What each of them does is told in the files of its own; here is what holds for all.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.engines.flows import Event, Step, hanging, napping
from tests.engines.rig import Rig, on_virtual_time, rigged
from tests.engines.test_crashes import persist
from tests.engines.test_restarting import in_status
from toque.engines.failures import StepNotFound
from toque.engines.status import FINISHED, STATUSES, TRANSITIONS, Status, move
from toque.engines.views import InstanceView
from toque.engines.workflow import workflow
from toque.runtime.errors import (
    InstanceNotFound,
    InvalidTransition,
    RequestIdReused,
    RequestRefused,
)

pytestmark = pytest.mark.loop(factory=on_virtual_time)
ANEW = ("", 1, "do")
OPERATIONS: dict[str, tuple[Any, ...]] = {
    "pause": (),
    "resume": (),
    "terminate": (False,),
    "cancel": (),
    "restart": ANEW,
}


def undoing() -> Any:
    """A workflow that rolls back for ever."""

    @workflow(name="undo")
    async def run(event: Event, step: Step) -> Any:
        async def forever() -> None:
            await asyncio.get_running_loop().create_future()

        await step.do("a", lambda: 1, rollback=forever)
        raise ValueError("no")

    return run


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("status", sorted(STATUSES))
async def test_the_table_says_what_is_allowed(tmp_path: Path, status: str, operation: str) -> None:
    async with rigged(tmp_path) as rig:
        if status == "rollingBack":
            await rig.create(undoing())
            await rig.status(status)
        else:
            await in_status(rig, status)
        await rig.pass_time(0.1)
        rig.auto = False
        rows = rig.rows("instances"), rig.rows("steps")
        requests = len(rig.rows("requests"))
        allowed = (status, operation) in TRANSITIONS
        if allowed:
            view = await rig.do(operation, "o1", *OPERATIONS[operation])
            assert view.status in STATUSES
            again = await rig.do(operation, "o1", *OPERATIONS[operation])
            assert again.run_id == view.run_id
        else:
            with pytest.raises(InvalidTransition, match=status):
                await rig.do(operation, "o1", *OPERATIONS[operation])
            await rig.pass_time(0.1)
            assert (rig.rows("instances"), rig.rows("steps")) == rows
            assert len(rig.rows("requests")) == requests + 1  # that it was refused
            with pytest.raises(InvalidTransition, match=status):
                await rig.do(operation, "o1", *OPERATIONS[operation])


@pytest.mark.parametrize("outcome", ["alive", "kept"])
async def test_what_was_refused_stays_refused(tmp_path: Path, outcome: str) -> None:
    """A copy of the message that comes late finds an instance that could do it now."""

    @workflow(name="done")
    async def done(event: Event, step: Step) -> int:
        return 1

    async with rigged(tmp_path) as rig:
        assert await rig.run(done) == 1
        refused = [name for name in sorted(OPERATIONS) if name != "restart"]
        for operation in refused:
            with pytest.raises(InvalidTransition, match="complete"):
                await rig.do(operation, operation, *OPERATIONS[operation])
        with pytest.raises(StepNotFound, match="none"):
            await rig.do("restart", "restart", "none", 1, "do")
        if outcome == "kept":
            rig.crash("kept")
            rig.restart()
        assert await rig.call("delete", "d1")
        made = await rig.create(hanging(), request_id="c2")
        await rig.status("running")
        for operation in refused:
            with pytest.raises(RequestRefused, match="refused before"):
                await rig.do(operation, operation, *OPERATIONS[operation])
        with pytest.raises(RequestRefused, match="refused before"):
            await rig.do("restart", "restart", "none", 1, "do")
        with pytest.raises(RequestIdReused):
            await rig.do("restart", "restart", "other", 1, "do")
        view = await rig.view()
        assert (view.status, view.run_id) == ("running", made.run_id)
        assert (await rig.do("pause", "p2")).status == "waitingForPause"  # with a new id it is done


async def test_only_the_last_refusals_are_kept_in_memory(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await in_status(rig, "complete")
        for number in range(40):
            with pytest.raises(InvalidTransition):
                await rig.do("pause", f"p{number}")
        with pytest.raises(RequestRefused, match="a new id"):
            await rig.do("pause", "p0")
        with pytest.raises(InvalidTransition, match="complete"):
            await rig.do("pause", "p39")


@pytest.mark.parametrize("operation", [*sorted(OPERATIONS), "delete"])
async def test_what_does_not_exist_takes_none(tmp_path: Path, operation: str) -> None:
    async with rigged(tmp_path) as rig:
        rig.define(napping())
        with pytest.raises(InstanceNotFound):
            await rig.call(operation, "o1", *OPERATIONS.get(operation, ()))
        assert not rig.rows("requests")


# --- crashes ------------------------------------------------------------------------------------


def working() -> Any:
    """Steps at the same time, sleeps, and a rollback."""

    @workflow(name="work")
    async def run(event: Event, step: Step) -> Any:
        def body(value: int) -> Any:
            return lambda: asyncio.sleep(2, value)

        first = await step.do("first", body(1), rollback=lambda: None)
        parts = await asyncio.gather(*(step.do("part", body(n)) for n in range(3)))
        await step.sleep("nap", 2)
        last = await step.do("last", body(7))
        return [first, parts, last]

    return run


SCRIPTS: dict[str, list[tuple[float, str, tuple[Any, ...]]]] = {
    "pause and resume": [(1, "pause", ()), (4, "resume", ())],
    "pause asleep": [(5, "pause", ()), (9, "resume", ())],
    "pause and take it back": [(2.5, "pause", ()), (1, "resume", ())],
    "terminate": [(3, "terminate", (False,))],
    "terminate with rollback": [(3, "terminate", (True,))],
    "terminate asleep with rollback": [(5, "terminate", (True,))],
    "restart": [(3, "restart", ANEW)],
    "restart from a step": [(6.5, "restart", ("part", 2, "do"))],
    "cancel": [(3, "cancel", ())],
    "pause, then cancel": [(1, "pause", ()), (3, "cancel", ())],
}
ENDS = {
    "terminate": ("terminated", None),
    "terminate with rollback": ("terminated", None),
    "terminate asleep with rollback": ("terminated", None),
    "cancel": ("terminated", "Cancelled"),
    "pause, then cancel": ("terminated", "Cancelled"),
}


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("at", [*range(1, 8), 9, 12])
@pytest.mark.parametrize("script", sorted(SCRIPTS))
async def test_a_crash_at_any_commit_changes_nothing(
    tmp_path: Path, script: str, at: int, outcome: Literal["lost", "kept"]
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(working())
        for number, (after_s, operation, args) in enumerate(SCRIPTS[script]):
            await rig.pass_time(after_s)
            if number == 0:
                rig.crash_at = rig.commits + at, outcome
            try:
                await persist_or_refused(rig, operation, f"o{number}", args)
            except InvalidTransition:
                assert (await rig.view()).status in FINISHED
        view = await rig.ended()
        wanted = ENDS.get(script, ("complete", None))
        assert (view.status, view.error.name if view.error else None) == wanted
        if wanted[0] == "complete":
            assert view.output == b"[1,[0,1,2],7]"
        if "rollback" in script:
            assert view.rollback is not None
            assert view.rollback.outcome == "complete"
        await rig.pass_time(20)
        assert rig.due_alarms() == []
        assert rig.reports[-1].state == "ended"
        assert rig.reports[-1].run_id == view.run_id


async def persist_or_refused(
    rig: Rig, operation: str, request_id: str, args: tuple[Any, ...]
) -> None:
    """Repeat until an answer comes, as a front end does; a refusal is one."""

    def send() -> Any:
        answer = rig.loop.create_future()
        call = rig.call(operation, request_id, *args)

        def told(done: asyncio.Future[Any]) -> None:
            if answer.done():
                if not done.cancelled():
                    done.exception()
            elif done.cancelled():
                answer.cancel()
            elif isinstance(done.exception(), InvalidTransition):
                answer.set_result(done.exception())
            elif done.exception() is not None:
                answer.set_exception(done.exception())
            else:
                answer.set_result(done.result())

        call.add_done_callback(told)
        return answer

    found = await persist(rig, send)
    if isinstance(found, InvalidTransition):
        raise found


@pytest.mark.parametrize("outcome", ["lost", "kept"])
@pytest.mark.parametrize("at", range(1, 8))
async def test_a_deletion_that_is_cut_off_is_done_once(
    tmp_path: Path, at: int, outcome: Literal["lost", "kept"]
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(working())
        await rig.pass_time(3)
        rig.crash_at = rig.commits + at, outcome
        assert await persist(rig, lambda: rig.call("delete", "d1")) is True
        with pytest.raises(InstanceNotFound):
            await persist_view(rig)
        await rig.pass_time(400)
        for table in ("instances", "steps", "events", "payloads", "requests", "tombstones"):
            assert not rig.rows(table)
        assert rig.reports[-1].state == "ended"


async def persist_view(rig: Rig) -> InstanceView:
    """The view, whatever crashes."""
    view = None
    while view is None:
        view = await rig._read("acc/u1/i1")
    return view


# --- operations that meet -----------------------------------------------------------------------


async def test_operations_meet_the_grant(tmp_path: Path) -> None:
    for operation in (*OPERATIONS, "delete"):
        folder = tmp_path / operation
        folder.mkdir()
        async with rigged(folder) as rig:
            rig.auto = False
            await rig.create(hanging())
            await rig.pass_time(0.1)
            report = rig.reports[-1]
            both = await asyncio.gather(
                rig.grant(report),
                rig.call(operation, "o1", *OPERATIONS.get(operation, ())),
                rig.grant(report),
            )
            assert isinstance(both[0][0], bool)
            await rig.pass_time(5)
            rig.auto = True
            state = rig.reports[-1].state
            if operation in ("terminate", "cancel", "delete"):
                assert state == "ended"
            elif operation == "pause":
                assert (await rig.do("terminate")).status == "terminated"
            else:
                assert state in ("queued", "running")


async def test_two_operations_at_once(tmp_path: Path) -> None:
    names = [*OPERATIONS, "delete"]
    for first in names:
        for second in names:
            folder = tmp_path / f"{first}-{second}"
            folder.mkdir()
            async with rigged(folder) as rig:
                await rig.create(napping(5))
                await rig.status("waiting")
                calls = [
                    rig.call(name, f"o{n}", *OPERATIONS.get(name, ()))
                    for n, name in enumerate((first, second))
                ]
                done = await asyncio.gather(*calls, return_exceptions=True)
                refused = (InvalidTransition, InstanceNotFound)
                assert not isinstance(done[0], Exception), (first, done)
                assert not isinstance(done[1], Exception) or isinstance(done[1], refused)
                if "delete" in (first, second):
                    with pytest.raises(InstanceNotFound):
                        await rig.view()
                    continue
                if (await rig.view()).status == "paused":
                    await rig.do("resume")
                assert (await rig.ended()).status in ("complete", "terminated")


INTERNAL = {"grant", "park", "wake", "quiesce", "roll_back", "complete", "fail", "continue"}
"""Events that nobody asks for by name."""


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_a_refusal_speaks_of_operations_only(status: Status) -> None:
    for event in ("pause", "resume", "cancel", "terminate", "roll_back", "restart"):
        if (status, event) in TRANSITIONS:
            continue
        with pytest.raises(InvalidTransition) as refused:
            move(status, event)  # type: ignore[arg-type]
        told = str(refused.value)
        possible = told[told.index("What can be done now: ") :]
        for operation in ("pause", "resume", "cancel", "terminate", "restart"):
            assert (operation in possible) == ((status, operation) in TRANSITIONS), told
        assert "delete" in possible
        assert not INTERNAL & set(re.findall(r"\w+", told)) - {"complete", "wait"} - {status}
        assert refused.value.data == {"status": status, "operation": told_as(event)}


def told_as(event: str) -> str:
    """What a user calls an event."""
    return "terminate" if event == "roll_back" else event


@pytest.mark.parametrize("operation", ["terminate", "pause", "delete", "restart"])
async def test_a_run_that_catches_everything_is_ended_all_the_same(
    tmp_path: Path, operation: str
) -> None:
    @workflow(name="grasping")
    async def grasping(event: Event, step: Step) -> None:
        while True:
            try:
                await step.sleep("nap", 3_000)
            except BaseException:
                continue

    async with rigged(tmp_path) as rig:
        await rig.create(grasping)
        await rig.status("waiting")
        await rig.call(operation, "r2", *(OPERATIONS.get(operation) or ()))
        if operation in ("terminate", "pause"):
            await rig.status("terminated" if operation == "terminate" else "paused")
        assert await rig.run(napping(), key="acc/u1/other") is not ..., "others go on"
