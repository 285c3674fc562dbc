"""What is to keep its times while clocks are wrong: workflows that tell two clocks.

`wall` is the clock that may be wrong, `true` one that never is, and the same for all processes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import toque

_LOOK_S = 0.02
_PAUSE = threading.Event()


def now() -> dict[str, float]:
    """Both clocks."""
    return {"wall": time.time(), "true": time.monotonic()}


@toque.workflow
async def nap(event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> list[dict[str, float]]:
    """Sleeps for as long as the params say; returns the times before and after."""
    before = await step.do("before", now)
    await step.sleep("sleep", event.payload)
    return [before, await step.do("after", now)]


@toque.workflow
async def wait(event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
    """Waits for a word, for as long as the params say; returns it, or None."""
    try:
        return (await step.wait_for_event("word", "word", timeout=event.payload)).payload
    except toque.EventTimeout:
        return None


@toque.workflow
async def work(event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> int:
    """A body that is under way until there is a file of that name; returns its attempt."""

    async def body(ctx: toque.StepContext) -> int:
        Path(f"{event.payload}.begun").touch()
        while not Path(event.payload).exists():
            await asyncio.to_thread(_PAUSE.wait, _LOOK_S)
        return ctx.attempt

    return await step.do("body", body)
