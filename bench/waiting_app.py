"""Workflows that wait, for bench/waiters.py."""

from __future__ import annotations

from typing import Any

import toque


class Wait(toque.WorkflowEntrypoint):
    """Waits for an event."""

    async def run(self, event: Any, step: Any) -> Any:
        return (await step.wait_for_event("wait", "go", timeout="7 days")).payload


class Nap(toque.WorkflowEntrypoint):
    """Sleeps until the second that its params say."""

    async def run(self, event: Any, step: Any) -> Any:
        await step.sleep_until("nap", event.payload["until"])
        return await step.do("work", lambda: 1)
