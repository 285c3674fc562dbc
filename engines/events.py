"""Events as `run` gets them: one, or one after the other.

Each is given once. Those that no wait took stay with the instance, for its next run too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..runtime.codec import NULL, decode_json, decode_json_as
from ..runtime.limits import SLEEP_MAX_MS
from .failures import EventTimeout
from .journal import Record

if TYPE_CHECKING:
    from .step import WorkflowStep

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class ReceivedEvent(Generic[P]):
    """What `step.wait_for_event` gives.

    Attributes:
        payload: the event's decoded payload, of the wait's `payload_type`.
        timestamp: when it was sent.
        type: its type.
    """

    payload: P
    timestamp: datetime
    type: str


def received(record: Record, payload_type: Any = Any) -> ReceivedEvent[Any]:
    """What a wait that is over gives to `run`."""
    raw = record.result or NULL
    return ReceivedEvent(
        decode_json(raw) if payload_type is Any else decode_json_as(raw, payload_type),
        datetime.fromtimestamp(record.event_at_ms / 1_000, UTC),
        record.event_type,
    )


class EventIterator(Generic[P]):
    """What `step.events` gives; see there. It may be used again after its loop was left."""

    __slots__ = ("_args", "_left", "_name", "_step", "_timeout_ms")

    def __init__(
        self,
        step: WorkflowStep,
        name: str,
        event_type: str,
        timeout_ms: int,
        limit: int | None,
        decode: Callable[[Record], ReceivedEvent[Any]],
    ) -> None:
        self._step = step
        self._name = name
        self._timeout_ms = timeout_ms
        self._left = limit
        self._args = name, event_type, timeout_ms or SLEEP_MAX_MS, decode

    def __aiter__(self) -> EventIterator[P]:
        return self

    async def __anext__(self) -> ReceivedEvent[P]:
        if self._left is not None:
            if not self._left:
                raise StopAsyncIteration
            self._left -= 1
        while True:
            try:
                return await self._step._wait(*self._args)
            except EventTimeout:
                if self._timeout_ms:
                    self._left = 0
                    raise StopAsyncIteration from None
