"""An instance's history as events: what happened, in order, each with a number that never changes.

Nothing is written for this alone. Each transition of a record (it began, an attempt began or
ended, it is over) and each change of status gets the instance's next number when its row is
written, and the number stands in that row. So history is read off the rows whenever somebody
asks, numbers grow with commits, and a cursor (the last number seen) stays valid over restarts of
the shard and of the instance. Numbers may have gaps.

Of a step with more than ATTEMPTS_SHOWN_MAX attempts history holds the newest; who subscribed in
time has seen the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from ..runtime.errors import InvalidArgument
from ..runtime.guarded import shown
from ..runtime.limits import (
    EVENT_OUTPUT_BYTES_MAX,
    EVENTS_IN_MEMORY_MAX,
    EVENTS_PAGE_BYTES_MAX,
)
from .failures import RecordedError
from .journal import (
    CANCELLED,
    CHILD,
    DO,
    DONE,
    HIDDEN,
    PENDING,
    SLEEP,
    START,
    UNDO,
    WAIT,
    Attempt,
    Instance,
    Record,
    StatusNote,
)
from .present import shown_output
from .views import ErrorView, InstanceEvent

_STATUS_TYPES: Final = {
    "queued": "workflow_queued",
    "running": "workflow_running",
    "waiting": "workflow_waiting",
    "paused": "workflow_paused",
    "waitingForPause": "workflow_waiting_for_pause",
    "rollingBack": "rollback_started",
    "rollback complete": "rollback_completed",
    "rollback failed": "rollback_errored",
    "complete": "workflow_completed",
    "errored": "workflow_errored",
    "terminated": "workflow_terminated",
}
_STARTED = "workflow_started"
_BEGAN: Final = {
    DO: "step_started",
    SLEEP: "sleep_started",
    WAIT: "wait_started",
    START: "child_start_started",
    CHILD: "child_wait_started",
    UNDO: "rollback_step_started",
}
_DONE: Final = {
    DO: "step_completed",
    SLEEP: "sleep_completed",
    WAIT: "wait_completed",
    START: "child_start_completed",
    CHILD: "child_wait_completed",
    UNDO: "rollback_step_completed",
}
_FAILED: Final = {
    DO: "step_errored",
    SLEEP: "sleep_errored",
    WAIT: "wait_timed_out",
    START: "child_start_errored",
    CHILD: "child_wait_errored",
    UNDO: "rollback_step_errored",
}
_CANCELLED: Final = {
    DO: "step_cancelled",
    SLEEP: "sleep_cancelled",
    WAIT: "wait_cancelled",
    START: "child_start_cancelled",
    CHILD: "child_wait_cancelled",
}
_ATTEMPT_BEGAN, _ATTEMPT_DONE, _ATTEMPT_FAILED = (
    "attempt_started",
    "attempt_completed",
    "attempt_errored",
)
EVENT_TYPES: Final[frozenset[str]] = frozenset(
    {
        *_STATUS_TYPES.values(),
        _STARTED,
        *_BEGAN.values(),
        *_DONE.values(),
        *_CANCELLED.values(),
        "step_errored",
        "wait_timed_out",
        "child_start_errored",
        "child_wait_errored",
        "rollback_step_errored",
        *(f"rollback_{what}" for what in (_ATTEMPT_BEGAN, _ATTEMPT_DONE, _ATTEMPT_FAILED)),
        _ATTEMPT_BEGAN,
        _ATTEMPT_DONE,
        _ATTEMPT_FAILED,
    }
)
"""The vocabulary: Cloudflare's, and `*_cancelled` for what `run` gave up."""

Entry = tuple[int, str, "Record | StatusNote", "Attempt | None"]
"""Number, type, and where the rest stands."""


def check_types(types: Iterable[str]) -> frozenset[str]:
    """The types to filter by; none: all.

    Raises:
        InvalidArgument: a type that there is not.
    """
    wanted = frozenset(types)
    unknown = sorted(wanted - EVENT_TYPES)
    if unknown:
        raise InvalidArgument(
            f"there are no events of type {shown(unknown[0])}; the types are "
            f"{', '.join(sorted(EVENT_TYPES))}."
        )
    return wanted


# --- numbering ------------------------------------------------------------------------------


def number(record: Record, last: int) -> int:
    """Number what has happened to a record since it was written; gives the last number used.

    Called once per record and write, so numbers follow commits and, within one, the order in
    which records changed first.
    """
    if record.kind in HIDDEN:
        return last
    if not record.began_no:
        record.began_no = last = last + 1
    attempts = record.attempts
    for attempt in attempts[-2:]:  # at most one ends and one begins between two writes
        if not attempt.began_no:
            attempt.began_no = last = last + 1
        if attempt.ended_ms is not None and not attempt.ended_no:
            if record.state == PENDING and not record.due_ms:
                break  # a delay function is asked first; the record is written again then
            attempt.ended_no = last = last + 1
            if attempt.error is not None and not record.is_over:
                again_ms = record.due_ms if record.state == PENDING else attempts[-1].started_ms
                attempt.retry_ms = max(0, again_ms - attempt.ended_ms)
    if record.is_over and not record.ended_no:
        record.ended_no = last = last + 1
    return last


def take_numbers(record: Record, written: Record) -> None:
    """Number what was numbered when an earlier state of the record was written."""
    record.began_no = written.began_no
    known = {attempt.number: attempt for attempt in written.attempts}
    for attempt in record.attempts:
        if (before := known.get(attempt.number)) is not None:
            attempt.began_no, attempt.ended_no = before.began_no, before.ended_no
            attempt.retry_ms = before.retry_ms


