"""Statuses of an instance and the one table of their transitions.

A move that the table does not hold raises `InvalidTransition` and changes nothing. Nothing else
in the engine compares statuses to decide whether an operation is allowed.

What holds a slot may run user code: `running`; `waitingForPause`, until the bodies in flight have
ended; `rollingBack`. A cancelled instance is `terminated`, with the error name `Cancelled`.
"""

from __future__ import annotations

from typing import Final, Literal

from ..runtime.errors import InvalidTransition
from .ports import SlotState

Status = Literal[
    "queued",
    "running",
    "waiting",
    "paused",
    "waitingForPause",
    "rollingBack",
    "complete",
    "errored",
    "terminated",
]
Event = Literal[
    "grant",
    "park",
    "wake",
    "complete",
    "fail",
    "pause",
    "quiesce",
    "resume",
    "roll_back",
    "cancel",
    "terminate",
    "restart",
    "continue",
]

TRANSITIONS: Final[dict[tuple[Status, Event], Status]] = {
    ("queued", "grant"): "running",
    ("queued", "pause"): "paused",
    ("queued", "resume"): "queued",  # no effect, here and where it is the same
    ("queued", "roll_back"): "queued",  # it needs a slot first
    ("queued", "cancel"): "queued",
    ("queued", "terminate"): "terminated",
    ("queued", "restart"): "queued",
    ("running", "park"): "waiting",
    ("running", "complete"): "complete",
    ("running", "fail"): "errored",
    ("running", "pause"): "waitingForPause",
    ("running", "resume"): "running",
    ("running", "roll_back"): "rollingBack",
    ("running", "cancel"): "running",
    ("running", "terminate"): "terminated",
    ("running", "restart"): "queued",
    ("running", "continue"): "queued",
    ("waiting", "wake"): "queued",
    ("waiting", "pause"): "paused",
    ("waiting", "resume"): "waiting",
    ("waiting", "roll_back"): "queued",
    ("waiting", "cancel"): "queued",
    ("waiting", "terminate"): "terminated",
    ("waiting", "restart"): "queued",
    ("paused", "resume"): "waiting",
    ("paused", "roll_back"): "queued",
    ("paused", "cancel"): "queued",
    ("paused", "terminate"): "terminated",
    ("paused", "restart"): "queued",
    ("waitingForPause", "quiesce"): "paused",
    ("waitingForPause", "complete"): "complete",
    ("waitingForPause", "fail"): "errored",
    ("waitingForPause", "resume"): "running",
    ("waitingForPause", "roll_back"): "rollingBack",
    ("waitingForPause", "cancel"): "running",
    ("waitingForPause", "terminate"): "terminated",
    ("waitingForPause", "restart"): "queued",
    ("waitingForPause", "continue"): "paused",
    ("rollingBack", "resume"): "rollingBack",
    ("rollingBack", "roll_back"): "rollingBack",  # it does so already, and ends as it would
    ("rollingBack", "fail"): "errored",
    ("rollingBack", "terminate"): "terminated",
    ("rollingBack", "restart"): "queued",
    ("complete", "restart"): "queued",
    ("errored", "restart"): "queued",
    ("terminated", "restart"): "queued",
}
"""(status, event) -> status. What is not here is not allowed.

A resumed instance that has come due moves on from `waiting` by `wake`, in the same event.
"""

STATUSES: Final[frozenset[str]] = frozenset(
    {status for status, _ in TRANSITIONS} | set(TRANSITIONS.values())
)
FINISHED: Final[frozenset[str]] = frozenset({"complete", "errored", "terminated"})
"""Statuses that only a restart leaves."""
HOLDS_SLOT: Final[frozenset[str]] = frozenset({"running", "waitingForPause", "rollingBack"})
"""Statuses in which user code may run."""

SLOT_STATES: Final[dict[Status, SlotState]] = {
    "queued": "queued",
    "running": "running",
    "waiting": "waiting",
    "paused": "paused",
    "waitingForPause": "running",
    "rollingBack": "running",
    "complete": "ended",
    "errored": "ended",
    "terminated": "ended",
}
"""What the SousChef is told of a status."""


_ASKED: Final[dict[str, tuple[str, str]]] = {
    "pause": ("pause", "paused"),
    "resume": ("resume", "resumed"),
    "cancel": ("cancel", "cancelled"),
    "terminate": ("terminate", "terminated"),
    "roll_back": ("terminate", "terminated with a rollback"),
    "restart": ("restart", "restarted"),
}
"""Events that people ask for: the operation's name, and what is done to the instance."""


def move(status: Status, event: Event) -> Status:
    """The status after an event.

    Raises:
        InvalidTransition: the table does not allow it.
    """
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise _refusal(status, event) from None


def _refusal(status: Status, event: Event) -> InvalidTransition:
    operation, done = _ASKED.get(event, (event, f"moved on by {event!r}"))
    possible = [
        what
        for what in ("pause", "resume", "cancel", "terminate", "restart")
        if (status, what) in TRANSITIONS
    ]
    state = f"has ended ({status})" if status in FINISHED else f"is {status}"
    return InvalidTransition(
        f"the instance {state}, so it can't be {done}. What can be done now: "
        f"{', '.join([*possible, 'delete'])}.",
        {"status": status, "operation": operation},
    )
