"""Small workflows that tests of the Engine share.

Each call makes a new one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toque.engines.step import WorkflowStep
from toque.engines.workflow import WorkflowEvent, workflow

Event = WorkflowEvent[Any]
Step = WorkflowStep
ONCE = {"retries": {"limit": 0}}


def one_step(body: Any, config: Any = None) -> Any:
    """A workflow of one step."""

    @workflow(name="one")
    async def run(event: Event, step: Step) -> Any:
        return await step.do("a", body, config)

    return run


def napping(seconds: float = 60) -> Any:
    """A workflow that sleeps."""

    @workflow(name="nap")
    async def run(event: Event, step: Step) -> Any:
        await step.sleep("nap", seconds)
        return "rested"

    return run


def waiting() -> Any:
    """A workflow that waits for an event."""

    @workflow(name="wait")
    async def run(event: Event, step: Step) -> Any:
        return (await step.wait_for_event("w", "go")).payload

    return run


def hanging() -> Any:
    """A workflow whose step never ends."""

    async def body() -> None:
        await asyncio.get_running_loop().create_future()

    return one_step(body)
