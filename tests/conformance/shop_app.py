"""Workflows that Cloudflare's clients are tried on: one for each thing that an answer can hold."""

from __future__ import annotations

from typing import Any

import toque
from toque import WorkflowEvent, WorkflowStep

LATER = {"retries": {"limit": 3, "delay": "1 hour", "backoff": "constant"}, "timeout": "1 minute"}


class Orders(toque.WorkflowEntrypoint):
    """Charges, and says so as text: the SDK's types know no other output."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> str:
        """One step."""

        def charge() -> str:
            return f"charged {event.payload}"

        return await step.do("charge", charge)


class Ask(toque.WorkflowEntrypoint):
    """Waits for an event, and gives its payload."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        """One wait."""
        answer = await step.wait_for_event("ask", "answer", timeout="1 hour")
        return answer.payload


class Nap(toque.WorkflowEntrypoint):
    """Sleeps for long."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> str:
        """One sleep."""
        await step.sleep("nap", "1 hour")
        return "rested"


class Fail(toque.WorkflowEntrypoint):
    """Fails at once."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> None:
        """One step that fails, which undoes one that did not."""

        def no() -> None:
            raise toque.NonRetryableError("no stock", "OutOfStock")

        await step.do("reserve", lambda: "r-1", rollback=lambda output: None)
        await step.do("ship", no)


class Retry(toque.WorkflowEntrypoint):
    """Fails, and is to be tried again in an hour; with params `dynamic`, as a function says."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> None:
        """One step."""

        def no() -> None:
            raise ValueError("not yet")

        retries: dict[str, Any] = {"limit": 3, "delay": lambda ctx, error: "2 hours"}
        await step.do("try", no, {"retries": retries} if event.payload else LATER)


class Stream(toque.WorkflowEntrypoint):
    """Gives a stream and a secret."""

    async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> int:
        """Two steps."""

        def lines() -> Any:
            yield b"one\n"
            yield b"two\n"

        await step.do("lines", lines)
        await step.do("secret", lambda: "s3cret", {"sensitive": "output"})
        return 2
