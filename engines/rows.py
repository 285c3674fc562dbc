"""One instance's rows: read whole, written one by one.

Used by its Engine only. What is written here is durable after the Engine's next commit.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..runtime.codec import NULL
from ..runtime.entity import Context
from ..runtime.ids import split_engine_key
from ..runtime.limits import INLINE_PAYLOAD_BYTES_MAX, REQUEST_IDS_KEPT_MAX, SCAN_ROWS_MAX
from ..runtime.tables import Row, Table
from .journal import (
    EVENTS,
    INSTANCES,
    PAYLOADS,
    REQUESTS,
    STEPS,
    Instance,
    Record,
    record_from_row,
)


class InstanceRows:
    """See the module's description.

    Args:
        ctx: the Engine's context.
    """

    __slots__ = ("_ctx", "_key", "_request_ids", "_workflow_uuid")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._key = ctx.ref.key
        self._workflow_uuid = split_engine_key(self._key)[1]
        self._request_ids: deque[str] | None = None

    def load(self) -> Instance | None:
        """The instance, if there is one."""
        row = self._ctx.get(INSTANCES, (self._key,))
        return None if row is None else Instance.from_row(row)

    def save(self, instance: Instance) -> None:
        """Write the instance's row."""
        self._ctx.put(INSTANCES, instance.row(self._key, self._workflow_uuid))

    # --- records ----------------------------------------------------------------------------

    def records(self) -> list[Record]:
        """All records, in order of their ordinals."""
        return [record_from_row(row) for row in self._all(STEPS)]

    def put_record(self, record: Record) -> None:
        """Write a record's row."""
        self._ctx.put(STEPS, record.row(self._key))

    # --- payloads ---------------------------------------------------------------------------

    def keep_payload(self, what: str, body: bytes) -> bytes | None:
        """The payload if it may live in the instance's own row; else it gets one of its own."""
        if len(body) <= INLINE_PAYLOAD_BYTES_MAX:
            return body
        self._ctx.put(PAYLOADS, (self._key, what, body))
        return None

    def payload(self, what: str, inline: bytes | None) -> bytes:
        """What `keep_payload` kept."""
        if inline is not None:
            return inline
        row = self._ctx.get(PAYLOADS, (self._key, what))
        return NULL if row is None else row[2]

    # --- events -----------------------------------------------------------------------------

    def put_event(self, seq: int, event_type: str, at_ms: int, payload: bytes) -> None:
        """Buffer an event."""
        self._ctx.put(EVENTS, (self._key, seq, event_type, at_ms, payload))

    def delete_event(self, seq: int) -> None:
        """An event has been consumed."""
        self._ctx.delete(EVENTS, (self._key, seq))

    def event_payload(self, seq: int) -> bytes:
        """A buffered event's payload."""
        row = self._ctx.get(EVENTS, (self._key, seq))
        return NULL if row is None else row[4]

    def events(self) -> list[tuple[int, str, int]]:
        """`(number, type, time)` of the buffered events, oldest first."""
        return [(row[1], row[2], row[3]) for row in self._all(EVENTS)]

    # --- request ids ------------------------------------------------------------------------

    def answer_of(self, request_id: str) -> int | None:
        """The answer that a request got before."""
        row = self._ctx.get(REQUESTS, (self._key, request_id)) if request_id else None
        return None if row is None else row[3]

    def keep_answer(self, request_id: str, seq: int, answer: int) -> None:
        """Remember a request; the oldest is forgotten past a number of them."""
        if self._request_ids is None:
            rows = sorted(self._all(REQUESTS), key=lambda row: row[2])
            self._request_ids = deque(row[1] for row in rows)
        self._ctx.put(REQUESTS, (self._key, request_id, seq, answer))
        self._request_ids.append(request_id)
        if len(self._request_ids) > REQUEST_IDS_KEPT_MAX:
            self._ctx.delete(REQUESTS, (self._key, self._request_ids.popleft()))

    def _all(self, table: Table) -> list[Any]:
        rows: list[Row] = []
        page = self._ctx.scan(table, (self._key,), limit=SCAN_ROWS_MAX)
        while page:
            rows += page
            if len(page) < SCAN_ROWS_MAX:
                break
            after = table.key_of(page[-1])
            page = self._ctx.scan(table, (self._key,), after=after, limit=SCAN_ROWS_MAX)
        return rows
