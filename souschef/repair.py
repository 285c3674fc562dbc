"""Puts a SousChef's rows in order after an event that was cut short (its store was full). Pure.

An event writes an instance's new row before it deletes the old one, so the instance may have two
rows, never none. HELD holds over PARKED, and PARKED over ORDER: no slot is forgotten, and what
an Engine has not had confirmed it says again. Reads every row, which takes seconds if millions
are queued; it is needed only after such a failure.
"""

from __future__ import annotations

from collections.abc import Container

from ..runtime.tables import every_row
from .rows import AWAKENED, FRESH, NO_LANE, ORDER, PARKED, PAUSED, QUEUED, WAITING, Rows


def put_in_order(rows: Rows, entity: str, held: Container[str]) -> tuple[int, int, int, int]:
    """Make PARKED and ORDER agree with HELD; gives how many are parked, by kind.

    Args:
        rows: the store.
        entity: the SousChef's key.
        held: the keys in HELD.

    Returns:
        awakened, fresh, waiting, paused
    """
    for row in every_row(rows, ORDER, (entity,)):
        _, lane, at_ms, key, *_ = row
        parked = rows.get(PARKED, (entity, key))
        if key in held or parked is None or parked[6:8] != (lane, at_ms):
            rows.delete(ORDER, row[:4])
    counts: dict[tuple[str, int], int] = {}
    for row in every_row(rows, PARKED, (entity,)):
        _, key, run_id, seq, state, turn, lane, at_ms, _, _, shard = row
        if key in held:
            rows.delete(PARKED, row[:2])
            continue
        kind = (state, lane if state == QUEUED else NO_LANE)
        counts[kind] = counts.get(kind, 0) + 1
        if lane != NO_LANE and rows.get(ORDER, (entity, lane, at_ms, key)) is None:
            rows.put(ORDER, (entity, lane, at_ms, key, run_id, seq, turn, shard))
    kinds = ((QUEUED, AWAKENED), (QUEUED, FRESH), (WAITING, NO_LANE), (PAUSED, NO_LANE))
    awakened, fresh, waiting, paused = (counts.get(kind, 0) for kind in kinds)
    return awakened, fresh, waiting, paused
