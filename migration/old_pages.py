"""The queries for lists and counts over AccountOld's index. Pure.

Lists are in the order in which data shards give theirs: by creation and id, or with a prefix by
id; so a cursor that was made on V1 goes on on V2.
"""

from __future__ import annotations

from ..engines.pages import range_of
from ..engines.views import PageRequest
from ..runtime.limits import COUNT_ROWS_MAX
from ..runtime.tables import Query
from .old_rows import INDEX

_COLUMNS = ", ".join(INDEX.column_names)


def old_page_query(
    entity: str, request: PageRequest, *, unborn: bool = False
) -> tuple[Query, tuple[object, ...]]:
    """The query and its parameters.

    Args:
        entity: AccountOld's key.
        request: what is asked for.
        unborn: only who is unborn.
    """
    order = "DESC" if request.newest_first else "ASC"
    conditions = ["entity = ?", "workflow_uuid = ?"]
    params: list[object] = [entity, request.workflow_uuid]
    if unborn:
        conditions.append("unborn = 1")
    if request.prefix:
        conditions += ["id >= ?", "id < ?"]
        params += range_of(request.prefix)
    if request.after is not None:
        sign = "<" if request.newest_first else ">"
        created_ms, instance_id = request.after
        if request.prefix:
            conditions.append(f"id {sign} ?")
            params.append(instance_id)
        else:
            conditions.append(f"(created_ms, id) {sign} (?, ?)")
            params += [created_ms, instance_id]
    if request.since_ms is not None:
        conditions.append("created_ms >= ?")
        params.append(request.since_ms)
    if request.until_ms is not None:
        conditions.append("created_ms < ?")
        params.append(request.until_ms)
    if request.statuses:
        conditions.append(f"status IN ({', '.join('?' * len(request.statuses))})")
        params += request.statuses
    columns = f"id {order}" if request.prefix else f"created_ms {order}, id {order}"
    sql = (
        f"SELECT {_COLUMNS} FROM {INDEX.name} WHERE {' AND '.join(conditions)} "
        f"ORDER BY {columns} LIMIT ?"
    )
    return Query("page of instances of V1", sql), (*params, request.limit)


def old_counts_query(
    entity: str, uuid: str, prefix: str, *, unborn: bool = False
) -> tuple[Query, tuple[object, ...]]:
    """Counts by status of the first COUNT_ROWS_MAX whose ids begin with a prefix."""
    only = " AND unborn = 1" if unborn else ""
    sql = (
        f"SELECT status, count(*) FROM (SELECT status FROM {INDEX.name} WHERE entity = ? "
        f"AND workflow_uuid = ? AND id >= ? AND id < ?{only} LIMIT ?) GROUP BY status"
    )
    params = (entity, uuid, *range_of(prefix), COUNT_ROWS_MAX)
    return Query("instances of V1 by status", sql), params
