"""What the routes of migrations take and give.

What V1 says of its instances is null while it does not answer.
"""

from __future__ import annotations

import msgspec

from ..migration.messages import MigrationPlan, MigrationStatus, OldStatus
from ..runtime.codec import Whole
from .shapes import iso


class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    """When a migration begins: after so many milliseconds, or `"10 minutes"`; left out: now."""

    start_in: Whole | str | None = None


class OldInstances(msgspec.Struct, frozen=True):
    """The instances that V1 has made, by how they stand. `running`: they hold a slot.

    `unborn` are queued and have no Engine yet; they are not in `queued`. `ended` are kept until
    their retention ends.
    """

    unborn: int
    queued: int
    running: int
    waiting: int
    paused: int
    ended: int | None


class StateShape(msgspec.Struct, frozen=True):
    """A state of a migration, and since when."""

    state: str
    since: str


class MigrationShape(msgspec.Struct, frozen=True):
    """How the migration of an account stands.

    `migration_id` is null and `state` is `none` if there was none. `holds`: it stands still as
    it is paused. `instances` are V1's as they are now, `at_freeze` as they were then. `plane`
    and `instances` are null while V1 does not answer. `final`: why it can't be aborted.
    """

    account: str
    migration_id: str | None
    state: str
    plane: str | None
    paused: bool
    holds: bool
    starts_on: str | None
    states: list[StateShape]
    at_freeze: OldInstances | None
    instances: OldInstances | None
    trouble: str | None
    abortable: bool
    final: str | None


class PlanShape(msgspec.Struct, frozen=True):
    """What a migration would do; with objections it is refused. Nothing was changed."""

    account: str
    plane: str | None
    possible: bool
    objections: list[str]
    steps: list[str]
    instances: OldInstances | None
    workflows: int
    scripts: int
    running_max_before: int
    running_max_after: int


def _instances(old: OldStatus | None) -> OldInstances | None:
    if old is None:
        return None
    return OldInstances(old.unborn, old.queued, old.holding, old.waiting, old.paused, old.ended)


def migration_shape(found: MigrationStatus) -> MigrationShape:
    """A migration."""
    frozen = found.frozen
    before = None
    if frozen is not None:
        counts = (frozen.unborn, frozen.queued, frozen.holding, frozen.waiting, frozen.paused)
        before = OldInstances(*counts, None)
    return MigrationShape(
        found.account,
        found.migration_id or None,
        found.state,
        found.plane or None,
        found.paused,
        found.holds,
        iso(found.not_before_ms) if found.not_before_ms else None,
        [StateShape(state, iso(since_ms)) for state, since_ms in found.log],
        before,
        _instances(found.old),
        found.trouble or None,
        bool(found.migration_id) and not found.final,
        found.final or None,
    )


def plan_shape(plan: MigrationPlan) -> PlanShape:
    """A plan."""
    return PlanShape(
        plan.account,
        plan.plane or None,
        not plan.objections,
        plan.objections,
        plan.steps,
        _instances(plan.old),
        plan.workflows,
        plan.scripts,
        plan.running_max_before,
        plan.running_max_after,
    )
