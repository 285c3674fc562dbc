"""Statuses of an instance and the one table of their transitions.

A move that the table does not hold raises `InvalidTransition` and changes nothing. Nothing else
in the engine compares statuses to decide whether an operation is allowed.
"""

from __future__ import annotations

from typing import Final, Literal

from ..runtime.errors import InvalidTransition
from .ports import SlotState

Status = Literal["queued", "running", "waiting", "complete", "errored", "terminated"]
Event = Literal["grant", "park", "wake", "complete", "fail", "terminate"]

TRANSITIONS: Final[dict[tuple[Status, Event], Status]] = {
    ("queued", "grant"): "running",
    ("queued", "terminate"): "terminated",
    ("running", "park"): "waiting",
    ("running", "complete"): "complete",
    ("running", "fail"): "errored",
    ("running", "terminate"): "terminated",
    ("waiting", "wake"): "queued",
    ("waiting", "terminate"): "terminated",
}
"""(status, event) -> status. What is not here is not allowed."""

STATUSES: Final[frozenset[str]] = frozenset(
    {status for status, _ in TRANSITIONS} | set(TRANSITIONS.values())
)
FINISHED: Final[frozenset[str]] = frozenset({"complete", "errored", "terminated"})
"""Statuses that nothing leaves."""
HOLDS_SLOT: Final[frozenset[str]] = frozenset({"running"})
"""Statuses in which user code may run."""

SLOT_STATES: Final[dict[Status, SlotState]] = {
    "queued": "queued",
    "running": "running",
    "waiting": "waiting",
    "complete": "ended",
    "errored": "ended",
    "terminated": "ended",
}
"""What the SousChef is told of a status."""


def move(status: Status, event: Event) -> Status:
    """The status after an event.

    Raises:
        InvalidTransition: the table does not allow it.
    """
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        allowed = sorted(other for known, other in TRANSITIONS if known == status)
        raise InvalidTransition(
            f"an instance that is {status} can't take {event!r}; "
            + (f"it can take {', '.join(allowed)}." if allowed else "it has ended."),
            {"status": status, "event": event},
        ) from None
