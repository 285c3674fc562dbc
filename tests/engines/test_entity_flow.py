"""Long-lived instances: events one after the other, and runs that follow each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engines.play import Play
from toque.engines.failures import PayloadMismatch
from toque.engines.step import WorkflowStep
from toque.runtime.codec import decode_json


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
        async for event in events:
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
    ids=str,
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
