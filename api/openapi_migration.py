"""The described routes of migrations.

They are toque's own, and for operators.
"""

from __future__ import annotations

from . import migration_shapes
from . import openapi_examples as examples
from .openapi_operations import Json, Operation

_MIGRATION = "/toque/v1/accounts/{account_id}/migration"
_INSTANCES = {
    "unborn": 2,
    "queued": 40,
    "running": 12,
    "waiting": 300,
    "paused": 0,
    "ended": 20_000,
}
_EXAMPLE: Json = {
    "account": "shop",
    "migration_id": "000000001",
    "state": "planned",
    "plane": "v1",
    "paused": False,
    "holds": False,
    "starts_on": examples.TIME,
    "states": [{"state": "planned", "since": examples.TIME}],
    "at_freeze": None,
    "instances": _INSTANCES,
    "trouble": None,
    "abortable": True,
    "final": None,
}
_PLAN: Json = {
    "account": "shop",
    "plane": "v1",
    "possible": True,
    "objections": [],
    "steps": ["freeze: V1 takes no more creates and gives no more slots; ..."],
    "instances": _INSTANCES,
    "workflows": 3,
    "scripts": 1,
    "running_max_before": 4_500,
    "running_max_after": 50_000,
}


def _change(name: str, summary: str) -> Operation:
    path = f"{_MIGRATION}/{name}"
    shape = migration_shapes.MigrationShape
    return Operation("post", path, f"{name}Migration", summary, shape, _EXAMPLE, {}, keyed=True)


MIGRATION_OPERATIONS = (
    Operation(
        "get",
        _MIGRATION,
        "getMigration",
        "How the account's move from V1 to V2 stands.",
        migration_shapes.MigrationShape,
        _EXAMPLE,
        {},
    ),
    Operation(
        "get",
        _MIGRATION + "/plan",
        "planMigration",
        "What a move would do and what speaks against it; changes nothing.",
        migration_shapes.PlanShape,
        _PLAN,
        {},
    ),
    Operation(
        "post",
        _MIGRATION,
        "startMigration",
        "Begin to move the account from V1 to V2, now or after a while.",
        migration_shapes.MigrationShape,
        _EXAMPLE,
        {},
        body=migration_shapes.StartBody,
        body_example={"start_in": "10 minutes"},
        keyed=True,
    ),
    _change("pause", "Have it hold before the freeze, while it heals, or while it drains."),
    _change("resume", "Have it go on."),
    _change("abort", "Take it back, if V2 has taken no create yet: V1 serves the account again."),
)
