"""What a SousChef keeps in its shard's store, and the narrow port through which it does.

An instance has one row: in HELD while it may use a slot, in PARKED while it is queued, waits or
is paused. Who is queued, or is to wake by itself, also has a row in ORDER, whose key is the
order in which they are looked at; memory holds a short window of it, so that millions may queue.
STATE is one row: the lease and the counters. All rows of one event are in one commit; the first
that an event writes is STATE, marked `partial`, the last is STATE without the mark, so that an
event that was cut short is known as such, and the rows are put in order when they are next read.

HELD says nothing of whether the grant was taken: after a restart all of HELD counts as used, and
the grants are sent again.
"""

from __future__ import annotations

from typing import Protocol

from ..runtime.tables import Key, Query, Row, Scanned, Table

AWAKENED, FRESH, WAKING, NO_LANE = 0, 1, 2, -1
"""Lanes of ORDER: those that have run before, new ones (both by age), sleepers by wake time."""

QUEUED, WAITING, PAUSED = "queued", "waiting", "paused"

HELD = Table(
    "souschef_held",
    (
        ("entity", "TEXT"),
        ("key", "TEXT"),
        ("run_id", "TEXT"),
        ("seq", "INTEGER"),
        ("turn", "INTEGER"),
        ("since_ms", "INTEGER"),
        ("shard", "TEXT"),
    ),
    key_size=2,
)
PARKED = Table(
    "souschef_parked",
    (
        ("entity", "TEXT"),
        ("key", "TEXT"),
        ("run_id", "TEXT"),
        ("seq", "INTEGER"),
        ("state", "TEXT"),
        ("turn", "INTEGER"),
        ("lane", "INTEGER"),
        ("at_ms", "INTEGER"),
        ("since_ms", "INTEGER"),
        ("wake_ms", "INTEGER"),
        ("shard", "TEXT"),
    ),
    key_size=2,
)
ORDER = Table(
    "souschef_order",
    (
        ("entity", "TEXT"),
        ("lane", "INTEGER"),
        ("at_ms", "INTEGER"),
        ("key", "TEXT"),
        ("run_id", "TEXT"),
        ("seq", "INTEGER"),
        ("turn", "INTEGER"),
        ("shard", "TEXT"),
    ),
    key_size=4,
    scope_size=2,
)
STATE = Table(
    "souschef_state",
    (
        ("entity", "TEXT"),
        ("lease_version", "INTEGER"),
        ("target", "INTEGER"),
        ("leased", "INTEGER"),
        ("calls_reserved", "INTEGER"),
        ("awakened", "INTEGER"),
        ("fresh", "INTEGER"),
        ("waiting", "INTEGER"),
        ("paused", "INTEGER"),
        ("live", "INTEGER"),
        ("partial", "INTEGER"),
        ("ended", "TEXT"),
    ),
    key_size=1,
)
UNDONE = Query(
    "souschefs with live rows or a lease",
    "SELECT entity FROM souschef_state WHERE live > 0 OR leased > 0",
)


class Rows(Scanned, Protocol):
    """The part of an entity's context that the roster uses."""

    def put(self, table: Table, row: Row) -> None:
        """Write a row."""

    def delete(self, table: Table, key: Key) -> None:
        """Delete a row."""

    def get(self, table: Table, key: Key) -> Row | None:
        """A row, own pending writes included."""
