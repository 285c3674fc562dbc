"""The workflows that are measured. `toque dev` loads this file, so it stands alone."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import toque


class OneStep(toque.WorkflowEntrypoint):
    """One step that returns a small value."""

    async def run(self, event: Any, step: Any) -> Any:
        async def work() -> dict[str, bool]:
            return {"ok": True}

        return await step.do("work", work)


class TenSteps(toque.WorkflowEntrypoint):
    """Ten steps, one after another; gives how long each took, in seconds."""

    async def run(self, event: Any, step: Any) -> list[float]:
        took = []
        for n in range(10):

            async def work(n: int = n) -> int:
                return n

            start = time.perf_counter()
            await step.do(f"work {n}", work)
            took.append(time.perf_counter() - start)
        return took


class ManySteps(toque.WorkflowEntrypoint):
    """So many steps, then a wait."""

    async def run(self, event: Any, step: Any) -> Any:
        total = 0
        for n in range(event.payload):

            async def work(n: int = n) -> int:
                return n

            total += await step.do("work", work)
        await step.wait_for_event("more", "go", timeout="1 day")
        return total


class Quick(toque.WorkflowEntrypoint):
    """Ends at once, so that what is measured is the way to it and back."""

    async def run(self, event: Any, step: Any) -> None:
        """Nothing."""


class Parked(toque.WorkflowEntrypoint):
    """Waits for an event that does not come."""

    async def run(self, event: Any, step: Any) -> None:
        await step.wait_for_event("wait", "never", timeout="365 days")


class Wait(toque.WorkflowEntrypoint):
    """Waits for an event and gives its payload."""

    async def run(self, event: Any, step: Any) -> Any:
        return (await step.wait_for_event("wait", "go", timeout="7 days")).payload


class Nap(toque.WorkflowEntrypoint):
    """Sleeps until the second that its params say."""

    async def run(self, event: Any, step: Any) -> Any:
        await step.sleep_until("nap", event.payload["until"])
        return await step.do("work", lambda: 1)


class Hold(toque.WorkflowEntrypoint):
    """Runs: one step that awaits something for as long as its params say."""

    async def run(self, event: Any, step: Any) -> Any:
        async def hold() -> None:
            await asyncio.sleep(event.payload["s"])

        return await step.do("hold", hold, config={"timeout": "1 day"})


class Walk(toque.WorkflowEntrypoint):
    """Goes on for ever, step after step, and notes in a file when each began."""

    async def run(self, event: Any, step: Any) -> Any:
        path, name = event.payload["path"], event.payload["name"]

        async def tread() -> None:
            line = f"{time.time():.4f} {name}\n".encode()
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, line)
            os.close(descriptor)
            await asyncio.sleep(event.payload["every_s"])

        for number in range(10):
            await step.do(f"tread {number}", tread)
        step.continue_as_new(event.payload)


class Busy(toque.WorkflowEntrypoint):
    """Holds a slot for 0.2 s."""

    async def run(self, event: Any, step: Any) -> None:
        async def work() -> None:
            await asyncio.sleep(0.2)

        await step.do("work", work)


class Late(Busy):
    """The same work under another name, so that it has SousChefs of its own."""
