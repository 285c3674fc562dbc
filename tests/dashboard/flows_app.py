"""Workflows that the dashboard is tried on: one for each thing that it shows."""

from __future__ import annotations

from typing import Any

import toque
from toque import WorkflowEvent, WorkflowStep

HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>\'"&{{7*7}}'
"""What would do harm if it were put in as HTML."""
SOON = {"retries": {"limit": 3, "delay": "10 ms", "backoff": "constant"}, "timeout": "1 minute"}


class Orders(toque.WorkflowEntrypoint):
    """An order: a step, one that fails twice, a sleep, and an approval."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        """All kinds of steps."""
        tries = []

        def charge() -> dict[str, Any]:
            tries.append(1)
            if len(tries) < 3:
                raise ValueError("the bank is busy")
            return {"charged": True, "amount": 12_345_678_901_234_567_890}

        reserved = await step.do("reserve", lambda: {"shelf": 7}, rollback=lambda output: None)
        await step.do("charge", charge, SOON)
        await step.sleep("let it settle", "50 ms")
        answer = await step.wait_for_event("approval", "approval", timeout="1 day")
        await step.do("ship", lambda: "shipped")
        return {"reserved": reserved, "approved": answer.payload}


class Hostile(toque.WorkflowEntrypoint):
    """Says what would do harm as HTML wherever it can."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        """An output, an error and a name."""

        def no() -> None:
            raise toque.NonRetryableError(HOSTILE, HOSTILE)

        await step.do(HOSTILE, lambda: HOSTILE)
        await step.do("no", no)


class Large(toque.WorkflowEntrypoint):
    """Gives more than is shown at once."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        """A long output."""
        return await step.do("large", lambda: "x" * 300_000)


class Many(toque.WorkflowEntrypoint):
    """Makes as many steps as it is told to."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> int:
        """Steps that do nothing."""
        for _ in range(event.payload):
            await step.do("one", lambda: None)
        return int(event.payload)


class Quick(toque.WorkflowEntrypoint):
    """Ends at once."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> None:
        """Nothing."""


class Nap(toque.WorkflowEntrypoint):
    """Sleeps for long."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> None:
        """One sleep."""
        await step.sleep("nap", "1 day")
