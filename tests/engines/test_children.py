"""Children: started, heard, and what a start or a child that fails comes to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engines.family import PREFIX, Index, Page, child_that, children, parent, run_of
from tests.engines.flows import Event, Step
from tests.engines.rig import KEY, on_virtual_time, rigged
from toque.engines import child_calls
from toque.engines.failures import (
    ChildFailed,
    ChildIdTaken,
    ChildNotStarted,
    ChildWorkflowNotFound,
    PayloadMismatch,
    StepMisuse,
    TooManyChildren,
)
from toque.engines.workflow import WorkflowEntrypoint, workflow
from toque.runtime.codec import decode_json
from toque.runtime.errors import InvalidArgument, InvalidId, Overloaded, UnencodableValue
from toque.runtime.ids import EntityRef

pytestmark = pytest.mark.loop(factory=on_virtual_time)


# --- starts and ends ------------------------------------------------------------------------


async def test_a_child_is_started_and_its_output_is_of_its_own_type(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def run(event: Event, step: Step) -> Any:
        child = await step.start_child("index", Index, {"number": 4})
        seen[:] = [child.workflow, child.id, await child.result()]
        return seen[2].number

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        assert await rig.run(parent(run)) == 4
        assert seen == ["index", rig.asked[0], Page(4, ["a", "b"])]
        (key,) = children(rig)
        view = await rig.view(key)
        assert (view.status, view.source) == ("complete", "api")
        assert view.parent is not None
        assert (view.parent.key, view.parent.workflow, view.parent.depth) == (KEY, "parent", 1)
        assert view.id.startswith("i1/")
        mine = await rig.view()
        assert mine.parent is None
        assert [(s.name, s.type, s.success) for s in mine.steps] == [
            ("index-1", "startChild", True),
            ("index-1", "child", True),
        ]
        assert all(s.child is not None and s.child.id == view.id for s in mine.steps)
        assert decode_json(mine.steps[1].output or b"")["number"] == 4
        assert not rig.rows("children")
        assert not rig.rows("inbox")  # nothing is left of those who told


async def test_a_name_gives_plain_data_and_an_id_of_ones_own_is_taken(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        return [
            await step.run_child("index", "index", {"number": 2}, id="mine/2"),
            (await step.start_child("index", "index", id="mine/3")).id,
        ]

    got = await run_of(tmp_path, run)
    assert got == [{"number": 2, "words": ["a", "b"]}, "mine/3"]


async def test_a_child_that_has_ended_long_ago_is_heard_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    async def run(event: Event, step: Step) -> Any:
        child = await step.start_child("index", Index)
        await step.sleep("meanwhile", 3_600)
        return (await child.result()).number

    assert await run_of(tmp_path, run) == 1


async def test_who_waits_for_a_child_holds_no_slot_and_no_memory(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        return (await step.run_child("index", Index, {"nap": 3_600})).number

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        await rig.status("waiting")
        reasons = (await rig.call("waiting"))["reasons"]
        assert [(r["kind"], r["name"], r["due_ms"]) for r in reasons] == [
            ("child", "index-1", None)
        ]
        assert reasons[0]["child"]["workflow"] == "index"
        await rig.pass_time(600)
        assert rig.host.peek(EntityRef("Engine", KEY)) is None
        assert decode_json((await rig.ended()).output or b"") == 1


async def test_a_result_may_be_awaited_again_but_not_by_two_tasks_at_once(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        child = await step.start_child("index", Index, {"nap": 5})
        first = asyncio.create_task(child.result())
        await asyncio.sleep(0)
        try:
            await child.result()
        except StepMisuse as error:
            told = str(error)
        return [(await first).number, (await child.result()).number, "two tasks" in told]

    assert await run_of(tmp_path, run) == [1, 1, True]


async def test_many_children_at_once_are_heard_each_once(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        wishes = [{"number": n, "nap": 1 + n % 3} for n in range(20)]
        pages = await asyncio.gather(*(step.run_child("index", Index, w) for w in wishes))
        return [page.number for page in pages]

    assert await run_of(tmp_path, run) == list(range(20))


# --- children that fail, and starts that do --------------------------------------------------


async def test_a_child_that_fails_raises_its_error(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.run_child("index", Index, {"fail": True})
        except ChildFailed as error:
            return [error.code, str(error).partition("is ")[2], error.data]

    code, text, data = await run_of(tmp_path, run)
    assert (code, text) == ("child.failed", "errored: ValueError: no such page")
    assert data["status"] == "errored"
    assert data["error"] == {"name": "ValueError", "message": "no such page", "data": None}


@pytest.mark.parametrize("how", ["terminate", "cancel", "delete"])
async def test_a_child_that_is_ended_from_outside_ends_the_wait(tmp_path: Path, how: str) -> None:
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.run_child("index", Index, {"wait": True})
        except ChildFailed as error:
            return error.data["status"]

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        key = PREFIX + (await child_that(rig, "waiting")).id
        await rig.call(how, "outside", key=key)
        status = "deleted" if how == "delete" else "terminated"
        assert decode_json((await rig.ended()).output or b"") == status


async def test_an_output_that_does_not_fit_is_told_to_who_asks(tmp_path: Path) -> None:
    class Odd(WorkflowEntrypoint):
        name = "index"

        async def run(self, event: Event, step: Step) -> int:
            return 1

    async def run(event: Event, step: Step) -> Any:
        try:
            await step.run_child("index", Odd)
        except PayloadMismatch as error:
            return str(error)

    assert "does not fit what its run() is annotated to return" in await run_of(tmp_path, run)


async def test_what_can_never_be_started_is_a_typed_error(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        told = []
        for name, id in (("nobody", None), ("index", "i1")):
            try:
                await step.start_child("index", name, id=id)
            except ChildNotStarted as error:
                told.append([type(error).__name__, error.data["code"]])
        return told

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        assert await rig.run(parent(run)) == [
            [ChildWorkflowNotFound.__name__, "workflow.not_found"],
            [ChildIdTaken.__name__, "instance.already_exists"],
        ]
        assert not rig.rows("children")
        assert children(rig) == []


class _Nothing:
    pass


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"workflow": _Nothing}, InvalidArgument),
        ({"workflow": 3}, InvalidArgument),
        ({"workflow": "a b"}, InvalidId),
        ({"workflow": "index", "id": "/x"}, InvalidId),
        ({"workflow": "index", "id": ""}, InvalidId),
        ({"workflow": "index", "on_parent_end": "kill"}, InvalidArgument),
        ({"workflow": "index", "params": object()}, UnencodableValue),
        ({"workflow": "index", "name": "a\nb"}, InvalidId),
    ],
)
async def test_nonsense_is_refused_where_it_is_written(
    tmp_path: Path, given: dict[str, Any], error: type[Exception]
) -> None:
    async def run(event: Event, step: Step) -> Any:
        try:
            await step.start_child(**{"name": "index", **given})
        except error as refused:
            return type(refused).__name__

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        assert await rig.run(parent(run)) == error.__name__
        assert (await rig.view()).step_count == 0


async def test_a_refusal_that_passes_is_repeated_and_shown_meanwhile(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        return (await step.run_child("index", Index)).number

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        rig.refusals = [Overloaded("the queue is full")] * 3
        await rig.create(parent(run))
        await rig.status("waiting")  # it holds no slot between two tries
        (reason,) = (await rig.call("waiting"))["reasons"]
        assert reason["kind"] == "startChild"
        assert "the queue is full" in reason["error"][1]
        assert decode_json((await rig.ended()).output or b"") == 1
        assert len(rig.asked) == 4
        assert len(set(rig.asked)) == len(children(rig)) == 1


async def test_how_many_children_and_how_deep_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_calls, "CHILDREN_PER_INSTANCE_MAX", 2)
    monkeypatch.setattr(child_calls, "CHILD_DEPTH_MAX", 3)

    async def run(event: Event, step: Step) -> Any:
        try:
            for _ in range(4):
                await step.start_child("index", Index, {"wait": True})
        except TooManyChildren as error:
            return str(error)

    @workflow(name="deep")
    async def deep(event: Event, step: Step) -> Any:
        try:
            return 1 + await step.run_child("deeper", "deep")
        except TooManyChildren:
            return 0

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        assert "2 children that have not ended" in await rig.run(parent(run))
        assert await rig.run(deep, key=PREFIX + "deep") == 3
