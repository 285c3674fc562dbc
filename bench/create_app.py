"""Workflows for measuring creates and lists: one ends at once, the other waits for ever.

Neither does any work of its own, so that what is measured is the way to it and back.
"""

from __future__ import annotations

from typing import Any

import toque


class Quick(toque.WorkflowEntrypoint):
    """Ends at once."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> None:
        """Nothing."""


class Parked(toque.WorkflowEntrypoint):
    """Waits for an event that does not come."""

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> None:
        """One wait."""
        await step.wait_for_event("wait", "never", timeout="365 days")
