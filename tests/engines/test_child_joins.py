"""Joins over children: all, the first, a merge; starved and empty ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.family import PREFIX, Index, parent, run_of
from tests.engines.flows import Event, Step
from tests.engines.rig import on_virtual_time, rigged
from toque.engines.failures import (
    JoinEmpty,
    JoinStarved,
    PayloadMismatch,
)
from toque.engines.workflow import workflow
from toque.runtime.codec import decode_json
from toque.runtime.errors import InvalidArgument

pytestmark = pytest.mark.loop(factory=on_virtual_time)


# --- joins ----------------------------------------------------------------------------------


async def _started(step: Step, *wishes: dict[str, Any]) -> list[Any]:
    return [await step.start_child("index", "index", wish) for wish in wishes]


async def test_a_join_of_all_gives_results_in_the_order_of_the_children(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        kids = await _started(step, *({"number": n, "nap": 9 - n} for n in range(3)))
        first = await step.join("all", kids)
        again = await step.join("again", kids[::-1])  # they have ended: nothing is waited for
        return [[each["number"] for each in results] for results in (first, again)]

    assert await run_of(tmp_path, run) == [[0, 1, 2], [2, 1, 0]]


async def test_a_join_bears_as_many_failures_as_it_says(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        kids = await _started(step, {"fail": True, "nap": 1}, {"number": 5}, {"fail": True})
        good = await step.join("two may", kids, max_failures=2)
        told = [
            type(each).__name__ if isinstance(each, Exception) else each["number"] for each in good
        ]
        try:
            await step.join("one may", kids, max_failures=1)
        except JoinStarved as error:
            told += [error.data["failures"], error.data["failed"][0]["id"] == kids[0].id]
        return told

    assert await run_of(tmp_path, run) == ["ChildFailed", 5, "ChildFailed", 2, True]


@pytest.mark.parametrize(("losers", "status"), [("finish", "complete"), ("cancel", "terminated")])
async def test_a_join_of_the_first_fires_once(tmp_path: Path, losers: str, status: str) -> None:
    async def run(event: Event, step: Step) -> Any:
        kids = await _started(
            step, {"nap": 30, "number": 1}, {"fail": True}, {"nap": 3, "number": 2}
        )
        first = await step.join("first", kids, mode="first", losers=losers)
        await step.sleep("a while", 60)
        return [first["number"], kids[0].id]

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        number, id = await rig.run(parent(run))
        assert number == 2
        assert (await rig.view(PREFIX + id)).status == status


@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        ("overwrite", {"number": 1, "words": ["a", "b"]}),  # the first of them ends last
        ("array", [1, 2]),
        ("named_map", {"one": 1, "two": 2}),
    ],
)
async def test_a_join_merges(tmp_path: Path, merge: str, expected: Any) -> None:
    async def run(event: Event, step: Step) -> Any:
        kids = [
            await step.start_child("index", "index", {"number": 1, "nap": 9}, id="one"),
            await step.start_child("index", "index", {"number": 2}, id="two"),
            await step.start_child("index", "index", {"fail": True}, id="three"),
        ]
        got = await step.join("merged", kids, mode="merge", merge=merge, max_failures=1)
        if merge == "array":
            return [each["number"] for each in got]
        if merge == "named_map":
            return {id: each["number"] for id, each in got.items()}
        return got

    assert await run_of(tmp_path, run) == expected


async def test_a_join_that_can_not_be_fulfilled_says_so(tmp_path: Path) -> None:
    async def run(event: Event, step: Step) -> Any:
        told = []
        try:
            await step.join("empty", [])
        except JoinEmpty as error:
            told.append(error.code)
        kids = await _started(step, {"fail": True}, {"fail": True})
        try:
            await step.join("starved", kids, mode="first")
        except JoinStarved as error:
            told.append([error.code, error.data["failures"]])
        try:
            await step.join("starved", kids)
        except JoinStarved as error:
            told.append([error.code, error.data["failures"] > 0])
        plain = [await step.start_child("text", "text")]
        try:
            await step.join("unfit", plain, mode="merge")
        except PayloadMismatch as error:
            told.append("merges mappings" in str(error))
        return told

    @workflow(name="text")
    async def text(event: Event, step: Step) -> str:
        return "text"

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        rig.define(text)
        assert await rig.run(parent(run)) == [
            "join.empty",
            ["join.starved", 2],
            ["join.starved", True],
            True,
        ]


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "some"},
        {"losers": "kill"},
        {"merge": "sum"},
        {"merge": "array"},
        {"merge": "named_map", "mode": "first"},
        {"max_failures": -1},
        {"max_failures": True},
        {"children": 3},
        {"children": ["index"]},
        {"children": "twice"},
    ],
)
async def test_a_join_of_nonsense_is_refused_where_it_is_written(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    async def run(event: Event, step: Step) -> Any:
        kids = await _started(step, {})
        children = given.get("children", kids)
        options = {**given, "children": kids * 2 if children == "twice" else children}
        try:
            await step.join("odd", **options)
        except InvalidArgument as refused:
            return str(refused)

    assert "join 'odd'" in await run_of(tmp_path, run)


async def test_a_join_over_a_restart_of_the_process_fires_once_and_the_same(
    tmp_path: Path,
) -> None:
    async def run(event: Event, step: Step) -> Any:
        kids = await _started(step, *({"number": n, "nap": 5 * (3 - n)} for n in range(3)))
        first = await step.join("first", kids, mode="first")
        after = await step.do("after", lambda: first["number"])
        every = await step.join("all", kids)
        return [after, len(every)]

    async with rigged(tmp_path) as rig:
        rig.define(Index)
        await rig.create(parent(run))
        for _ in range(8):
            await rig.pass_time(2.2)
            rig.restart("lost")
        assert decode_json((await rig.ended()).output or b"") == [2, 3]
