"""The Engine on a real host and store: create, payloads, code.

Ends that are not the workflow's own doing are here too.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.engines.flows import Event, Step, napping
from tests.engines.rig import KEY, on_virtual_time, rigged, unplaced
from toque.engines.views import ErrorView
from toque.engines.workflow import WorkflowEntrypoint, WorkflowEvent, workflow
from toque.runtime import limits
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InstanceNotFound,
    InvalidId,
)
from toque.runtime.ids import EntityRef

pytestmark = pytest.mark.loop(factory=on_virtual_time)

# --- create -------------------------------------------------------------------------------------


async def test_an_instance_is_created_granted_run_and_ended(tmp_path: Path) -> None:
    @workflow(name="sum")
    async def run(event: Event, step: Step) -> Any:
        doubled = await step.do("double", lambda: event.payload * 2)
        return {"sum": doubled + 1, "id": event.instance_id, "of": event.workflow_name}

    async with rigged(tmp_path) as rig:
        created = await rig.create(run, 20)
        assert (created.status, created.id, created.workflow_uuid) == ("queued", "i1", "u1")
        ended = await rig.ended()
        assert ended.output == b'{"sum":41,"id":"i1","of":"sum"}'
        assert ended.step_count == 1
        states = [(r.state, r.seq, r.turn, r.status) for r in rig.reports]
        assert states == [("queued", 1, 1, "queued"), ("ended", 2, 1, "complete")]
        assert rig.grants == [(1, True)]


async def test_create_is_durable_before_it_is_answered(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.hold_commits()
        answer = rig.create_call(napping())
        await rig.pass_time(1)
        assert not answer.done()
        assert not rig.reports
        rig.release_commits()
        await answer
        await rig.status("waiting")


async def test_the_same_request_creates_once_and_another_is_refused(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        first, second = await asyncio.gather(rig.create(napping()), rig.create(napping()))
        assert first.run_id == second.run_id
        with pytest.raises(InstanceAlreadyExists):
            await rig.create("nap", request_id="other")
        with pytest.raises(InstanceAlreadyExists):
            await rig.create("nap", request_id="")
        rig.restart()
        assert (await rig.create("nap")).run_id == first.run_id


async def test_create_and_wait_is_one_request(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        view = await rig.create(napping(2), wait_ms=60_000)
        assert (view.status, view.output) == ("complete", b'"rested"')
        view = await rig.create("nap", wait_ms=500, key="acc/u1/i2")
        assert view.status == "waiting"


async def test_a_bad_id_leaves_nothing(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        with pytest.raises(InvalidId):
            await rig.create(napping(), key="acc/u1/a//b")
        assert not rig.rows("instances")
        assert not rig.rows("alarms")


async def test_large_params_and_outputs_live_in_rows_of_their_own(tmp_path: Path) -> None:
    @workflow(name="echo")
    async def run(event: Event, step: Step) -> Any:
        return event.payload

    async with rigged(tmp_path) as rig:
        assert await rig.run(run, "x" * 100_000) == "x" * 100_000
        assert sorted(row[1] for row in rig.rows("payloads")) == ["output", "params"]
        assert len(rig.rows("instances")[0][-1]) < 1_000
        assert (await rig.view()).params == b'"' + b"x" * 100_000 + b'"'


@pytest.mark.parametrize("method", ["view", "wait", "send_event", "terminate"])
async def test_what_does_not_exist_is_not_found_and_leaves_nothing(
    tmp_path: Path, method: str
) -> None:
    args: dict[str, tuple[Any, ...]] = {
        "view": (False, False),
        "wait": (1_000,),
        "send_event": ("t", b"1", ""),
        "terminate": ("",),
    }
    async with rigged(tmp_path) as rig:
        with pytest.raises(InstanceNotFound):
            await rig.call(method, *args[method])
        await rig.pass_time(0.01)
        assert not rig.rows("instances")
        assert rig.host.peek(EntityRef("Engine", KEY)) is None


# --- payloads and annotations -------------------------------------------------------------------


@dataclass
class Order:
    """A typed payload."""

    item: str
    at: datetime


async def test_payload_and_results_have_the_annotated_types(tmp_path: Path) -> None:
    class Typed(WorkflowEntrypoint):
        async def run(self, event: WorkflowEvent[Order], step: Step) -> Any:
            def next_day() -> datetime:
                return event.payload.at + timedelta(days=1)

            at = await step.do("next day", next_day)
            await step.sleep("s", 1)
            return [type(event.payload).__name__, type(at).__name__, at.day]

    async with rigged(tmp_path) as rig:
        params = {"item": "pen", "at": "2030-01-31T00:00:00Z"}
        assert await rig.run(Typed, params) == ["Order", "datetime", 1]


async def test_params_of_another_type_end_the_instance(tmp_path: Path) -> None:
    class Typed(WorkflowEntrypoint):
        async def run(self, event: WorkflowEvent[Order], step: Step) -> Any: ...

    async with rigged(tmp_path) as rig:
        await rig.create(Typed, {"item": 3})
        view = await rig.ended()
        assert view.status == "errored"
        assert view.error is not None
        assert view.error.name == "PayloadMismatch"


async def test_the_event_tells_when_it_was_created_alike_at_replay(tmp_path: Path) -> None:
    @workflow(name="times")
    async def run(event: Event, step: Step) -> Any:
        before = event.timestamp
        await step.sleep("s", 5)
        return [before.isoformat(), event.timestamp.isoformat()]

    async with rigged(tmp_path) as rig:
        created = await rig.create(run)
        await rig.status("waiting")
        rig.restart()
        view = await rig.ended()
        at = datetime.fromtimestamp(created.created_ms / 1_000, UTC).isoformat()
        assert view.output == f'["{at}","{at}"]'.encode()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (object(), "UnencodableValue"),
        (float("nan"), "UnencodableValue"),
        ({1, object}, "UnencodableValue"),
        ("x" * limits.PAYLOAD_BYTES_MAX, "PayloadTooLarge"),
    ],
    ids=["object", "nan", "set", "large"],
)
async def test_a_result_that_cannot_be_kept_ends_the_instance_at_once(
    tmp_path: Path, value: Any, error: str
) -> None:
    @workflow(name="bad")
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.do("odd", lambda: value)
        except BaseException:
            return "swallowed"

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == error
        assert "'odd-1'" in view.error.message
        assert "'bad'" in view.error.message
        step = view.steps[0]
        assert (step.success, step.attempts_total) == (False, 1)


async def test_an_output_that_cannot_be_kept_ends_the_instance(tmp_path: Path) -> None:
    @workflow(name="bad")
    async def run(event: Event, step: Step) -> Any:
        return lambda: 1

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "UnencodableValue"
        assert view.output is None


# --- code ---------------------------------------------------------------------------------------


async def test_changed_code_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(napping(30))
        await rig.status("waiting")
        rig.restart()
        rig.define(napping(30), "h2")
        with caplog.at_level(logging.WARNING):
            view = await rig.ended()
        assert view.status == "complete"
        assert view.code_changed
        assert "goes on with h2" in caplog.text


async def test_code_that_is_missing_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create("later")
        view = await rig.status("running")
        assert not view.steps
        assert "not loaded" in caplog.text
        rig.restart()
        await rig.pass_time(60)

        @workflow(name="later")
        async def run(event: Event, step: Step) -> str:
            return "loaded"

        rig.define(run)
        assert (await rig.ended()).output == b'"loaded"'


async def test_an_entry_point_that_cannot_be_made_ends_the_instance(tmp_path: Path) -> None:
    class Broken(WorkflowEntrypoint):
        def __init__(self) -> None:
            raise SystemExit("no")

        async def run(self, event: Event, step: Step) -> Any: ...

    async with rigged(tmp_path) as rig:
        await rig.create(Broken)
        view = await rig.ended()
        assert unplaced(view.error) == ErrorView("SystemExit", "no")


async def test_non_determinism_ends_the_instance(tmp_path: Path) -> None:
    began: list[str] = []

    def make(name: str) -> Any:
        @workflow(name="changes")
        async def run(event: Event, step: Step) -> Any:
            await step.do(name, lambda: began.append(name))
            await step.sleep("s", 30)

        return run

    async with rigged(tmp_path) as rig:
        await rig.create(make("old"))
        await rig.status("waiting")
        rig.restart()
        rig.define(make("new"), "h2")
        view = await rig.ended()
        assert view.status == "errored"
        assert view.error is not None
        assert view.error.name == "NonDeterminism"
        assert "'old-1'" in view.error.message
        assert "'new-1'" in view.error.message
        assert began == ["old"]
        assert [step.name for step in view.steps] == ["old-1", "s-1"]


async def test_a_grant_that_comes_again_after_a_reset_tells_no_end_that_is_not_written(
    tmp_path: Path,
) -> None:
    @workflow(name="w")
    async def at_once(event: Event, step: Step) -> Any:
        return 1

    async with rigged(tmp_path) as rig:
        await rig.create("w")  # its code can't be had yet
        await rig.status("running")
        rig.define(at_once)
        rig.host.reset(rig.host._live[EntityRef("Engine", KEY)], RuntimeError("a fault"))
        queued = rig.reports[0]
        assert await rig.grant(queued) == [False]
        [row] = rig.rows("instances")
        assert "complete" in row
        assert (await rig.view()).output == b"1"
