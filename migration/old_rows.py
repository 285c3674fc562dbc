"""What AccountOld's index keeps: its tables, and an instance as it has it. Pure.

The rows say of an instance what lists show, and while it is unborn what its Engine is to be told.
"""

from __future__ import annotations

import msgspec

from ..engines.views import CreateRequest, IndexRow, InstanceView
from ..runtime.tables import Index, Row, Table

INDEX = Table(
    "account_old_instances",
    (
        ("entity", "TEXT"),
        ("workflow_uuid", "TEXT"),
        ("id", "TEXT"),
        ("created_ms", "INTEGER"),
        ("status", "TEXT"),
        ("started_ms", "INTEGER?"),
        ("ended_ms", "INTEGER?"),
        ("modified_ms", "INTEGER"),
        ("version_id", "TEXT"),
        ("source", "TEXT"),
        ("unborn", "INTEGER"),
        ("run_id", "TEXT"),
        ("seq", "INTEGER"),
        ("expires_ms", "INTEGER"),
        ("success_ms", "INTEGER"),
        ("other_ms", "INTEGER"),
        ("request_id", "TEXT"),
        ("content", "INTEGER"),
    ),
    key_size=3,
    indexes=(
        Index("account_old_by_creation", ("entity", "workflow_uuid", "created_ms", "id")),
        Index(
            "account_old_unborn_by_creation",
            ("entity", "workflow_uuid", "created_ms", "id"),
            where="unborn = 1",
        ),
    ),
)
UNBORN = Table(
    "account_old_unborn",
    (
        ("entity", "TEXT"),
        ("created_ms", "INTEGER"),
        ("workflow_uuid", "TEXT"),
        ("id", "TEXT"),
        ("request", "BLOB"),
    ),
    key_size=4,
)
ENDS = Table(
    "account_old_ends",
    (
        ("entity", "TEXT"),
        ("expires_ms", "INTEGER"),
        ("workflow_uuid", "TEXT"),
        ("id", "TEXT"),
    ),
    key_size=4,
)
COUNTS = Table(
    "account_old_counts",
    (("entity", "TEXT"), ("workflow_uuid", "TEXT"), ("counts", "TEXT")),
    key_size=2,
)
INDEX_TABLES = (INDEX, UNBORN, ENDS, COUNTS)

UNBORN_COUNT = "unborn"
"""Counted apart from `queued`, as which it is shown."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An instance as the index has it.

    Attributes:
        unborn: its Engine is not known to be there.
        run_id, seq: of the newest report; the run is the first one's until there is a report.
        expires_ms: when it is dropped, should its Engine not tell before that it has gone, as it
            does; 0: it has not ended.
        success_ms, other_ms: how long it is kept after success, and after another end.
        request_id, content: of its create; see `rows.content_of`.
    """

    uuid: str
    id: str
    created_ms: int
    status: str
    started_ms: int | None
    ended_ms: int | None
    modified_ms: int
    version_id: str
    source: str
    unborn: bool
    run_id: str
    seq: int
    expires_ms: int
    success_ms: int
    other_ms: int
    request_id: str
    content: int

    @property
    def counted(self) -> str:
        """As what it counts."""
        return UNBORN_COUNT if self.unborn else self.status

    def row(self) -> IndexRow:
        """As lists show it."""
        return IndexRow(
            self.id,
            self.status,
            self.created_ms,
            self.started_ms,
            self.ended_ms,
            max(self.modified_ms, self.started_ms or 0),
            self.version_id,
            self.source,
        )


def entry_of(row: Row) -> Entry:
    """An entry from its row."""
    values = list(row[1:])
    values[9] = bool(values[9])
    return Entry(*values)


def queued_view(entry: Entry, request: CreateRequest) -> InstanceView:
    """An instance without an Engine as the API shows it."""
    return InstanceView(
        id=entry.id,
        run_id=entry.run_id,
        workflow=request.workflow,
        workflow_uuid=entry.uuid,
        version_id=request.version_id,
        code_hash=request.code_hash,
        status="queued",
        source=request.source,
        params=request.params,
        output=None,
        error=None,
        created_ms=entry.created_ms,
        queued_ms=entry.created_ms,
        started_ms=None,
        ended_ms=None,
        modified_ms=entry.created_ms,
        step_count=0,
    )
