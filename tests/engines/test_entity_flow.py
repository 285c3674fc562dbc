"""Long-lived instances: events one after the other, and runs that follow each other."""

from __future__ import annotations

import asyncio
import contextlib
import operator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engines.play import Play
from tests.engines.rig import insist, on_virtual_time, rigged, view_of
from tests.naming import shown
from toque.engines.failures import PayloadMismatch
from toque.engines.step import WorkflowStep
from toque.engines.workflow import WorkflowEntrypoint, WorkflowEvent, workflow
from toque.runtime.codec import NULL, decode_json, encode_json

virtual = pytest.mark.loop(factory=on_virtual_time)


@dataclass
class Added:
    """A payload."""

    amount: int


def nothing() -> Any:
    """A body."""


# --- the event iterator -------------------------------------------------------------------------


def test_events_are_given_one_after_the_other_each_once() -> None:
    async def run(step: WorkflowStep) -> Any:
        found = []
        async for event in step.events("add", limit=3, payload_type=Added):
            found.append(event.payload.amount)
            await step.do("note", nothing)
        return found

    it = Play(run)
    for amount in (1, 2, 3, 4):
        it.send("add", {"amount": amount})
    it.look()
    for count in (1, 2, 3):
        it.finish(f"note-{count}")
        if count < 3:
            it.replay()
    assert it.output == [1, 2, 3]
    assert list(it.events.values()) == [b'{"amount":4}'], "what was not asked for is left"


def test_the_loop_ends_when_nothing_comes_for_so_long() -> None:
    async def run(step: WorkflowStep) -> Any:
        found = []
        events = step.events("add", name="addition", timeout=60)
        async for event in events:
            found.append(event.payload)
        async for _event in events:
            raise AssertionError("it is over")
        return found

    it = Play(run)
    it.advance(50_000)
    it.send("add", 1)
    it.look()
    it.advance(59_000)
    it.replay()
    assert it.execution.outcome is None
    it.advance(1_000)
    assert it.output == [1]
    assert [record.public_name for record in it.records] == ["addition-1", "addition-2"]


def test_without_a_timeout_the_loop_waits_for_ever() -> None:
    async def run(step: WorkflowStep) -> Any:
        async for event in step.events("add"):
            return event.payload
        raise AssertionError("it ended")

    it = Play(run)
    it.advance(800 * 86_400_000)
    it.send("add", "at last")
    it.look()
    assert it.output == "at last"


def test_an_event_that_does_not_fit_does_not_end_the_iterator() -> None:
    async def run(step: WorkflowStep) -> Any:
        events = step.events("add", payload_type=Added, limit=3)
        found: list[Any] = []
        while len(found) < 3:
            try:
                async for event in events:
                    found.append(event.payload.amount)
            except PayloadMismatch:
                found.append("unfit")
        return found

    it = Play(run)
    for payload in ({"amount": 1}, {"amount": "x"}, {"amount": 3}):
        it.send("add", payload)
    it.look()
    assert it.output == [1, "unfit", 3]
    assert it.replay().output == [1, "unfit", 3]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"event_type": "a.b"}, "event type"),
        ({"limit": 0}, "limit of events 'add' is 0"),
        ({"limit": True}, "limit of events 'add' is True"),
        ({"timeout": 0}, "timeout of events 'add'"),
        ({"timeout": "soon"}, "timeout of events 'add' is 'soon', which is no duration"),
        ({"name": "a\nb"}, "step name"),
        ({"payload_type": Play}, "Play has no JSON form"),
    ],
    ids=shown,
)
def test_bad_iterators_are_refused_where_they_are_made(given: dict[str, Any], why: str) -> None:
    async def run(step: WorkflowStep) -> Any:
        step.events(**{"event_type": "add", **given})

    assert why in Play(run).error[1]


# --- continue as new ----------------------------------------------------------------------------


def next_params(it: Play) -> Any:
    """The params of the run that is to follow."""
    outcome = it.execution.outcome
    assert outcome is not None
    assert outcome.next_params is not None, outcome
    return decode_json(outcome.next_params)


