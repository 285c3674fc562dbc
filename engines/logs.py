"""Logs of workflows: quiet while `run` only repeats what it has done before.

`step.log` writes to the logger `toque.workflow`; each line carries `workflow`, `instance`, `run`
and, in the body of a step, `step`. For an author's own loggers there is the filter
`QuietOnReplay`. What `run` logged before a crash or a hibernation is not logged again: lines up
to the end of the record belong to an earlier life. A line may be lost with the process, as logs
are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any, NamedTuple

from .claims import current_body
from .loop import WorkflowLoop


class Whose(NamedTuple):
    """Whose lines these are."""

    workflow: str = ""
    instance: str = ""
    run: str = ""

    def __str__(self) -> str:
        return f"instance {self.instance}, run {self.run}"


def is_replay() -> bool:
    """Whether the caller is `run` (or a task of it) and only repeats what it did before."""
    loop = asyncio._get_running_loop()
    return isinstance(loop, WorkflowLoop) and loop.is_replaying


class QuietOnReplay(logging.Filter):
    """Drops what `run` logs during a replay: `logging.getLogger("my").addFilter(...)`."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not is_replay()


class WorkflowLog(logging.LoggerAdapter[logging.Logger]):
    """`step.log`: as a logger, but quiet on replay, and with the instance in each line."""

    def __init__(self, whose: Whose) -> None:
        super().__init__(logging.getLogger("toque.workflow"), whose._asdict())

    def isEnabledFor(self, level: int) -> bool:
        return not is_replay() and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        step = current_body.get("")
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {}), "step": step}
        return msg, kwargs
