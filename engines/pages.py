"""The query for a page of a workflow's instances in one shard. Pure.

By creation the rows come from an index in their order; of a prefix they are found by their key. A
page of some statuses is put together from a page of each, so that few among a million are found
without looking at the others. What is settled has an index by status; what runs has one of its own.
Only `queued` is looked for among all: an index would cost each instance two entries more.
"""

from __future__ import annotations

from ..runtime.tables import Query
from .status import STATUSES
from .views import PageRequest

COLUMNS = "entity, status, created_ms, started_ms, ended_ms, modified_ms, version_id, source"
_SETTLED = "status <> 'queued' AND status <> 'running'"  # as the index has it, word for word


def range_of(prefix: str) -> tuple[str, str]:
    """The first key with a prefix, and the first one after all of them."""
    return prefix, f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"


def page_query(request: PageRequest, prefix: str) -> tuple[Query, tuple[object, ...]]:
    """The query and its parameters.

    Args:
        request: what is asked for.
        prefix: of the keys of the workflow's Engines.
    """
    order = "DESC" if request.newest_first else "ASC"
    conditions, params = _bounds(request, prefix)
    if request.prefix:
        if request.statuses:
            conditions.append(f"status IN ({', '.join('?' * len(request.statuses))})")
            params += request.statuses
        sql = _select("", ["+workflow_uuid = ?", *conditions], f"entity {order}")
        return Query("page of instances", sql), (
            request.workflow_uuid,
            *params,
            request.limit,
        )
    columns = f"created_ms {order}, entity {order}"
    conditions.insert(0, "workflow_uuid = ?")
    params.insert(0, request.workflow_uuid)
    wanted = sorted(STATUSES.intersection(request.statuses))
    if not wanted or len(wanted) == len(STATUSES):
        sql = _select("INDEXED BY instances_by_creation", conditions, columns)
        return Query("page of instances", sql), (*params, request.limit)
    parts = [f"SELECT * FROM ({_of_status(status, conditions, columns)})" for status in wanted]
    given = [value for status in wanted for value in (*params, status, request.limit)]
    sql = f"{' UNION ALL '.join(parts)} ORDER BY {columns} LIMIT ?"
    return Query("page of instances of some statuses", sql), (*given, request.limit)


def _of_status(status: str, conditions: list[str], columns: str) -> str:
    if status == "running":
        part = ["active = 1", f"+{conditions[0]}", *conditions[1:], "status = ?"]
        return _select("INDEXED BY instances_active", part, columns)
    if status == "queued":
        return _select("INDEXED BY instances_by_creation", [*conditions, "status = ?"], columns)
    part = [*conditions, "status = ?", _SETTLED]
    return _select("INDEXED BY instances_by_status", part, columns)


def _select(index: str, conditions: list[str], columns: str) -> str:
    where = " AND ".join(conditions)
    return f"SELECT {COLUMNS} FROM instances {index} WHERE {where} ORDER BY {columns} LIMIT ?"


def _bounds(request: PageRequest, prefix: str) -> tuple[list[str], list[object]]:
    first, end = range_of(prefix + request.prefix)
    conditions, params = ["entity >= ?", "entity < ?"], list[object]((first, end))
    if request.after is not None:
        created_ms, instance_id = request.after
        sign = "<" if request.newest_first else ">"
        if request.prefix:
            conditions.append(f"entity {sign} ?")
            params.append(prefix + instance_id)
        else:
            conditions.append(f"(created_ms, entity) {sign} (?, ?)")
            params += [created_ms, prefix + instance_id]
    if request.since_ms is not None:
        conditions.append("created_ms >= ?")
        params.append(request.since_ms)
    if request.until_ms is not None:
        conditions.append("created_ms < ?")
        params.append(request.until_ms)
    return conditions, params
