"""One instance's rows: gathered during an event, written together at its end.

Used by its Engine only. `flush` writes all or, if the store's open batch has no room, nothing: a
commit that held half a turn could not be replayed. Reads see what is gathered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from hashlib import blake2b
from typing import Any

from ..runtime.blobs import BlobCollector
from ..runtime.codec import NULL, pack, unpack
from ..runtime.entity import Context
from ..runtime.errors import RequestIdReused
from ..runtime.ids import EntityRef, split_engine_key
from ..runtime.limits import (
    INLINE_PAYLOAD_BYTES_MAX,
    REQUEST_IDS_KEPT_MAX,
    SCAN_ROWS_MAX,
    STATUS_NOTES_INLINE_MAX,
    WIPE_ROWS_MAX,
)
from ..runtime.outbox import Letter
from ..runtime.payload_codec import NO_CODECS, Codecs
from ..runtime.tables import Change, Key, Row, Table
from .journal import (
    BLOBS,
    CHILDREN,
    EVENTS,
    INSTANCES,
    NOTES,
    PAYLOADS,
    REQUESTS,
    STEPS,
    TOMBSTONES,
    ChildRow,
    Instance,
    Record,
    StatusNote,
    Tombstone,
    record_from_row,
)
from .status import HOLDS_SLOT
from .watch import EventLog, entries_of, entry_of, last_number, number, take_numbers

_SEALED = frozenset(table.name for table in (INSTANCES, STEPS, PAYLOADS, EVENTS))
"""Tables whose last column goes through the account's codec."""


