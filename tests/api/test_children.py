"""Children in a whole runtime: over shards, in workers, on both control planes, and as the API
shows them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import toque
from toque.api.children import ShardChildren
from toque.gatekeeper.messages import LimitsChange

Event = toque.WorkflowEvent[Any]
Step = toque.WorkflowStep


class Leaf(toque.WorkflowEntrypoint):
    """Gives its number, or waits for good."""

    async def run(self, event: Event, step: Step) -> dict[str, Any]:
        number = await step.do("number", lambda: event.payload)
        if number == -1:
            await step.wait_for_event("never", "never", timeout="30 days")
        return {"number": number, "id": event.instance_id}


class Fan(toque.WorkflowEntrypoint):
    """A child for each number."""

    async def run(self, event: Event, step: Step) -> list[int]:
        numbers = range(event.payload)
        kids = [step.run_child("leaf", Leaf, number) for number in numbers]
        return [kid["number"] for kid in await asyncio.gather(*kids)]


class Apart(toque.WorkflowEntrypoint):
    """The same in a process of its own, with children that have theirs."""

    placement = "actor"

    async def run(self, event: Event, step: Step) -> Any:
        if event.payload == "leaf":
            return await step.do("pid", lambda: event.payload)
        child = await step.start_child("apart", Apart, "leaf")
        await step.sleep("nap", 0.05)
        return [await child.result(), (await step.run_child("leaf", Leaf, 3))["number"]]


class Keeper(toque.WorkflowEntrypoint):
    """Has a child that never ends, and waits."""

    async def run(self, event: Event, step: Step) -> None:
        await step.run_child("leaf", Leaf, -1)


@pytest.mark.parametrize("plane", ["v1", "v2"])
async def test_children_on_several_shards_and_both_planes(tmp_path: Path, plane: Any) -> None:
    async with toque.embedded(
        tmp_path, [Leaf, Fan], data_shards=3, control_shards=2, control_plane=plane
    ) as runtime:
        client = runtime.client()
        fan = await client.create_instance("Fan", "fan", 12)
        assert await fan.output(list[int], timeout=30) == list(range(12))
        ids = [line.id async for line in client.list_instances("Leaf", prefix="fan/")]
        assert len(ids) == 12


async def test_children_of_instances_in_processes_of_their_own(tmp_path: Path) -> None:
    async with toque.embedded(tmp_path, [Leaf, Apart], data_shards=2) as runtime:
        apart = await runtime.client().create_instance("Apart", "apart")
        assert await apart.output(timeout=40) == ["leaf", 3]


async def test_a_family_with_fewer_slots_than_members_ends(tmp_path: Path) -> None:
    async with toque.embedded(tmp_path, [Leaf, Fan], running_max=1) as runtime:
        fans = [await runtime.client().create_instance("Fan", params=3) for _ in range(3)]
        for fan in fans:
            assert await fan.output(list[int], timeout=40) == [0, 1, 2]


async def test_a_rate_that_is_used_up_delays_children_and_fails_none(tmp_path: Path) -> None:
    async with toque.embedded(tmp_path, [Leaf, Fan]) as runtime:
        limit = LimitsChange(creates_per_second=2)
        await runtime.control_plane.limits.of_workflow("default", "Leaf", limit)
        fan = await runtime.client().create_instance("Fan", params=6)
        assert await fan.output(list[int], timeout=40) == list(range(6))


async def test_what_clients_are_shown_of_parents_and_children(tmp_path: Path) -> None:
    async with toque.embedded(tmp_path, [Leaf, Keeper]) as runtime:
        client = runtime.client()
        keeper = await client.create_instance("Keeper", "keeper")
        async for event in keeper.events(types=["child_wait_started"]):
            assert event.step_name == "leaf-1"
            break
        async for _ in keeper.events(types=["workflow_waiting"]):
            break
        (reason,) = (await keeper.why()).reasons
        assert (reason.kind, reason.due) == ("child", None)
        assert reason.child is not None
        child = client.instance(reason.child.workflow, reason.child.id)
        status = await child.status()
        assert status.parent is not None
        assert (status.parent.workflow, status.parent.id) == ("Keeper", "keeper")
        assert status.parent.on_parent_end == "cancel"
        start, wait = (await keeper.status()).steps
        assert (start.type, wait.type) == ("startChild", "child")
        assert start.child == wait.child == {"workflow": "Leaf", "id": child.id}
        assert (start.success, wait.success, wait.end) == (True, None, None)
        await keeper.terminate()
        ended = await child.wait()
        assert (ended.status, ended.error and ended.error.name) == ("terminated", "Cancelled")
        types = [event.type async for event in keeper.events()]
        wanted = ["child_start_started", "child_start_completed", "child_wait_started"]
        assert [name for name in types if name.startswith("child_")] == wanted


async def test_nobody_from_outside_can_name_a_parent(tmp_path: Path) -> None:
    async with toque.embedded(tmp_path, [Leaf]) as runtime:
        with pytest.raises(toque.InvalidArgument):
            await runtime.client().create_instances("Leaf", [{"id": "x", "parent": "y"}])


async def test_a_shard_that_is_closed_makes_no_children(tmp_path: Path) -> None:
    async with toque.embedded(tmp_path, [Leaf]) as runtime:
        plane = runtime.control_plane
        children = ShardChildren(runtime.router, runtime.placement, plane.clock, runtime.entropy)
        await children.close()
        with pytest.raises(toque.SystemFault):
            await children.start("default", None, None)  # type: ignore[arg-type]
