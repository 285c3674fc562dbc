"""The JSON of what is watched: events, and why an instance waits.

Pure: views of the engine in, shapes out, as in `shapes`.
"""

from __future__ import annotations

import msgspec

from ..engines.views import EventPage, InstanceEvent, WaitingView, WaitReason
from .shapes import ErrorShape, iso
from .watching import Slot


class EventShape(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An event of an instance; what does not apply is left out. `timestamp` in milliseconds."""

    event_id: int
    instance_id: str
    type: str
    timestamp: int
    step_name: str | None = None
    attempt: int | None = None
    retry_delay_ms: int | None = None
    duration_ms: int | None = None
    event_type: str | None = None
    error: ErrorShape | None = None
    output: msgspec.Raw | None = None
    output_cut: bool = False


class EventPageShape(msgspec.Struct, frozen=True):
    """A page of events; `ended`: the instance has ended and there are no more."""

    events: list[EventShape]
    cursor: int
    ended: bool


class ReasonShape(msgspec.Struct, frozen=True):
    """Something an instance waits for, or does; see `docs/semantics.md`."""

    kind: str
    name: str | None
    since: str | None
    due: str | None
    event_type: str | None
    attempt: int | None
    error: ErrorShape | None


class BufferedShape(msgspec.Struct, frozen=True):
    """Events of a type that wait to be taken; `awaited`: a wait asks for them."""

    type: str
    count: int
    oldest: str
    awaited: bool


class SlotShape(msgspec.Struct, frozen=True):
    """Where a queued instance stands.

    `position` is 1 for who is next in its lane of this SousChef; null: it is far from that.
    """

    souschef: str
    state: str
    lane: str
    position: int | None
    queued: int
    holding: int
    target: int
    limited_by: str


class WaitingShape(msgspec.Struct, frozen=True):
    """Why an instance does not go on."""

    id: str
    status: str
    since: str
    reasons: list[ReasonShape]
    more: int
    slot: SlotShape | None
    buffered: list[BufferedShape]
    in_memory: bool
    version_id: str
    code_changed: bool


def event_shape(event: InstanceEvent, instance_id: str) -> EventShape:
    """An event as JSON."""
    return EventShape(
        event.no,
        instance_id,
        event.type,
        event.at_ms,
        event.step,
        event.attempt,
        event.retry_delay_ms,
        event.duration_ms,
        event.event_type,
        None if event.error is None else ErrorShape(event.error.name, event.error.message),
        None if event.output is None else msgspec.Raw(event.output),
        event.output_cut,
    )


def page_shape(page: EventPage, instance_id: str) -> EventPageShape:
    """A page of events as JSON."""
    events = [event_shape(event, instance_id) for event in page.events]
    return EventPageShape(events, page.cursor, page.ended)


def waiting_shape(instance_id: str, view: WaitingView, slot: Slot | None) -> WaitingShape:
    """Why an instance waits, as JSON."""
    place = None if slot is None else slot.place
    return WaitingShape(
        instance_id,
        view.status,
        iso(view.since_ms),
        [_reason(reason) for reason in view.reasons],
        view.more,
        None
        if slot is None or place is None
        else SlotShape(
            place.souschef,
            place.state,
            place.lane,
            place.position,
            place.queued,
            place.holding,
            place.target,
            slot.limited_by,
        ),
        [BufferedShape(b.type, b.count, iso(b.oldest_ms), b.awaited) for b in view.buffered],
        view.in_memory,
        view.version_id,
        view.code_changed,
    )


def _reason(reason: WaitReason) -> ReasonShape:
    error = reason.error
    return ReasonShape(
        reason.kind,
        reason.name,
        None if reason.since_ms is None else iso(reason.since_ms),
        None if reason.due_ms is None else iso(reason.due_ms),
        reason.event_type,
        reason.attempt,
        None if error is None else ErrorShape(error.name, error.message),
    )
