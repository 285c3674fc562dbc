"""The routes of migrations: moving accounts from V1 to V2.

For operators only; rare, so that nothing is cached.
"""

from __future__ import annotations

import msgspec

from ..engines.durations import json_duration_ms
from ..runtime import limits
from . import migration_shapes, requests, shapes
from .auth import ADMIN, READ
from .dispatch_http import ACCOUNT, Request, Route
from .migration_shapes import migration_shape
from .service import ControlPlane, check_request_id

_MIGRATION = ("toque", "v1", "accounts", ACCOUNT, "migration")

MIGRATION_ROUTES = (
    Route("GET", _MIGRATION, "status", READ, operator=True),
    Route("POST", _MIGRATION, "start", ADMIN, operator=True),
    Route("GET", (*_MIGRATION, "plan"), "plan", READ, operator=True),
    Route("POST", (*_MIGRATION, "pause"), "pause", ADMIN, operator=True),
    Route("POST", (*_MIGRATION, "resume"), "resume", ADMIN, operator=True),
    Route("POST", (*_MIGRATION, "abort"), "abort", ADMIN, operator=True),
)
_start_body = msgspec.json.Decoder(migration_shapes.StartBody)


class MigrationRoutes:
    """The endpoints of the table.

    Args:
        plane: the operations.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._migrations = plane.migrations

    async def _status(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        return shapes.answer(migration_shape(await self._migrations.status(request.account)))

    async def _plan(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        plan = await self._migrations.plan(request.account)
        return shapes.answer(migration_shapes.plan_shape(plan))

    async def _start(self, request: Request) -> bytes:
        requests.parse_query(request.query, ())
        known = migration_shapes.StartBody.__struct_fields__
        after = requests.decode(_start_body, await request.body() or b"{}", known).start_in
        after_ms = json_duration_ms(after or 0, "start_in", max_ms=limits.MIGRATION_START_MAX_MS)
        found = await self._migrations.start(
            request.account, in_ms=after_ms, request_id=_key_of(request)
        )
        return shapes.answer(migration_shape(found))

    async def _pause(self, request: Request) -> bytes:
        return await self._changed(request, "pause")

    async def _resume(self, request: Request) -> bytes:
        return await self._changed(request, "resume")

    async def _abort(self, request: Request) -> bytes:
        return await self._changed(request, "abort")

    async def _changed(self, request: Request, change: str) -> bytes:
        requests.parse_query(request.query, ())
        key = _key_of(request)
        found = await self._migrations.change(request.account, change, request_id=key)
        return shapes.answer(migration_shape(found))


def _key_of(request: Request) -> str | None:
    """The request id of a change: the caller's key."""
    return None if request.key is None else check_request_id(request.key)
