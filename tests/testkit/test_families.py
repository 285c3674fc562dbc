"""Parents and children in simulations: when they rest, and what a crash changes."""

from __future__ import annotations

from typing import Any

import pytest

from toque import ChildFailed, WorkflowEntrypoint
from toque.runtime.errors import InvalidArgument
from toque.testkit.factory import SimFactory
from toque.testkit.handles import SimInstance
from toque.testkit.simulation import Simulation


class Kid(WorkflowEntrypoint):
    async def run(self, event: Any, step: Any) -> Any:
        if event.payload == "fails":
            raise ValueError("no")
        return await step.do("work", lambda: 2)


class Waits(WorkflowEntrypoint):
    async def run(self, event: Any, step: Any) -> Any:
        try:
            await step.run_child("bad", Kid, "fails")
        except ChildFailed as error:
            return str(error), await step.run_child("kid", Kid)


class Leaves(WorkflowEntrypoint):
    async def run(self, event: Any, step: Any) -> Any:
        await step.start_child("kid", Kid, on_parent_end="abandon")


def settle(sim: Simulation, one: SimInstance) -> None:
    sim.settle()


def test_a_parent_whose_child_has_just_ended_is_not_at_rest(toque_sim: SimFactory) -> None:
    with toque_sim([Waits, Kid]) as sim:
        sim.create(Waits)
        sim.settle()
        assert set(sim._world.statuses.values()) == {"complete", "errored"}


@pytest.mark.parametrize("script", [None, settle])
def test_children_without_ids_of_their_own_are_the_same_after_a_crash(
    toque_sim: SimFactory, script: Any
) -> None:
    survival = toque_sim.crash_everywhere(Waits, script=script, workflows=[Waits, Kid])
    assert survival.reran.keys() == {"Kid work-1"}


def test_children_that_outlive_their_parent_end_before_ends_are_compared(
    toque_sim: SimFactory,
) -> None:
    survival = toque_sim.crash_everywhere(Leaves, workflows=[Leaves, Kid])
    assert survival.reran.keys() == {"Kid work-1"}


@pytest.mark.parametrize("wrong", ["made", 0, "7", 2.5, True])
def test_a_crash_at_a_commit_that_is_made_is_refused(toque_sim: SimFactory, wrong: Any) -> None:
    with toque_sim(Kid) as sim:
        with pytest.raises(InvalidArgument, match="must be a later one"):
            sim.crash_at_commit(sim.commits if wrong == "made" else wrong, kept=True)
        sim.crash_at_commit(sim.commits + 1, kept=True)
        assert sim.create(Kid).result() == 2
        assert "CRASH" in sim.story()


class Twin(Kid):
    """Another workflow: ids are a workflow's own."""


def test_a_map_by_id_hides_no_child_of_another_workflow(toque_sim: SimFactory) -> None:
    class Maps(WorkflowEntrypoint):
        async def run(self, event: Any, step: Any) -> Any:
            kids = [await step.start_child("kid", each, id="same") for each in (Kid, Twin)]
            return await step.join("mapped", kids, mode="merge", merge="named_map")

    with toque_sim([Maps, Kid, Twin]) as sim:
        error = sim.create(Maps).wait().error
        assert error is not None
        assert "hide another" in error.message