def test_a_run_ends_by_continuing() -> None:
    cleaned = []

    async def run(step: WorkflowStep) -> Any:
        await step.do("a", nothing)
        try:
            step.continue_as_new(Added(3))
        except Exception:
            pytest.fail("no handler of the author's sees it")
        finally:
            cleaned.append(True)

    it = Play(run)
    it.finish("a-1")
    assert next_params(it) == {"amount": 3}
    assert cleaned == [True]
    assert next_params(it.replay()) == {"amount": 3}


def test_a_run_may_continue_out_of_a_task_group() -> None:
    async def run(step: WorkflowStep) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(step.do("slow", nothing))
            await step.do("quick", nothing)
            step.continue_as_new(1)

    it = Play(run)
    it.finish("quick-1")
    assert next_params(it) == 1
    assert it.stopped == ["slow-1"]


async def returns(step: WorkflowStep) -> Any:
    """Ends `run` after all."""
    return "swallowed"


async def takes_a_step(step: WorkflowStep) -> Any:
    """Goes on."""
    await step.do("more", nothing)


async def sleeps(step: WorkflowStep) -> Any:
    """Goes on."""
    await step.sleep("more", 60)


async def waits(step: WorkflowStep) -> Any:
    """Goes on."""
    await step.wait_for_event("more", "go")


async def uses_asyncio(step: WorkflowStep) -> Any:
    """Goes on."""
    await asyncio.sleep(60)


async def goes_round(step: WorkflowStep) -> Any:
    """Tries again, as a loop with a net around its body would."""
    for _ in range(3):
        with contextlib.suppress(BaseException):
            await step.sleep("more", 60)
            step.continue_as_new(2)


@pytest.mark.parametrize(
    "then", [returns, takes_a_step, sleeps, waits, uses_asyncio, goes_round], ids=shown
)
@pytest.mark.parametrize("cleans", [False, True])
def test_no_handler_of_the_authors_keeps_a_run_from_continuing(then: Any, cleans: bool) -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.do("a", nothing)
        try:
            step.continue_as_new(1)
        except BaseException:
            if cleans:
                try:
                    raise KeyError
                except KeyError:
                    await step.do("clean", nothing)
                await asyncio.wait_for(step.do("clean", nothing), 10)
                await asyncio.sleep(1)
        return await then(step)

    it = Play(run)
    it.finish("a-1")
    if cleans:
        it.finish("clean-1")
        it.replay()
        it.finish("clean-2")
        it.advance(1_000)
    assert next_params(it) == 1
    assert not it.bodies
    assert "more" not in [record.name for record in it.records]
    it.close()


def test_an_error_after_a_run_was_to_continue_is_not_hidden() -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            step.continue_as_new(1)
        finally:
            raise KeyError("real")

    assert Play(run).error == ("KeyError", "'real'")


def test_a_handler_may_continue_with_other_params() -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            step.continue_as_new(1)
        except BaseException:
            step.continue_as_new(2)

    assert next_params(Play(run)) == 2


def test_a_task_may_not_continue() -> None:
    async def run(step: WorkflowStep) -> Any:
        async def child() -> None:
            step.continue_as_new(1)

        await asyncio.create_task(child())

    name, message = Play(run).error
    assert name == "StepMisuse"
    assert "Call it in run() itself" in message


def test_continuing_forgets_no_step_that_was_not_awaited() -> None:
    async def run(step: WorkflowStep) -> Any:
        step.do("lost", nothing)
        step.continue_as_new()

    assert "'lost' was called and never awaited" in Play(run).error[1]


def test_params_that_are_no_data_are_refused_where_they_are_given() -> None:
    async def run(step: WorkflowStep) -> Any:
        step.continue_as_new(object())

    assert Play(run).error[0] == "UnencodableValue"


# --- on a host ----------------------------------------------------------------------------------


class Counter(WorkflowEntrypoint):
    """An entity: adds what comes, two events a run, and ends on `stop`."""

    async def run(self, event: WorkflowEvent[int], step: WorkflowStep) -> int:
        total = event.payload
        async for added in step.events("add", limit=2):
            if added.payload is None:
                return total
            total = await step.do("add", partial(operator.add, total, added.payload))
        return step.continue_as_new(total)


