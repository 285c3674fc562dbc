"""The journal: what is recorded of an instance, as rows, and how rows become state.

A change is made by writing a record and then applying it (`Journal.apply`); recovery applies
the same records, read back. A record is a snapshot of one step (or fired timer); it is rewritten
as the step proceeds, and final once it has ended. `order` is the place of its outcome among all
outcomes that `run` was given, which is what replay repeats.

Formats are versioned by their first field. Fields are only ever added, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from ..runtime.codec import pack, unpack
from ..runtime.guarded import bounded
from ..runtime.limits import (
    ATTEMPT_ERROR_CHARS_MAX,
    ATTEMPT_ERROR_PLACES_MAX,
    ATTEMPTS_SHOWN_MAX,
    RETENTION_DEFAULT_MS,
)
from ..runtime.tables import Index, Query, Row, Table
from .config import DEFAULTS, Resolved
from .failures import RecordedError
from .status import HOLDS_SLOT, Status
from .views import Parent

FORMAT_VERSION = 1

INSTANCES = Table(
    "instances",
    (
        ("entity", "TEXT"),
        ("workflow_uuid", "TEXT"),
        ("created_ms", "INTEGER"),
        ("status", "TEXT"),
        ("active", "INTEGER"),
        ("started_ms", "INTEGER?"),
        ("ended_ms", "INTEGER?"),
        ("modified_ms", "INTEGER"),
        ("version_id", "TEXT"),
        ("source", "TEXT"),
        ("souschef", "INTEGER"),
        ("blob", "BLOB"),
    ),
    1,
    (
        Index("instances_by_creation", ("workflow_uuid", "created_ms", "entity")),
        Index("instances_active", ("active",), where="active = 1"),
        Index(
            "instances_by_status",
            ("workflow_uuid", "status", "created_ms", "entity"),
            where="status <> 'queued' AND status <> 'running'",  # see `pages`
        ),
    ),
)
STEPS = Table("steps", (("entity", "TEXT"), ("ordinal", "INTEGER"), ("blob", "BLOB")), 2)
PAYLOADS = Table("payloads", (("entity", "TEXT"), ("what", "TEXT"), ("body", "BLOB")), 2)
EVENTS = Table(
    "events",
    (
        ("entity", "TEXT"),
        ("seq", "INTEGER"),
        ("type", "TEXT"),
        ("at_ms", "INTEGER"),
        ("payload", "BLOB"),
    ),
    2,
)
NOTES = Table("status_notes", (("entity", "TEXT"), ("no", "INTEGER"), ("blob", "BLOB")), 2)
BLOBS = Table(
    "blobs",
    (("entity", "TEXT"), ("ordinal", "INTEGER"), ("sha256", "TEXT")),
    2,
    (Index("blobs_by_name", ("sha256",)),),
)
STREAM_NAMES = Query("names of all streams", "SELECT DISTINCT sha256 FROM blobs")
STREAM_NAMED = Query("whether a stream is named", "SELECT 1 FROM blobs WHERE sha256 = ? LIMIT 1")
CODECS = Table("codecs", (("account", "TEXT"), ("codec", "TEXT"), ("sample", "BLOB")), 2)
TOMBSTONES = Table("tombstones", (("entity", "TEXT"), ("blob", "BLOB")), 1)
REQUESTS = Table(
    "requests",
    (
        ("entity", "TEXT"),
        ("request_id", "TEXT"),
        ("seq", "INTEGER"),
        ("answer", "INTEGER"),
        ("content", "INTEGER"),
    ),
    2,
)

CHILDREN = Table("children", (("entity", "TEXT"), ("call", "TEXT"), ("blob", "BLOB")), 2)

# kinds of records
DO, SLEEP, WAIT, TIMER, UNDO, CANCEL = "do", "sleep", "wait", "timer", "undo", "cancel"
START, CHILD = "start", "child"
"""A child is made | its end is waited for."""
AWAITS: Final = frozenset({WAIT, CHILD})
"""Kinds that something sent to the instance ends."""
COUNTED: Final = frozenset({DO, WAIT, START})
"""Kinds that count as steps."""
OUTPUT_TYPES: Final = {"step": DO, "waitForEvent": WAIT, "startChild": START, "child": CHILD}
"""What has an output is called so from outside; the kind of its records."""
CHILD_END = "~"
"""Ends of children are buffered as events of this type with the name of the call after it; no
author's event has such a type."""
HIDDEN: Final = frozenset({TIMER, CANCEL})
"""Kinds that the API does not show."""
# states of records
RUNNING, PENDING, DONE, FAILED, CANCELLED = range(5)
"""An attempt is in flight | waits for its time or event | outcomes | `run` gave it up."""


