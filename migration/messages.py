"""What the V1 control plane, the cut-over and front ends say to each other.

Every message may come twice or late: what moves an account carries the migration's id, what
makes an instance its request id.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..engines.views import CreateRequest
from ..gatekeeper.handover import Frozen as Frozen
from ..gatekeeper.handover import RegistryPart as RegistryPart
from ..runtime.ids import ACCOUNT_OLD_KIND as ACCOUNT_OLD_KIND
from ..runtime.ids import OLD_SOUSCHEF as OLD_SOUSCHEF
from ..runtime.ids import old_key as old_key

MIGRATION_KIND = "Migration"


def migration_id(number: int) -> str:
    """The id of an account's migration: as text a later one's is greater."""
    return f"{number:09d}"


class OldCreate(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A create on V1: the Engine's key, `account/workflow uuid/id`, and what the Engine is told."""

    key: str
    request: CreateRequest


class Forwarded(msgspec.Struct, array_like=True, frozen=True):
    """An operation on an instance that goes through AccountOld: one more hop, as V1 has it.

    Attributes:
        key: the Engine's key.
        method, args: of the Engine; plain data.
        timeout_ms: how long its answer may take.
    """

    key: str
    method: str
    args: list[Any]
    timeout_ms: int


class Asked(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What AccountOld says of an id while the account heals.

    Attributes:
        held: it held that instance unborn; its Engine lives now.
        healing: whether others may still be unborn.
    """

    held: bool
    healing: bool


class OldStatus(msgspec.Struct, array_like=True, frozen=True):
    """How AccountOld stands.

    Attributes:
        plane: where the account is, as AccountOld knows.
        migration_id: of the migration that froze it last; empty: none has.
        healing: some may be unborn.
        unborn, queued, holding, waiting, paused, ended: instances by how they stand; `ended`:
            kept until their retention ends.
        target: slots it may hold.
        last_end_ms: when the last of the ended goes, as far as is known; 0: unknown.
        first_create_ms: when the first create of V2 asked; 0: none has.
        creates, refused_creates: on V1, in all; refused by rate.
    """

    plane: str
    migration_id: str
    healing: bool
    unborn: int
    queued: int
    holding: int
    waiting: int
    paused: int
    ended: int
    target: int
    last_end_ms: int
    first_create_ms: int
    creates: int
    refused_creates: int


class MigrationStatus(msgspec.Struct, array_like=True, frozen=True):
    """How the migration of an account stands.

    Attributes:
        account, migration_id: whose, and its id; empty: none was ever begun.
        state: see `cutover`; `none`: none was ever begun.
        plane: where the account is, as AccountOld knows; empty: it does not answer just now.
        paused: it holds at the next state where it may.
        holds: it does so now.
        not_before_ms: when it begins; 0: at once.
        log: each state with when it was reached.
        frozen: what was found at the freeze.
        old: how AccountOld stands; None: it does not answer just now.
        trouble: why the last try failed; empty: it did not.
        final: why it can't be aborted; empty: it can.
    """

    account: str
    migration_id: str
    state: str
    plane: str
    paused: bool
    holds: bool
    not_before_ms: int
    log: list[tuple[str, int]]
    frozen: Frozen | None
    old: OldStatus | None
    trouble: str
    final: str


class MigrationPlan(msgspec.Struct, array_like=True, frozen=True):
    """What a migration would do: a dry run, which changes nothing.

    Attributes:
        account: whose.
        plane: where it is now; empty: AccountOld does not answer.
        steps: what would happen, a sentence each, in order.
        objections: what speaks against it, a sentence each; with any it is refused.
        old: how AccountOld stands; None: it does not answer.
        workflows, scripts: how many would be copied.
        running_max_before, running_max_after: how many may run.
    """

    account: str
    plane: str
    steps: list[str]
    objections: list[str]
    old: OldStatus | None
    workflows: int
    scripts: int
    running_max_before: int
    running_max_after: int


# AccountOld, whose key is `old_key(account)`. Each method is guarded by the plane it needs:
#   any    begin() -> None                         makes the account one of V1, if it is not yet
#   any    report(reports) -> bool                 as SousChef's
#   any    status() -> OldStatus
#   any    freeze(migration_id) -> Frozen          stops creates and grants: lease := what runs
#   any    registry_part(migration_id, after) -> RegistryPart
#   moving route(migration_id) -> None             it is a SousChef of V2 from now on; heals
#   any    abort(migration_id) -> None             V1 again, if no create of V2 has asked; else
#                                                  AbortRefused. A freeze of that id that comes
#                                                  later changes nothing.
#   v1     create(OldCreate) -> InstanceView       RateLimited, InstanceAlreadyExists
#   v1     forward(Forwarded) -> Any               what the Engine answers
#   v1     list_page(PageRequest) -> list[IndexRow]; counts(uuid, id_prefix) -> dict[str, int]
#   v1     put_script, register, put_workflow, get_workflow, list_versions, list_scripts,
#          delete_workflow, snapshot, change_limits, set_limits: as Account's
#   v2     ask(key, creates) -> Asked              births the instance at once if it is unborn;
#          ask("", True): while it heals, before V2 changes the registry, so that no abort loses it
#   v2     unborn_page(PageRequest) -> list[IndexRow]; unborn_counts(uuid, id_prefix)
#   v1, v2 bear(uuid) -> int                       before all of a workflow are terminated: births
#                                                  the next; gives how many are left; on V1: 0
#   v1, v2 drop_unborn(uuid) -> int                when a workflow is deleted: none of it is born
#   v2     heal(migration_id) -> int               births the next; gives how many are left
#   v2     healed(migration_id) -> None            none is unborn: nobody needs to ask any more
#   v2     retire(migration_id) -> bool            whether its last instance has gone
# Account.set_plane(plane) -> None;  Account.adopt_part(migration_id, RegistryPart) -> None
# Account.adopt(migration_id) -> None;  Account.healed(migration_id) -> None
# Account.abandon(migration_id) -> None            nothing of the migration was ever there
# Gatekeeper.adopt(migration_id, frozen: Frozen, ...) -> None;  Gatekeeper.abandon(migration_id)
# Of a migration that AccountOld, Account or Gatekeeper gave up, or an older one (ids compare as
# text), all of these change nothing, however late they come.
# Migration, whose key is the account's id: see `cutover`.
#   plan() -> MigrationPlan;  status() -> MigrationStatus
#   start(request_id, in_ms) -> MigrationStatus    MigrationRefused, MigrationUnderWay
#   pause(request_id), resume(..), abort(..) -> MigrationStatus  MigrationNotFound, AbortRefused