def last_number(records: Iterable[Record]) -> int:
    """The greatest number in records."""
    last = 0
    for record in records:
        last = max(last, record.began_no, record.ended_no)
        if record.attempts:
            attempt = record.attempts[-1]
            last = max(last, attempt.began_no, attempt.ended_no)
    return last


# --- history --------------------------------------------------------------------------------


def entries_of(record: Record, after: int = 0) -> Iterator[Entry]:
    """What has happened to a record, past a number."""
    kind = record.kind
    if kind in HIDDEN:
        return
    if record.began_no > after:
        yield record.began_no, _BEGAN.get(kind, "step_started"), record, None
    undo = "rollback_" if kind == UNDO else ""
    for attempt in record.attempts:
        if attempt.began_no > after:
            yield attempt.began_no, undo + _ATTEMPT_BEGAN, record, attempt
        if attempt.ended_no > after:
            what = undo + (_ATTEMPT_DONE if attempt.error is None else _ATTEMPT_FAILED)
            yield attempt.ended_no, what, record, attempt
    if record.ended_no > after:
        by_kind = {DONE: _DONE, CANCELLED: _CANCELLED}.get(record.state, _FAILED)
        yield record.ended_no, by_kind.get(kind, "step_completed"), record, None


def entry_of(note: StatusNote, is_first_run: bool) -> Entry:
    """A change of status."""
    what = _STARTED if is_first_run else _STATUS_TYPES.get(note.status, "workflow_running")
    return note.no, what, note, None


class EventLog:
    """The newest part of an instance's history, while somebody subscribes to it.

    It is begun with the number of the last event so far, given all that happened up to then, in
    parts, and then completed; what happens meanwhile is added as ever.

    Attributes:
        start: all events with a greater number are here.
        is_complete: it may be asked for pages.
    """

    __slots__ = ("_entries", "_last", "is_complete", "start")

    def __init__(self, notes: Iterable[StatusNote], last: int) -> None:
        self.start = 0
        self.is_complete = False
        self._last = last
        self._entries: list[Entry] = []
        has_run = False
        for note in notes:
            runs = note.status == "running"
            self._entries.append(entry_of(note, runs and not has_run))
            has_run = has_run or runs

    def read(self, records: Iterable[Record]) -> None:
        """What happened to some records up to the beginning."""
        last = self._last
        for record in records:
            self._entries += [entry for entry in entries_of(record) if entry[0] <= last]

    def complete(self) -> None:
        """All has been read."""
        self._entries.sort(key=_number_of)
        self.is_complete = True

    def add(self, entries: Iterable[Entry]) -> None:
        """What has just been numbered."""
        self._entries += entries
        if self.is_complete and len(self._entries) > 2 * EVENTS_IN_MEMORY_MAX:
            self.trim(self._entries[-1][0])

    def trim(self, seen: int) -> None:
        """Forget what has been seen, but for the newest."""
        entries = self._entries
        drop = min(len(entries) - EVENTS_IN_MEMORY_MAX, bisect_right(entries, seen, key=_number_of))
        if drop > 0:
            self.start = entries[drop - 1][0]
            del entries[:drop]

    def page(
        self,
        instance: Instance,
        output: bytes | None,
        cursor: int,
        wanted: frozenset[str],
        limit: int,
    ) -> tuple[list[InstanceEvent], int, bool]:
        """Events past the cursor, the cursor past them, and whether that was all."""
        entries = self._entries
        at = bisect_right(entries, cursor, key=_number_of)
        found: list[InstanceEvent] = []
        size = 0
        while at < len(entries) and len(found) < limit and size < EVENTS_PAGE_BYTES_MAX:
            entry = entries[at]
            if not wanted or entry[1] in wanted:
                event = _shown(entry, instance, output)
                size += len(event.output or b"") + (len(event.error.message) if event.error else 0)
                found.append(event)
            cursor = entry[0]
            at += 1
        return found, cursor, at == len(entries)


def _number_of(entry: Entry) -> int:
    return entry[0]


def _shown(entry: Entry, instance: Instance, output: bytes | None) -> InstanceEvent:
    no, what, source, attempt = entry
    if isinstance(source, StatusNote):
        is_complete = what == "workflow_completed"
        small, is_cut = _bounded(output if is_complete else None)
        ended = source.status in ("errored", "terminated")
        error = _error(instance.error if ended else None)
        return InstanceEvent(no, what, source.at_ms, error=error, output=small, output_cut=is_cut)
    record = source
    began = no == record.began_no
    if attempt is not None:
        is_start = no == attempt.began_no
        at_ms = attempt.started_ms if is_start else attempt.ended_ms or attempt.started_ms
        return InstanceEvent(
            no,
            what,
            at_ms,
            step=record.public_name,
            attempt=attempt.number,
            retry_delay_ms=None if is_start else attempt.retry_ms,
            error=None if is_start else _error(attempt.error),
        )
    has_output = not began and record.state == DONE and record.kind != SLEEP
    small, is_cut = _bounded(shown_output(record) if has_output else None)
    return InstanceEvent(
        no,
        what,
        record.started_ms if began else record.ended_ms or record.started_ms,
        step=record.public_name,
        duration_ms=record.due_ms - record.started_ms if record.kind == SLEEP else None,
        event_type=(record.event_type or None) if record.kind == WAIT else None,
        error=None if began else _error(record.error),
        output=small,
        output_cut=is_cut,
    )


def _bounded(output: bytes | None) -> tuple[bytes | None, bool]:
    if output is None or len(output) <= EVENT_OUTPUT_BYTES_MAX:
        return output, False
    return None, True


def _error(error: RecordedError | None) -> ErrorView | None:
    return None if error is None else ErrorView(error.name, error.message, error.data, error.at)
