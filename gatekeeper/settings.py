"""An account's settings beyond its registry: rates of creates, retention, steps.

Rows hold only what was set; the rest follows the server's defaults. A change is checked as a
whole before anything of it is done.
"""

from __future__ import annotations

import msgspec

from ..runtime import limits
from ..runtime.entity import Context
from ..runtime.errors import InvalidArgument
from ..runtime.tables import Table, every_row
from .messages import LimitsChange, Settings

SETTINGS = Table(
    "account_settings",
    (
        ("entity", "TEXT"),
        ("workflow", "TEXT"),
        ("creates_per_second", "INTEGER?"),
        ("steps", "INTEGER?"),
        ("success_retention_ms", "INTEGER?"),
        ("error_retention_ms", "INTEGER?"),
    ),
    key_size=2,
)
QUEUES = Table(
    "account_queues",
    (("entity", "TEXT"), ("workflow", "TEXT"), ("queued_max", "INTEGER")),
    key_size=2,
)
ACCOUNT_ROW = ""
"""The row of the account's own settings; others are named by workflow uuids."""
NOTHING_SET = Settings()


class SettingsBook:
    """The settings of an account and its workflows.

    Args:
        ctx: the Account's context.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        rows = every_row(ctx, SETTINGS, (ctx.ref.key,))
        self.all = {row[1]: Settings(*row[2:]) for row in rows}
        for _, uuid, most in every_row(ctx, QUEUES, (ctx.ref.key,)):
            self.all[uuid] = msgspec.structs.replace(self.get(uuid), queued_max=most)

    def get(self, workflow_uuid: str = ACCOUNT_ROW) -> Settings:
        """What was set for a workflow, or for the account."""
        return self.all.get(workflow_uuid, NOTHING_SET)

    def put(self, workflow_uuid: str, settings: Settings) -> None:
        """Set them; nothing set takes no row."""
        key = (self._ctx.ref.key, workflow_uuid)
        *others, queued_max = msgspec.structs.astuple(settings)
        if others == [None] * len(others):
            self._ctx.delete(SETTINGS, key)
        else:
            self._ctx.put(SETTINGS, (*key, *others))
        if queued_max is None:
            self._ctx.delete(QUEUES, key)
        else:
            self._ctx.put(QUEUES, (*key, queued_max))
        if settings == NOTHING_SET:
            self.all.pop(workflow_uuid, None)
        else:
            self.all[workflow_uuid] = settings

    def changed(self, workflow_uuid: str, change: LimitsChange) -> Settings:
        """What they would be after a change."""
        old = self.get(workflow_uuid)
        values = [
            getattr(old if getattr(change, name) is msgspec.UNSET else change, name)
            for name in Settings.__struct_fields__
        ]
        return Settings(*values)


_ACCOUNT_FIELDS = (
    "running_max",
    "creates_per_second",
    "success_retention_ms",
    "error_retention_ms",
)


def check_change(change: LimitsChange, *, of_workflow: bool) -> None:
    """Refuse a change with a value out of range, or one that an account has not."""
    for name, (least, most) in _RANGES.items():
        value = getattr(change, name)
        if value is msgspec.UNSET:
            continue
        if not of_workflow and name not in _ACCOUNT_FIELDS:
            raise InvalidArgument(f"{name} is a workflow's; an account has none.")
        if value is not None and not least <= value <= most:
            raise InvalidArgument(f"{name} must be {least} to {most}, not {value}.")


_RANGES = {
    "running_max": (0, limits.RUNNING_MAX),
    "weight": (1, limits.WORKFLOW_WEIGHT_MAX),
    "souschefs": (1, limits.SOUSCHEFS_PER_WORKFLOW_MAX),
    "creates_per_second": (1, limits.CREATES_PER_SECOND_MAX),
    "steps": (1, limits.STEPS_PER_INSTANCE_MAX),
    "success_retention_ms": (0, limits.RETENTION_MAX_MS),
    "error_retention_ms": (0, limits.RETENTION_MAX_MS),
    "queued_max": (1, limits.QUEUED_MAX),
}
