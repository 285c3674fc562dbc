"""The load test's workflows: a program as any user's, deployed as the script `toque-loadtest`.

Each does one thing that costs something: steps, a wait for an event, a sleep, a slot that is held
while nothing is computed. It imports the public names only, since it runs as a file of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import toque


class LoadOneStep(toque.WorkflowEntrypoint):
    """One step that returns a small value."""

    async def run(self, event: Any, step: Any) -> Any:
        """Do it."""
        return await step.do("work", lambda: {"ok": True})


class LoadTenSteps(toque.WorkflowEntrypoint):
    """Ten steps, one after another."""

    async def run(self, event: Any, step: Any) -> Any:
        """Do them."""
        total = 0
        for number in range(10):
            total += await step.do(f"work {number}", lambda number=number: number)
        return total


class LoadEvent(toque.WorkflowEntrypoint):
    """Waits for an event of type `go`, and ends."""

    async def run(self, event: Any, step: Any) -> Any:
        """Wait for it."""
        await step.wait_for_event("wait", "go", timeout="7 days")


class LoadSleep(toque.WorkflowEntrypoint):
    """Sleeps until the instant (seconds since 1970) that its params name, and ends."""

    async def run(self, event: Any, step: Any) -> Any:
        """Sleep."""
        await step.sleep_until("nap", event.payload["until"])


class LoadHold(toque.WorkflowEntrypoint):
    """Holds a slot for as many seconds as its params say, in a step that awaits."""

    async def run(self, event: Any, step: Any) -> Any:
        """Hold it."""
        seconds = event.payload["seconds"]

        async def hold() -> None:
            await asyncio.sleep(seconds)

        await step.do("hold", hold)


class LoadNoisy(LoadHold):
    """The neighbour with a long queue."""


class LoadQuiet1(LoadHold):
    """A neighbour that asks for little."""


class LoadQuiet2(LoadHold):
    """Another one."""


class LoadQuiet3(LoadHold):
    """Another one."""


class LoadQuiet4(LoadHold):
    """Another one."""


class LoadQuiet5(LoadHold):
    """Another one."""


class LoadQuiet6(LoadHold):
    """Another one."""


class LoadQuiet7(LoadHold):
    """Another one."""


class LoadQuiet8(LoadHold):
    """Another one."""
