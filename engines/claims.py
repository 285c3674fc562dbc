"""What `run` has asked for in this life of an instance: the core's small parts.

Plain data, held by `replay.Execution`; nothing here decides.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .journal import CANCEL, CHILD, DO, SLEEP, START, TIMER, UNDO, WAIT, Record

if TYPE_CHECKING:
    from .body_call import BodyCall

current_body: contextvars.ContextVar[str] = contextvars.ContextVar("toque_step_body")
"""Public name of the step whose body runs."""


class Claim:
    """A record that `run` has asked for in this life of the instance."""

    __slots__ = ("body", "context", "decode", "future", "record")

    def __init__(self, record: Record, future: asyncio.Future[Any] | None = None) -> None:
        self.record = record
        self.future: asyncio.Future[Any] = cast(Any, future)
        """What `run` waits for; a rollback has none."""
        self.decode: Callable[[Record], Any] | None = None
        self.body: BodyCall | None = None
        self.context: contextvars.Context | None = None


class Deadline:
    """A claim's whole-step deadline, among the things that fall due."""

    __slots__ = ("claim",)

    def __init__(self, claim: Claim) -> None:
        self.claim = claim


def shown(record: Record) -> str:
    """A record in messages."""
    what = {
        DO: "step",
        SLEEP: "sleep",
        WAIT: "wait",
        TIMER: "timer",
        UNDO: "rollback",
        CANCEL: "cancel",
        START: "start of child",
        CHILD: "wait for child",
    }[record.kind]
    return f"{what} {record.public_name!r} (record {record.ordinal})"
