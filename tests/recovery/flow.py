"""The campaign's workload: a workflow of five steps, each of which says when it begins and ends.

Every body appends a line to the log that the instance's params name, at its start and at its end,
in one write each, so that lines of all processes stand in the order in which they were made. The
end line holds the value that the body returns, which no other attempt returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

from toque.engines.step import WorkflowStep
from toque.engines.workflow import WorkflowEntrypoint, WorkflowEvent

STEPS = 5
BODY_S = 0.2


def note(log: str, **line: Any) -> None:
    """Append one line to the log."""
    raw = json.dumps({**line, "at": time.time()}).encode() + b"\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, raw)
    finally:
        os.close(descriptor)


async def work_for(seconds: float) -> None:
    """Take that long."""
    await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=seconds)


async def work(log: str, instance: str, step: int, lasts_s: float = BODY_S) -> str:
    """A body: takes its time and returns what nobody else does."""
    value = os.urandom(8).hex()
    about = {"instance": instance, "step": step, "value": value, "pid": os.getpid()}
    note(log, what="start", **about)
    await work_for(lasts_s)
    note(log, what="end", **about)
    return value


class Campaign(WorkflowEntrypoint):
    """Five steps, one after the other; returns their values."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> list[str]:
        values = []
        for number in range(STEPS):

            async def body(number: int = number) -> str:
                return await work(event.payload["log"], event.instance_id, number)

            values.append(await step.do(f"step-{number}", body))
        return values
