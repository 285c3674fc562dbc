"""What runs on the account that moves: one workflow whose instances end, hold a slot, or wait.

`quick` has one step. `hold` keeps its slot for so long. `wait` waits for the event `go`. Each gives
back its own number, so that an end can be told from another's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toque.engines.step import WorkflowStep
from toque.engines.workflow import WorkflowEntrypoint, WorkflowEvent

QUICK, HOLD, WAIT = "quick", "hold", "wait"


class Moving(WorkflowEntrypoint):
    """See the module."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> list[Any]:
        kind, number, for_s = event.payload
        if kind == WAIT:
            told = await step.wait_for_event("go", "go", timeout="1 day")
            number += told.payload

        async def body() -> int:
            if for_s:
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=for_s)
            return int(number)

        return [kind, await step.do("work", body)]