class InstanceRows:
    """See the module's description.

    Args:
        ctx: the Engine's context.
        blobs: the shard's streams.
        codecs: what payloads go through on their way to the rows.
    """

    __slots__ = (
        "_blobs",
        "_ctx",
        "_event_no",
        "_gathered",
        "_has_last_number",
        "_key",
        "_letters",
        "_released",
        "_request_ids",
        "id",
        "log",
        "seal",
        "workflow_uuid",
    )

    def __init__(
        self,
        ctx: Context,
        blobs: BlobCollector | None = None,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        self._blobs = blobs
        self._released: list[str] = []
        self._ctx = ctx
        self._gathered: dict[tuple[str, Key], Change] = {}
        self._letters: list[Letter] = []
        self._key = ctx.ref.key
        account, self.workflow_uuid, self.id = split_engine_key(self._key)
        self.seal = codecs.seal(account)
        self._request_ids: deque[str] | None = None
        self._event_no = 0
        self._has_last_number = True
        self.log: EventLog | None = None

    def flush(self) -> None:
        """Write what was gathered.

        Raises:
            Overloaded: the open batch has no room; nothing was written, and all is forgotten.
        """
        gathered = self._gathered
        if self._letters:
            letters, self._letters, self._gathered = self._letters, [], {}
            self._ctx.write_all(gathered.values(), letters)
        elif gathered:
            self._gathered = {}
            self._ctx.write_all(gathered.values())
        else:
            return
        released, self._released = self._released, []
        if released and self._blobs is not None:
            self._ctx.when_durable(partial(self._blobs.release, released))

    def forget(self) -> None:
        """Drop what was gathered."""
        self._gathered.clear()
        self._letters.clear()
        self._released.clear()
        self._request_ids = None
        self.log = None

    def _put(self, table: Table, row: Row) -> None:
        if self.seal.writes and table.name in _SEALED:
            row = (*row[:-1], self.seal.close(row[-1]))
        key = row[: table.key_size]
        self._gathered[table.name, key] = table, key, row

    def _delete(self, table: Table, key: Key) -> None:
        self._gathered[table.name, key] = table, key, None

    def _get(self, table: Table, key: Key) -> Row | None:
        gathered = self._gathered.get((table.name, key))
        return self._opened(table, self._ctx.get(table, key) if gathered is None else gathered[2])

    def _opened(self, table: Table, row: Row | None) -> Row | None:
        if row is None or table.name not in _SEALED:
            return row
        return (*row[:-1], self.seal.open(row[-1]))

    def load(self) -> Instance | None:
        """The instance, if there is one."""
        row = self._get(INSTANCES, (self._key,))
        if row is None:
            self._event_no = 0
            return None
        instance = Instance.from_row(row)
        self._event_no = instance.event_no
        # while it runs, records are written without the instance's row
        self._has_last_number = instance.status not in HOLDS_SLOT
        return instance

    def save(self, instance: Instance) -> None:
        """Write the instance's row."""
        instance.event_no = self._event_no
        self._put(INSTANCES, instance.row(self._key, self.workflow_uuid))

    # --- records ----------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """All records, in order of their ordinals."""
        records = [record_from_row(row) for row in self._all(STEPS)]
        self._saw(records)
        return records

    def read_on(self, known: list[Record], most: int) -> bool:
        """Read at most so many records more, after those known; True: that was all."""
        after = (self._key, known[-1].ordinal if known else 0)
        page = self._ctx.scan(STEPS, (self._key,), after=after, limit=most)
        records = [record_from_row((*row[:-1], self.seal.open(row[-1]))) for row in page]
        known += records
        self._event_no = max(self._event_no, last_number(records))
        if len(page) < most:
            self._has_last_number = True
            return True
        return False

    def last_ordinal(self) -> int:
        """The greatest ordinal of its records: about how many there are."""
        found = self._ctx.scan(STEPS, (self._key,), limit=1, reverse=True)
        return int(found[0][1]) if found else 0

    def put_record(self, record: Record, *, is_copy: bool = False) -> None:
        """Write a record's row; what is new in it gets its numbers among the events.

        Of a copy, from a run in another process, the numbers stand in the row written before.
        """
        if is_copy and (row := self._get(STEPS, (self._key, record.ordinal))) is not None:
            take_numbers(record, record_from_row(row))
        before = self._event_no if self._has_last_number else self._last_number()
        self._event_no = number(record, before)
        if self.log is not None and self._event_no > before:
            self.log.add(sorted(entries_of(record, before), key=lambda entry: entry[0]))
        self._put(STEPS, record.row(self._key))
        if record.stream:
            self._put(BLOBS, (self._key, record.ordinal, record.stream))

    def let_go(self, streams: Iterable[str]) -> None:
        """Streams of records that are never written; they go after the commit."""
        self._released += streams

    def wipe_records(self, first: int) -> int:
        """Delete records from an ordinal on, some at a time; gives from where to go on; 0: done."""
        self._last_number()  # it may stand in a record that goes
        self.log = None
        for row in self._all(BLOBS):
            if row[1] >= first:
                self._delete(BLOBS, row[:2])
                self._released.append(row[2])
        key = (self._key, first - 1)
        found = self._ctx.scan(STEPS, (self._key,), after=key, limit=SCAN_ROWS_MAX)
        wiped = 0
        while found:
            for row in found:
                self._delete(STEPS, row[:2])
            wiped += len(found)
            if wiped >= WIPE_ROWS_MAX:
                return first
            key = found[-1][:2]
            found = self._ctx.scan(STEPS, (self._key,), after=key, limit=SCAN_ROWS_MAX)
        return 0

    def wipe_rest(self, *, params: bool) -> None:
        """Delete events, changes of status and payloads; `params` with them."""
        for table in (EVENTS, NOTES, PAYLOADS):
            for row in self._all(table):
                if params or row[1] != "params":
                    self._delete(table, row[: table.key_size])
        self.log = None

    def drop_payload(self, what: str) -> None:
        """Delete a payload that has a row of its own, if it has one."""
        self._delete(PAYLOADS, (self._key, what))

    def drop_notes(self, instance: Instance) -> None:
        """Forget all changes of status; `save` is to follow."""
        for row in self._all(NOTES):
            self._delete(NOTES, row[:2])
        instance.notes = []
        self.log = None

    def wipe_instance(self) -> None:
        """Delete the instance's own row."""
        self._delete(INSTANCES, (self._key,))

    def wipe_requests(self) -> None:
        """Forget which requests were answered."""
        for row in self._all(REQUESTS):
            self._delete(REQUESTS, row[:2])
        self._request_ids = None

    def tombstone(self) -> Tombstone | None:
        """What is left of a deleted instance."""
        row = self._get(TOMBSTONES, (self._key,))
        return None if row is None else unpack(row[1], Tombstone)

    def put_tombstone(self, tombstone: Tombstone | None) -> None:
        """Write it; None: it is not needed any more."""
        if tombstone is None:
            self._delete(TOMBSTONES, (self._key,))
        else:
            self._put(TOMBSTONES, (self._key, pack(tombstone)))

    @property
    def event_no(self) -> int:
        """The last number that was used of the instance's events."""
        return self._last_number()

    @event_no.setter
    def event_no(self, last: int) -> None:
        self._event_no = last
        self._has_last_number = True

    # --- history ----------------------------------------------------------------------------

    def note_status(self, instance: Instance, now_ms: int) -> None:
        """The status has changed; `save` is to follow."""
        notes, undo = instance.notes, instance.undo
        if undo is not None and undo.outcome and notes and notes[-1].status == "rollingBack":
            self._note(instance, f"rollback {undo.outcome}", now_ms)
        self._note(instance, instance.status, now_ms)

    def _note(self, instance: Instance, status: str, now_ms: int) -> None:
        notes = instance.notes
        if len(notes) >= STATUS_NOTES_INLINE_MAX:  # the last stays, for the next to look at
            self._put(NOTES, (self._key, notes[0].no, pack(notes[:-1])))
            notes = instance.notes = notes[-1:]
        before = self._event_no if self._has_last_number else self._last_number()
        self._event_no = before + 1
        note = StatusNote(self._event_no, status, now_ms)
        notes.append(note)
        if self.log is not None:
            is_first_run = status == "running" and instance.started_ms is None
            self.log.add((entry_of(note, is_first_run),))

    def notes(self, instance: Instance) -> list[StatusNote]:
        """All changes of status, oldest first."""
        older = [note for row in self._all(NOTES) for note in _notes_of(row)]
        return older + instance.notes

    def _last_number(self) -> int:
        if not self._has_last_number:
            self.records()
        return self._event_no

    def _saw(self, records: list[Record]) -> None:
        self._event_no = max(self._event_no, last_number(records))
        self._has_last_number = True

    # --- payloads ---------------------------------------------------------------------------

    def keep_payload(self, what: str, body: bytes) -> bytes | None:
        """The payload if it may live in the instance's own row; else it gets one of its own."""
        if len(body) <= INLINE_PAYLOAD_BYTES_MAX:
            return body
        self._put(PAYLOADS, (self._key, what, body))
        return None

    def payload(self, what: str, inline: bytes | None) -> bytes:
        """What `keep_payload` kept."""
        if inline is not None:
            return inline
        row = self._get(PAYLOADS, (self._key, what))
        return NULL if row is None else row[2]

    # --- events -----------------------------------------------------------------------------

    def put_event(self, seq: int, event_type: str, at_ms: int, payload: bytes) -> None:
        """Buffer an event."""
        self._put(EVENTS, (self._key, seq, event_type, at_ms, payload))

    def delete_event(self, seq: int) -> None:
        """An event has been consumed."""
        self._delete(EVENTS, (self._key, seq))

    def event_payload(self, seq: int) -> bytes:
        """A buffered event's payload."""
        row = self._get(EVENTS, (self._key, seq))
        return NULL if row is None else row[4]

    def has_event(self, seq: int) -> bool:
        """Whether an event is still there."""
        return self._get(EVENTS, (self._key, seq)) is not None

    def events(self) -> list[tuple[int, str, int]]:
        """`(number, type, time)` of the buffered events, oldest first."""
        return [(row[1], row[2], row[3]) for row in self._all(EVENTS)]

    # --- children ---------------------------------------------------------------------------

    def tell(self, dest: EntityRef, method: str, *args: Any) -> None:
        """Tell another entity, in the commit that is gathered."""
        self._letters.append(Letter(dest, method, args))

    def put_child(self, call: str, child: ChildRow) -> None:
        """Write a child's row."""
        self._put(CHILDREN, (self._key, call, pack(child)))

    def drop_child(self, call: str) -> None:
        """It has ended, or never was."""
        self._delete(CHILDREN, (self._key, call))

    def child(self, call: str) -> ChildRow | None:
        """A child's row, by the name of its start."""
        row = self._get(CHILDREN, (self._key, call))
        return None if row is None else unpack(row[2], ChildRow)

    def children(self) -> list[tuple[str, ChildRow]]:
        """Those that were there before this event, as they are now."""
        calls = [row[1] for row in self._all(CHILDREN)]
        found = [(call, self.child(call)) for call in calls]
        return [(call, child) for call, child in found if child is not None]

    # --- request ids ------------------------------------------------------------------------

    def answer_of(self, request_id: str, content: int = 0) -> int | None:
        """The answer that a request got before; `content` stands for what it asks (0: any).

        Raises:
            RequestIdReused: that id asked something else.
        """
        row = self._get(REQUESTS, (self._key, request_id)) if request_id else None
        if row is not None and content and row[4]:
            check_same(request_id, row[4], content)
        return None if row is None else row[3]

    def keep_answer(self, request_id: str, seq: int, answer: int, content: int = 0) -> None:
        """Remember a request; the oldest is forgotten past a number of them."""
        if self._request_ids is None:
            rows = sorted(self._all(REQUESTS), key=lambda row: row[2])
            self._request_ids = deque(row[1] for row in rows)
        self._put(REQUESTS, (self._key, request_id, seq, answer, content))
        self._request_ids.append(request_id)
        if len(self._request_ids) > REQUEST_IDS_KEPT_MAX:
            self._delete(REQUESTS, (self._key, self._request_ids.popleft()))

    def _all(self, table: Table) -> list[Any]:
        rows: list[Any] = []
        is_sealed = table.name in _SEALED
        page = self._ctx.scan(table, (self._key,), limit=SCAN_ROWS_MAX)
        while page:
            rows += [self._opened(table, row) for row in page] if is_sealed else page
            if len(page) < SCAN_ROWS_MAX:
                break
            after = table.key_of(page[-1])
            page = self._ctx.scan(table, (self._key,), after=after, limit=SCAN_ROWS_MAX)
        return rows


def content_of(*parts: object) -> int:
    """A number that stands for what a request says."""
    return int.from_bytes(blake2b(pack(parts), digest_size=8).digest(), "big") >> 1 or 1


def check_same(request_id: str, before: int, now: int) -> None:
    """Refuse a request id that has asked something else before."""
    if before != now:
        raise RequestIdReused(
            f"request id (Idempotency-Key) {request_id!r:.80} was used for this instance with "
            "other content, and nothing was done; another request takes another id."
        )


def _notes_of(row: Row) -> list[StatusNote]:
    return unpack(row[2], list[StatusNote])
