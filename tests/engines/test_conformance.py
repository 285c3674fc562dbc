"""Behaviours of Cloudflare Workflows that no other test holds; docs/conformance.md names them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.flows import Event, Step, one_step, waiting
from tests.engines.play import Play, Run
from tests.engines.rig import on_virtual_time, rigged
from toque.engines.body_call import StepContext
from toque.engines.failures import NonRetryableError
from toque.engines.workflow import workflow

pytestmark = pytest.mark.loop(factory=on_virtual_time)


def nothing() -> Any:
    """A body; the test decides how it ends."""


@pytest.fixture
def play() -> Iterator[Any]:
    """Makes plays, and closes them."""
    made = []

    def make(run: Run) -> Play:
        made.append(Play(run))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def test_a_caught_step_failure_does_not_fail_the_instance(tmp_path: Path) -> None:
    @workflow(name="catches")
    async def catches(event: Event, step: Step) -> str:
        def body() -> None:
            raise ValueError("no")

        try:
            await step.do("a", body, {"retries": {"limit": 1, "delay": 1}})
        except ValueError as error:
            return f"caught {error}"
        return "not caught"

    async with rigged(tmp_path) as rig:
        assert await rig.run(catches) == "caught no"


@pytest.mark.parametrize("message", ["told", ""])
async def test_an_error_with_or_without_a_message_is_retried(tmp_path: Path, message: str) -> None:
    def body(ctx: StepContext) -> int:
        if ctx.attempt < 3:
            raise RuntimeError(message) if message else RuntimeError
        return ctx.attempt

    async with rigged(tmp_path) as rig:
        assert await rig.run(one_step(body, {"retries": {"limit": 2, "delay": 1}})) == 3


@pytest.mark.parametrize("message", ["told", ""])
async def test_a_non_retryable_error_is_remembered(tmp_path: Path, message: str) -> None:
    calls: list[int] = []

    @workflow(name="never")
    async def never(event: Event, step: Step) -> str:
        def body() -> None:
            calls.append(1)
            raise NonRetryableError(message) if message else NonRetryableError

        try:
            await step.do("a", body)
        except NonRetryableError as error:
            told = str(error)
        await step.sleep("nap", 60)
        return told

    async with rigged(tmp_path) as rig:
        await rig.create(never)
        await rig.status("waiting")
        rig.restart("kept")
        view = await rig.ended()
        assert view.error is None
        assert message.encode() in (view.output or b"")
        assert len(calls) == 1


async def test_the_same_id_in_two_workflows_is_two_instances(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        first = await rig.create(one_step(lambda: 1), key="acc/u1/same", request_id="a")
        second = await rig.create(waiting(), key="acc/u2/same", request_id="b")
        assert first.run_id != second.run_id
        await rig.call("terminate", "t", False, key="acc/u2/same")
        assert (await rig.ended("acc/u1/same")).output == b"1"
        assert (await rig.ended("acc/u2/same")).status == "terminated"


async def test_an_event_that_was_taken_is_not_given_again(tmp_path: Path) -> None:
    @workflow(name="two")
    async def two(event: Event, step: Step) -> Any:
        first = (await step.wait_for_event("w", "go")).payload
        await step.sleep("nap", 60)
        try:
            return first, (await step.wait_for_event("w", "go", timeout=60)).payload
        except TimeoutError:
            return first, "none"

    async with rigged(tmp_path) as rig:
        await rig.create(two)
        await rig.status("waiting")
        await rig.call("send_event", "go", b"7", "e1")
        await rig.until(lambda view: any(step.name == "nap-1" for step in view.steps))
        rig.restart("kept")
        assert (await rig.ended()).output == b'[7,"none"]'


async def test_events_keep_their_order_past_ten(tmp_path: Path) -> None:
    @workflow(name="dozen")
    async def dozen(event: Event, step: Step) -> Any:
        await step.sleep("later", 60)
        return [(await step.wait_for_event("w", "go")).payload for _ in range(12)]

    async with rigged(tmp_path) as rig:
        await rig.create(dozen)
        await rig.status("waiting")
        for number in range(12):
            await rig.call("send_event", "go", b"%d" % number, f"e{number}")
        rig.restart("kept")
        assert (await rig.ended()).output == b"[0,1,2,3,4,5,6,7,8,9,10,11]"


def test_a_sleep_is_found_again_by_its_name_and_keeps_its_end(play: Any) -> None:
    async def sleeps(step: Step) -> int:
        await step.sleep("nap", 60)
        return 1

    async def sleeps_longer(step: Step) -> int:
        await step.sleep("nap", 6_000)
        return 1

    it = play(sleeps)
    due = it.execution.next_due_ms()
    it.replay(sleeps_longer)
    assert it.execution.next_due_ms() == due
    it.advance(60_000)
    assert it.output == 1


def test_replays_count_no_steps(play: Any) -> None:
    async def steps(step: Step) -> None:
        for _ in range(3):
            await step.do("a", nothing)
        await step.wait_for_event("w", "go")

    it = play(steps)
    for number in range(3):
        it.finish(f"a-{number + 1}")
    for _ in range(5):
        it.replay()
    assert it.execution.journal.shown == 4


async def test_a_body_cannot_change_its_settings(tmp_path: Path) -> None:
    def body(ctx: StepContext) -> str:
        try:
            ctx.config.limit = 100  # type: ignore[misc]
        except AttributeError:
            return "refused"
        return "changed"

    async with rigged(tmp_path) as rig:
        assert await rig.run(one_step(body)) == "refused"