@virtual
async def test_an_entity_loses_no_event_over_its_runs(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(Counter, 0)
        waiter = rig.call("wait", 600_000)
        first = await rig.view()
        for number in range(1, 8):
            await rig.call("send_event", "add", encode_json(number), f"e{number}")
        await rig.until(lambda view: view.continued == 3)
        await rig.call("send_event", "add", NULL, "end")
        view = view_of(await waiter)
        assert (view.status, view.output, view.continued) == ("complete", b"28", 3)
        assert view.id == first.id
        assert view.run_id != first.run_id
        assert view.params == b"21"
        steps = (await rig.view()).steps
        assert [one.name for one in steps] == ["add-1", "add-1", "add-2"]
        assert len(rig.rows("steps")) == 3, "the history of earlier runs is gone"
        assert not rig.rows("events")
        assert len(rig.rows("status_notes")) <= 1


@virtual
@pytest.mark.parametrize("outcome", ["lost", "kept"])
async def test_an_entity_over_a_crash_at_every_commit(tmp_path: Path, outcome: Any) -> None:
    for crash_at in range(1, 40):
        folder = tmp_path / str(crash_at)
        folder.mkdir()
        async with rigged(folder) as rig:
            rig.crash_at = crash_at, outcome
            asked = {f"e{n}": encode_json(n) for n in (1, 2, 3, 4, 5)} | {"end": NULL}
            await insist(rig, lambda: rig.create_call(Counter, 0))
            for request_id, payload in asked.items():
                await insist(
                    rig, lambda p=payload, r=request_id: rig.call("send_event", "add", p, r)
                )
            view = await rig.ended()
            assert view.error is None, view.error
            assert (view.output, view.continued) == (b"15", 2)
            if rig.commits < crash_at:
                return


@virtual
async def test_a_restart_begins_the_last_run_again(tmp_path: Path) -> None:
    """With its params: what earlier runs did is done, and theirs are not kept."""
    runs: list[Any] = []

    @workflow
    async def counted(event: WorkflowEvent[int], step: WorkflowStep) -> int:
        runs.append(event.payload)
        if event.payload < 3:
            step.continue_as_new(event.payload + 1)
        return event.payload

    async with rigged(tmp_path) as rig:
        await rig.create(counted, 1)
        before = await rig.ended()
        await rig.call("restart", "again", "", 1, "do")
        view = await rig.ended()
        assert (view.params, view.output, view.continued) == (b"3", b"3", 2)
        assert view.run_id != before.run_id
        assert runs == [1, 2, 3, 3]


@virtual
async def test_a_run_that_continues_at_once_hurts_nobody(tmp_path: Path) -> None:
    runs: list[Any] = []

    @workflow
    async def restless(event: WorkflowEvent[int], step: WorkflowStep) -> None:
        runs.append(event.payload)
        step.continue_as_new(event.payload + 1)

    async with rigged(tmp_path) as rig:
        await rig.create(restless, 0)
        await rig.until(lambda view: view.continued > 20)
        await rig.call("terminate", "t")
        view = await rig.ended()
        assert view.status == "terminated"
        assert sorted(set(runs)) == list(range(len(set(runs))))


@virtual
async def test_a_late_body_of_the_run_before_is_not_heard(tmp_path: Path) -> None:
    gate = asyncio.Event()

    @workflow
    async def twice(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        async def slow() -> str:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass
            return "late"

        if event.payload == "second":
            await step.sleep("nap", 10)
            return "done"
        task = asyncio.create_task(step.do("slow", slow))
        await step.do("quick", nothing)
        return step.continue_as_new("second" if not task.done() else None)

    async with rigged(tmp_path) as rig:
        assert await rig.run(twice) == "done"
        assert [one.name for one in (await rig.view()).steps] == ["nap-1"]


@virtual
async def test_a_run_that_continues_while_a_pause_is_wanted_is_paused(tmp_path: Path) -> None:
    gate = asyncio.Event()

    @workflow
    async def paused(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        if event.payload:
            return event.payload
        await step.do("wait", gate.wait)
        return step.continue_as_new("went on")

    async with rigged(tmp_path) as rig:
        await rig.create(paused)
        await rig.status("running")
        await rig.pass_time(0.1)
        await rig.call("pause", "p")
        gate.set()
        view = await rig.status("paused")
        assert view.continued == 1
        await rig.pass_time(100)
        assert (await rig.view()).status == "paused"
        await rig.call("resume", "r")
        assert (await rig.ended()).output == b'"went on"'