class ChildCall(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What `run` asks of a child.

    Attributes:
        call: names the start: `run id.ordinal`. It is the request id of the child's create, too.
        workflow, id: the child's.
        on_end: see `views.Parent`.
        params: JSON; empty once the child is there.
        is_owned: of a wait: who gives it up lets the child go.
    """

    call: str
    workflow: str
    id: str
    on_end: str
    params: bytes = b""
    is_owned: bool = False


class ChildRow(msgspec.Struct, array_like=True, gc=False):
    """A child that may exist, and how it ended is not known to its parent.

    Attributes:
        ordinal: of the record that started it.
        key: of its Engine; empty while it is not known to exist.
        on_end: see `views.Parent`.
        is_let_go: `run` has given it up, or is over.
        is_made: its start has been answered.
        has_ended: it has, before that; the row goes then.
    """

    version: int
    ordinal: int
    key: str
    on_end: str
    is_let_go: bool = False
    is_made: bool = False
    has_ended: bool = False


class ChildEnd(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a child ended: a final status or `deleted`, with its output or error."""

    status: str
    output: bytes | None
    error: RecordedError | None


class StatusNote(msgspec.Struct, array_like=True, gc=False):
    """A change of status: its number among the instance's events, the new status, the time."""

    no: int
    status: str
    at_ms: int


class Pause(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A pause that is over: timers that were set when outcome `order` was the last moved by it.

    A timer that was set after `from_ms`, while bodies in flight were waited for, moved by less.
    """

    order: int
    from_ms: int
    length_ms: int

    def shift_of(self, set_ms: int) -> int:
        """By how much a timer moved that was set then."""
        return max(0, self.length_ms - max(0, set_ms - self.from_ms))


class Instance(msgspec.Struct, array_like=True, gc=False):
    """An instance, apart from its steps. Payloads over a size are in rows of their own.

    Attributes:
        wake_ms: when it means to go on; kept as it was while it is paused.
        pause_ms, quiesced_ms: when a pause was asked for; when the last body had ended.
        pauses: those that are over; what they did to timers that no record holds.
        retention: how long it is kept after success, and after another end.
        expires_ms: when it is to be deleted.
        lineage_run: the run that the oldest records are of, if it was restarted from a step.
        forked: such a restart has just been made: results of steps that were under way count.
        cancel_ms: when its cancel was asked for.
        has_undo: there are steps with a rollback.
        undo: the rollback that is under way, wanted or over.
        sweep_from: records from that ordinal on are still to be deleted; 0: none.
        continued: how many runs ended by `continue_as_new` before this one.
        request_content: stands for what the create of `request_id` said.
        steps_max: how many steps it may make; 0: as many as its code says.
        ended_by: what asked for its termination or cancel, as `source` of a create.
        parent: the instance that started it, if one did.
        is_detached: that one has been told how it ended; what it does now, its parent's end too,
            does not matter to the other any more.
        children: how many rows of children it has.
    """

    version: int
    run_id: str
    workflow: str
    class_name: str
    version_id: str
    code_hash: str
    request_id: str
    source: str
    souschef: int
    created_ms: int
    status: Status
    modified_ms: int
    queued_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    turn: int = 1
    report_seq: int = 1
    awakened: bool = False
    wake_ms: int = 0
    awaited: tuple[str, ...] = ()
    event_seq: int = 0
    events_buffered: int = 0
    request_seq: int = 0
    step_count: int = 0
    code_changed: bool = False
    params: bytes | None = None
    output: bytes | None = None
    error: RecordedError | None = None
    event_no: int = 0
    notes: list[StatusNote] = []
    pause_ms: int = 0
    quiesced_ms: int = 0
    pauses: tuple[Pause, ...] = ()
    is_apart: bool = False
    """Its code has blocked or ended the process it ran in: it gets a process of its own."""
    suspicion: int = 0
    deaths: int = 0
    """Processes that ended under it in a row, with nothing new recorded in between."""
    retention: tuple[int, int] = (RETENTION_DEFAULT_MS, RETENTION_DEFAULT_MS)
    expires_ms: int = 0
    lineage_run: str = ""
    forked: bool = False
    sweep_from: int = 0
    has_undo: bool = False
    cancel_ms: int = 0
    undo: Undoing | None = None
    continued: int = 0
    request_content: int = 0
    steps_max: int = 0
    ended_by: str = ""
    parent: Parent | None = None
    is_detached: bool = False
    children: int = 0

    def pause_so_far(self, now_ms: int) -> Pause | None:
        """The pause that is asked for, or under way, as if it ended now."""
        if self.status not in ("paused", "waitingForPause"):
            return None
        return Pause(0, self.pause_ms, max(0, now_ms - self.pause_ms))

    def wake_after_pause(self, now_ms: int, records: Iterable[Record]) -> int:
        """When it means to go on if its pause ends now: instants have not moved."""
        instants = [r.due_ms for r in records if r.is_instant and r.state == PENDING]
        return min([self.wake_ms + max(0, now_ms - self.quiesced_ms), *instants])

    def row(self, entity: str, workflow_uuid: str) -> Row:
        """As a row of `INSTANCES`."""
        return (
            entity,
            workflow_uuid,
            self.created_ms,
            self.status,
            1 if self.status in HOLDS_SLOT else 0,
            self.started_ms,
            self.ended_ms,
            self.modified_ms,
            self.version_id,
            self.source,
            self.souschef,
            pack(self),
        )

    @classmethod
    def from_row(cls, row: Row) -> Instance:
        """The instance that `row` made."""
        return unpack(row[-1], cls)


class Undoing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A rollback.

    Attributes:
        is_terminated: it was asked for, and the instance is `terminated` after it.
        outcome: `complete` or `failed`; empty before its end.
        error: why it failed.
    """

    is_terminated: bool
    outcome: str = ""
    error: RecordedError | None = None


class Tombstone(msgspec.Struct, array_like=True, gc=False):
    """What is left of a deleted instance until all have heard of it and nobody repeats requests.

    Attributes:
        run_id, report_seq, turn, souschef: of its last report, which says that it has ended;
            `NO_NUMBER`: it went to V1's entity, which has confirmed it.
        status: told with it: `deleted`, or empty if its end was told before.
        since_ms: a new instance of the id reports later times only.
        request_seq: of the last request id that is remembered.
        event_seq, event_no: where a new instance goes on numbering.
        expires_ms: when it is removed, if the report is confirmed.
        sweeping: records are still to be deleted.
    """

    version: int
    run_id: str
    report_seq: int
    turn: int
    souschef: int
    status: str
    since_ms: int
    request_seq: int
    event_seq: int
    event_no: int
    expires_ms: int
    sweeping: bool


class Attempt(msgspec.Struct, array_like=True, gc=False):
    """One attempt of a step; `ended_ms` is None while it runs, `error` None if it succeeded.

    `began_no` and `ended_no` number these transitions among the instance's events; `retry_ms` is
    how long after a failure the next attempt was to come.
    """

    number: int
    started_ms: int
    ended_ms: int | None = None
    error: RecordedError | None = None
    began_no: int = 0
    ended_no: int = 0
    retry_ms: int | None = None


class Record(msgspec.Struct, array_like=True):
    """A step, sleep, wait or fired timer.

    Attributes:
        ordinal: its place among the instance's records; part of the row's key.
        ident: lineage, kind, name and n-th use; what replay finds it by.
        name, count: the public name is `name-count`.
        order: when its outcome was given to `run`, among all outcomes; 0: not yet.
        due_ms: end of a sleep, deadline of a wait, time of the next attempt.
        attempt: number of the newest attempt; a result of another is refused.
        result: JSON, once done.
        error: why it failed; while a delay function is asked, what it is asked about.
        event_type, event_at_ms, event_seq: of a wait: the event's type, time and number.
        after: the newest `order` when it began.
        undo: settings of its rollback, if it has one.
        is_instant: `due_ms` was given as an instant, which no pause moves.
        began_no, ended_no: numbers of these transitions among the instance's events (`watch`).
        delay_ms: the newest wait that a delay function told; None: none so far.
        deadline_ms: when the whole step is out of time; 0: never.
        stream: SHA-256 of the result, if it is in a file; `result` then tells its name and length.
        child: of `START` and `CHILD`.
    """

    version: int
    ordinal: int
    kind: str
    ident: str
    name: str
    count: int
    state: int
    started_ms: int
    ended_ms: int | None = None
    order: int = 0
    due_ms: int = 0
    result: bytes | None = None
    error: RecordedError | None = None
    attempt: int = 0
    failures: int = 0
    interruptions: int = 0
    attempts: list[Attempt] = []
    config: Resolved = DEFAULTS
    event_type: str = ""
    event_at_ms: int = 0
    began_no: int = 0
    ended_no: int = 0
    delay_ms: int | None = None
    deadline_ms: int = 0
    stream: str = ""
    after: int = 0
    event_seq: int = 0
    undo: Resolved | None = None
    is_instant: bool = False
    child: ChildCall | None = None

    @property
    def public_name(self) -> str:
        """As the API shows it."""
        return f"{'rollback ' if self.kind == UNDO else ''}{self.name}-{self.count}"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state >= DONE

    def row(self, entity: str) -> Row:
        """As a row of `STEPS`."""
        return entity, self.ordinal, pack(self)

    def open_attempt(self, now_ms: int) -> None:
        """Count and note a new attempt."""
        self.attempt += 1
        self.state = RUNNING
        self.due_ms = 0
        self.error = None
        if len(self.attempts) >= ATTEMPTS_SHOWN_MAX:
            del self.attempts[0]
        self.attempts.append(Attempt(self.attempt, now_ms))

    def close_attempt(self, now_ms: int, error: RecordedError | None) -> None:
        """Note how the newest attempt ended."""
        newest = self.attempts[-1]
        newest.ended_ms = now_ms
        if error is not None:
            newest.error = RecordedError(
                error.kind,
                error.name,
                bounded(error.message, ATTEMPT_ERROR_CHARS_MAX),
                error.data if len(error.data) <= ATTEMPT_ERROR_CHARS_MAX else b"",
                error.at[-ATTEMPT_ERROR_PLACES_MAX:],
            )

    def shift(self, pause: Pause, *, in_flight: bool = False) -> bool:
        """Move its times by a pause. False: none moves.

        A body in flight has gone on meanwhile, so the deadline of its step has too.
        """
        is_moved = bool(self.deadline_ms) and not self.is_over and not in_flight
        if is_moved:
            self.deadline_ms += pause.shift_of(self._set_ms())
        due_ms = self.due_after(pause)
        is_moved = is_moved or due_ms != self.due_ms
        self.due_ms = due_ms
        return is_moved

    def due_after(self, pause: Pause) -> int:
        """What `due_ms` is after a pause."""
        if self.state != PENDING or not self.due_ms or self.is_instant:
            return self.due_ms
        return self.due_ms + pause.shift_of(self._set_ms())

    def _set_ms(self) -> int:
        """When it began to wait for its time: when it began, or its newest attempt ended."""
        if not self.attempts:
            return self.started_ms
        newest = self.attempts[-1]
        return newest.started_ms if newest.ended_ms is None else newest.ended_ms

    def end(self, now_ms: int, state: int) -> None:
        """It is over."""
        self.state = state
        self.ended_ms = now_ms
        self.due_ms = 0 if self.kind in (DO, UNDO) else self.due_ms


def record_from_row(row: Row) -> Record:
    """The record that `Record.row` made."""
    return unpack(row[-1], Record)


class Journal:
    """All records of an instance, indexed for replay. Rows come in; nothing is written here.

    Attributes:
        by_ident, records: the records, by identity and in order of their ordinals.
        last_order: the newest record's `order`.
        shown: how many of them the API shows (timers of asyncio are not shown).
    """

    def __init__(self) -> None:
        self.by_ident: dict[str, Record] = {}
        self.records: list[Record] = []
        self.last_order = 0
        self.shown = 0
        self._counts: dict[tuple[str, str], int] = {}

    @classmethod
    def of(cls, records: Iterable[Record]) -> Journal:
        """The journal of records read back."""
        journal = cls()
        for record in records:
            journal.apply(record)
        return journal

    def apply(self, record: Record) -> None:
        """Take a record that has just been written or read. Idempotent."""
        if record.ident not in self.by_ident:
            self.by_ident[record.ident] = record
            self.records.append(record)
            self.shown += record.kind not in HIDDEN
            key = record.kind, record.name
            if record.count > self._counts.get(key, 0):
                self._counts[key] = record.count
        if record.order > self.last_order:
            self.last_order = record.order

    def new(self, kind: str, ident: str, name: str, now_ms: int) -> Record:
        """A new record, not yet applied."""
        return Record(
            FORMAT_VERSION,
            len(self.records) + 1,
            kind,
            ident,
            name,
            self._counts.get((kind, name), 0) + 1,
            PENDING,
            now_ms,
            attempts=[],
            after=self.last_order,
        )

    def delivered(self) -> list[Record]:
        """Records whose outcome `run` has been given, in that order."""
        return sorted((r for r in self.records if r.order), key=lambda r: r.order)
