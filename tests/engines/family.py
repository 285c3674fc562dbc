"""What tests of children share: a child, and how it is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.flows import Event, Step
from tests.engines.rig import KEY, Rig, rigged
from toque.engines.views import InstanceView
from toque.engines.workflow import WorkflowEntrypoint, workflow

PREFIX = KEY.removesuffix("i1")


@dataclass
class Page:
    number: int
    words: list[str]


class Index(WorkflowEntrypoint):
    """The child of most tests: naps, does a step, gives a typed value."""

    name = "index"

    async def run(self, event: Event, step: Step) -> Page:
        wish = event.payload or {}
        if wish.get("nap"):
            await step.sleep("nap", wish["nap"])
        number = await step.do("count", lambda: wish.get("number", 1))
        if wish.get("fail"):
            raise ValueError("no such page")
        if wish.get("wait"):
            await step.wait_for_event("go", "go", timeout="30 days")
        return Page(number, ["a", "b"])


Run = Callable[[Event, Step], Any]


def parent(run: Run) -> Any:
    """A workflow with that `run`."""
    return workflow(name="parent")(run)


def children(rig: Rig) -> list[str]:
    """Keys of all instances but the parent."""
    return sorted(row[0] for row in rig.rows("instances") if row[0] != KEY)


async def child_that(rig: Rig, status: str) -> InstanceView:
    """The only child, when it has a status."""
    await rig.until(lambda view: bool(children(rig)))
    (key,) = children(rig)
    return await rig.status(status, key)


async def run_of(folder: Path, run: Run) -> Any:
    """What a parent returns that only needs `Index`."""
    async with rigged(folder) as rig:
        rig.define(Index)
        return await rig.run(parent(run))
