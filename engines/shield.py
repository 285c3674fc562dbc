"""Cancelling a run, and what is shielded from it.

A cancel raises `asyncio.CancelledError` where `run` awaits, and from then on in every step that
is called, but not inside `async with step.shield():`. There steps, retries and awaits go on as
ever, in the tasks that are started there too; the cancel comes when the shield ends. Cancels by
the author (`task.cancel()`, `asyncio.timeout`) inside a shield work as ever.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from .failures import StepMisuse
from .loop import WorkflowTask


class Shield:
    """What `step.shield()` gives: `async with` it."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: WorkflowTask | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if not isinstance(task, WorkflowTask):
            raise StepMisuse(
                "step.shield() was used outside of run(). Right: `async with step.shield(): await "
                "step.do('clean up', clean_up)` in run() or a task that it starts."
            )
        self._task = task
        task.shields += 1

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task = self._task
        assert task is not None
        task.shields -= 1
        if task.is_owed and not task.shields:
            task.is_owed = False
            if error is None:
                raise asyncio.CancelledError("the instance is cancelled")
