"""What is told of an instance that is watched: its events, and why it waits.

One set of values for both ends: the server writes them as JSON, the client reads them back.
Fields that a newer server adds are ignored.
"""

from __future__ import annotations

from typing import Any

import msgspec


class WatchError(msgspec.Struct, frozen=True):
    """Why something failed."""

    name: str
    message: str


class InstanceEvent(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Something that happened to an instance; what does not apply is left out of the JSON.

    Attributes:
        event_id: its number; grows, never changes; the cursor past it.
        type: `workflow_*`, `step_*`, `attempt_*`, `sleep_*`, `wait_*`, `child_*` or `rollback_*`.
        timestamp: milliseconds since 1970.
        step_name: of all but `workflow_*`.
        attempt, retry_delay_ms: of attempts; None after the last failure.
        duration_ms: of sleeps.
        event_type: of waits.
        error: why it failed.
        output: of what completed; `output_cut`: too large to be told here.
    """

    event_id: int
    instance_id: str
    type: str
    timestamp: int
    step_name: str | None = None
    attempt: int | None = None
    retry_delay_ms: int | None = None
    duration_ms: int | None = None
    event_type: str | None = None
    error: WatchError | None = None
    output: Any = None
    output_cut: bool = False


class InstanceEvents(msgspec.Struct, frozen=True):
    """A page of events; `ended`: the instance has ended and there are no more."""

    events: list[InstanceEvent]
    cursor: int
    ended: bool


class ChildRef(msgspec.Struct, frozen=True):
    """A child: the name of its workflow, and its id."""

    workflow: str
    id: str


class Reason(msgspec.Struct, frozen=True):
    """Something an instance waits for, or does.

    Attributes:
        kind: `slot` (it is queued), `pause`, `step` (its body runs), `rollback` (what undoes
            a step runs), `task` (its body runs as a Ray task, or waits for its resources), `retry`,
            `sleep`, `event`, `startChild` (a child is made, or refused for now), `child` (one has
            not ended), `timer` (asyncio's), `worker` (the process it is to run in) or `code` (which
            can't be loaded).
        name: the step's public name.
        since, due: ISO times; `due` of a paused instance as if it were resumed now.
        event_type: of `event`.
        attempt: of `step` and `task` the one that runs, of `retry` the next.
        error: of `retry` and `startChild` the last failure, of `code` why; of `task` and `worker`
            what they need.
        child: of `startChild` and `child`, which.
    """

    kind: str
    name: str | None
    since: str | None
    due: str | None
    event_type: str | None
    attempt: int | None
    error: WatchError | None
    child: ChildRef | None = None


class Buffered(msgspec.Struct, frozen=True):
    """Events of a type that were not taken yet; `awaited`: a wait asks for them."""

    type: str
    count: int
    oldest: str
    awaited: bool


class QueueSlot(msgspec.Struct, frozen=True):
    """Where a queued instance stands.

    Attributes:
        position: 1 for who is next in its lane of this SousChef; None: it is far from that.
        limited_by: `account` or `workflow`.
    """

    souschef: str
    state: str
    lane: str
    position: int | None
    queued: int
    holding: int
    target: int
    limited_by: str


class Waiting(msgspec.Struct, frozen=True):
    """Why an instance does not go on.

    Attributes:
        reasons: what it waits for; `more` are left out.
        slot: of a queued one.
        buffered: events that have come and were not taken.
    """

    id: str
    status: str
    since: str
    reasons: list[Reason]
    more: int
    slot: QueueSlot | None
    buffered: list[Buffered]
    in_memory: bool
    version_id: str
    code_changed: bool


def waiting_lines(waiting: Waiting) -> list[str]:
    """Why an instance waits, a line each."""
    lines = [f"{waiting.id} is {waiting.status} since {waiting.since}"]
    if waiting.slot is not None:
        slot = waiting.slot
        place = "far back" if slot.position is None else f"number {slot.position}"
        lines.append(
            f"  {slot.state}, {place} of the {slot.lane or 'other'} ones at SousChef "
            f"{slot.souschef}, which uses {slot.holding} of {slot.target} slots; "
            f"the {slot.limited_by}'s limit holds it back"
        )
    for reason in waiting.reasons:
        words = [f"  {reason.kind}", reason.name or "", reason.event_type or ""]
        if reason.child is not None:
            words.append(f"{reason.child.workflow} {reason.child.id}")
        words += [f"attempt {reason.attempt}" if reason.attempt else ""]
        words += [f"since {reason.since}" if reason.since else ""]
        words += [f"until {reason.due}" if reason.due else ""]
        if reason.error is not None:
            words.append(f"({reason.error.name}: {reason.error.message})")
        lines.append(" ".join(word for word in words if word))
    if waiting.more:
        lines.append(f"  and {waiting.more} more")
    for events in waiting.buffered:
        asked = "a wait asks for them" if events.awaited else "nobody asks for them"
        lines.append(f"  {events.count} events {events.type} since {events.oldest}: {asked}")
    if waiting.code_changed:
        lines.append("  its code has changed since it began")
    return lines
