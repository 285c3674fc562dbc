"""What the engine knows of an instance that is watched, as it is told: see `watched`.

Pure: views of the engine in, values out, as in `shapes`.
"""

from __future__ import annotations

import msgspec

from ..engines import views
from .shapes import iso
from .watched import (
    Buffered,
    ChildRef,
    InstanceEvent,
    InstanceEvents,
    QueueSlot,
    Reason,
    Waiting,
    WatchError,
)
from .watching import Slot


def event_shape(event: views.InstanceEvent, instance_id: str) -> InstanceEvent:
    """An event as JSON."""
    return InstanceEvent(
        event.no,
        instance_id,
        event.type,
        event.at_ms,
        event.step,
        event.attempt,
        event.retry_delay_ms,
        event.duration_ms,
        event.event_type,
        None if event.error is None else WatchError(event.error.name, event.error.message),
        None if event.output is None else msgspec.Raw(event.output),
        event.output_cut,
    )


def page_shape(page: views.EventPage, instance_id: str) -> InstanceEvents:
    """A page of events as JSON."""
    events = [event_shape(event, instance_id) for event in page.events]
    return InstanceEvents(events, page.cursor, page.ended)


def waiting_shape(instance_id: str, view: views.WaitingView, slot: Slot | None) -> Waiting:
    """Why an instance waits, as JSON."""
    place = None if slot is None else slot.place
    return Waiting(
        instance_id,
        view.status,
        iso(view.since_ms),
        [_reason(reason) for reason in view.reasons],
        view.more,
        None
        if slot is None or place is None
        else QueueSlot(
            place.souschef,
            place.state,
            place.lane,
            place.position,
            place.queued,
            place.holding,
            place.target,
            slot.limited_by,
        ),
        [Buffered(b.type, b.count, iso(b.oldest_ms), b.awaited) for b in view.buffered],
        view.in_memory,
        view.version_id,
        view.code_changed,
    )


def _reason(reason: views.WaitReason) -> Reason:
    error = reason.error
    return Reason(
        reason.kind,
        reason.name,
        None if reason.since_ms is None else iso(reason.since_ms),
        None if reason.due_ms is None else iso(reason.due_ms),
        reason.event_type,
        reason.attempt,
        None if error is None else WatchError(error.name, error.message),
        None if reason.child is None else ChildRef(reason.child.workflow, reason.child.id),
    )
