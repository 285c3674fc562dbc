"""What SousChefs, the Gatekeeper and the Account say to each other.

All leases are absolute and versioned; repeating a message, or losing one, does no harm.
"""

from __future__ import annotations

import msgspec

from ..runtime.limits import CREATES_PER_SECOND_MAX
from .planes import ON_V2, Plane, PlaneInfo

ACCOUNT_KIND = "Account"
GATEKEEPER_KIND = "Gatekeeper"
CLEARING_KIND = "Clearing"
"""Ends the instances of a workflow; `souschef.clearing`. Its keys are `account/uuid`."""
IDENTITY_KIND = "Identity"
IDENTITY_KEY = "root"


class CycleRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A SousChef's one call per cycle.

    Attributes:
        souschef: its key, `account/workflow uuid/number`.
        incarnation: the epoch of its shard; with `seq` it orders calls, stale ones change nothing.
        seq: grows with each call of the incarnation.
        awakened, fresh: how many instances wait for a slot, by kind.
        oldest_awakened_ms, oldest_fresh_ms: since when the oldest of each waits; 0 if none.
        holding: slots in use or granted and not yet refused.
        lease_version: the version of the lease that it obeys: it grants nothing that would raise
            `holding` above that lease's target.
        target: the target of that lease.
        leaving: nothing is queued or running; it gives its lease back and falls silent.
        needs: how many slots it could keep busy for a period with what it has; -1: as many as it
            has instances. With short ones a slot serves many in a period.
        expects: the same, with what is likely to come; at least `needs`.
        may_wait: the answer may come later, within the period, when there is something new.
    """

    souschef: str
    incarnation: int
    seq: int
    awakened: int
    fresh: int
    oldest_awakened_ms: int
    oldest_fresh_ms: int
    holding: int
    lease_version: int
    target: int
    leaving: bool
    needs: int = -1
    expects: int = 0
    may_wait: bool = False


class CycleReply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The lease: absolute, versioned.

    Attributes:
        lease_version: grows with each change; the holder drops older ones.
        target: how many slots it may hold in all (headroom included).
        period_ms: when to call next.
    """

    lease_version: int
    target: int
    period_ms: int


class WorkflowRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A workflow of an account.

    Attributes:
        name, uuid: the uuid is new each time a name is taken anew.
        class_name: the entry point's class or function name.
        script_name: the app it came from.
        version_id: id of the newest version.
        code_hash: hash of that version's code.
        created_ms, modified_ms: when made, when last deployed.
        souschefs: how many SousChefs new instances are spread over.
        generation: the account's generation at the last change of this record.
        weight: its share of contended slots relative to other workflows'.
        running_max: how many instances of it may run; 0: only the account's limit holds.
        souschefs_auto: `souschefs` follows its load; else it was set.
    """

    name: str
    uuid: str
    class_name: str
    script_name: str
    version_id: str
    code_hash: str
    created_ms: int
    modified_ms: int
    souschefs: int
    generation: int
    weight: int = 1
    running_max: int = 0
    souschefs_auto: bool = True


class VersionRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A version of a workflow: what code it was, and since when."""

    version_id: str
    code_hash: str
    class_name: str
    script_name: str
    created_ms: int


class Settings(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Settings of an account or a workflow; None: the default.

    Attributes:
        creates_per_second: how many instances may be created.
        steps: how many steps an instance may make (a workflow's only).
        success_retention_ms, error_retention_ms: how long instances are kept after success, and
            after another end, if their create does not say.
        queued_max: how many instances may be queued (a workflow's only).
    """

    creates_per_second: int | None = None
    steps: int | None = None
    success_retention_ms: int | None = None
    error_retention_ms: int | None = None
    queued_max: int | None = None


class LimitsChange(msgspec.Struct, frozen=True):
    """A change of limits and settings; what is unset stays. None: the default again.

    `weight`, `souschefs`, `steps` and `queued_max` are workflows' only. Of `souschefs` the default
    is that they follow the load.
    """

    running_max: int | msgspec.UnsetType | None = msgspec.UNSET
    weight: int | msgspec.UnsetType | None = msgspec.UNSET
    souschefs: int | msgspec.UnsetType | None = msgspec.UNSET
    creates_per_second: int | msgspec.UnsetType | None = msgspec.UNSET
    steps: int | msgspec.UnsetType | None = msgspec.UNSET
    success_retention_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    error_retention_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    queued_max: int | msgspec.UnsetType | None = msgspec.UNSET


class ScriptRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What was deployed under a name.

    Attributes:
        script: the name.
        code_hash: of its newest code.
        created_ms, modified_ms: when first and last deployed.
        classes: name and class of each workflow that the code defines.
    """

    script: str
    code_hash: str
    created_ms: int
    modified_ms: int
    classes: list[tuple[str, str]]


class DeployedWorkflow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a deploy made of a workflow; `is_new`: it is on another version now."""

    record: WorkflowRecord
    is_new: bool


class Deployed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a deploy has done.

    Attributes:
        script: as it is now.
        workflows: those that are on its code now.
        left: workflows of the script whose class its code has no more; they stay as they were.
    """

    script: ScriptRecord
    workflows: list[DeployedWorkflow]
    left: list[str]


class AccountSnapshot(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All of an account that front ends cache. `workflows` is None if nothing is newer.

    Attributes:
        settings: what was set, by workflow uuid (the account's own: an empty one).
        creates_per_second: of an account, and of a workflow, that has set none.
        plane: where the account's calls go.
    """

    generation: int
    running_max: int
    workflows: list[WorkflowRecord] | None
    settings: dict[str, Settings] = {}
    creates_per_second: tuple[int, int] = (CREATES_PER_SECOND_MAX, CREATES_PER_SECOND_MAX)
    plane: PlaneInfo = ON_V2


class RateRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A front end's one call per second while creates come to it.

    Attributes:
        front_end: its id.
        seq: grows with each call; a stale one changes nothing.
        arrivals: creates that came since its last call, refused ones too, in thousandths per
            second, by workflow uuid.
        held: the leases that it obeys, by workflow uuid (the account's own: an empty one).
        admitted: how many creates it let in since its last call, by workflow uuid.
        room: how many more it may let in, by workflow uuid; without those that it does not know.
    """

    front_end: str
    seq: int
    arrivals: dict[str, int]
    held: dict[str, int]
    admitted: dict[str, int] = {}
    room: dict[str, int] = {}


class RateReply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A front end's leases.

    Attributes:
        seq: of the call that this answers.
        leases: creates per second in thousandths, by workflow uuid (the account's: an empty one).
        room: how many more creates it may let in, by workflow uuid; one that is left out stays.
        period_ms: when to call next.
    """

    seq: int
    leases: dict[str, int]
    room: dict[str, int]
    period_ms: int


class AccountInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An account as Identity knows it: id, name for people, when and by which request made.

    `made_on`: the control plane that it was made on; from V1 it may have moved since.
    """

    id: str
    name: str
    created_ms: int
    request_id: str = ""
    made_on: Plane = "v2"


class TokenRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A token, without its text.

    Attributes:
        id: its public part.
        account: whose data it reaches; `*`: everybody's.
        name: for people.
        scope: `read`, `write` or `admin`.
        digest: SHA-256 of its whole text.
        created_ms: when it was made.
        expires_ms: when it ends; 0: never.
        revoked_ms: when it was revoked; 0: it was not.
    """

    id: str
    account: str
    name: str
    scope: str
    digest: bytes
    created_ms: int
    expires_ms: int
    revoked_ms: int


class IdentitySnapshot(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All accounts and valid tokens; both None if nothing is newer than what the asker knows."""

    generation: int
    accounts: list[AccountInfo] | None
    tokens: list[TokenRecord] | None


class GatekeeperStatistics(msgspec.Struct, frozen=True):
    """How a Gatekeeper does.

    Attributes:
        running_max: the account's limit.
        ledger: upper bound of slots in use or leased.
        wanted: slots that holders could use, as last reported.
        holders, active: leases known; of those, not given back.
        calls, calls_per_second: in all; over the last seconds.
        slots_raised: slots added to targets, in all.
        period_ms: the cycle.
    """

    running_max: int
    ledger: int
    wanted: int
    holders: int
    active: int
    calls: int
    calls_per_second: float
    slots_raised: int
    period_ms: int


# Gatekeeper.cycle(request: CycleRequest) -> CycleReply
# Gatekeeper.lease_rates(request: RateRequest) -> RateReply
# Gatekeeper.set_rate(workflow_uuid: str, creates_per_second: int | None) -> None
# Gatekeeper.set_queue(workflow_uuid: str, queued_max: int | None) -> None
# Gatekeeper.set_spread(workflow_uuid: str, souschefs: int | None) -> None
# Gatekeeper.set_limit(running_max: int) -> None
# Gatekeeper.set_workflow(workflow_uuid: str, weight: int, running_max: int) -> None
# Gatekeeper.statistics() -> GatekeeperStatistics
# Account.put_script(script, code_hash, classes, take_over) -> Deployed
# Account.list_scripts() -> list[ScriptRecord]
# Account.register(name, class_name, script_name, change) -> DeployedWorkflow  (ScriptNotFound)
# Account.put_workflow(name, class_name, script_name, code_hash, take_over) -> WorkflowRecord
# Account.get_workflow(name) -> WorkflowRecord            (WorkflowNotFound)
# Account.list_versions(name) -> list[VersionRecord], oldest first
# Account.delete_workflow(name) -> WorkflowRecord         (the name is free again)
# Account.snapshot(known_generation: int) -> AccountSnapshot
# Account.set_limits(running_max: int) -> AccountSnapshot  (also told to the Gatekeeper, durably)
# Account.set_souschefs(name: str, souschefs: int | None) -> WorkflowRecord
# Account.spread(uuid: str, souschefs: int) -> None       (the Gatekeeper tells it)
# Account.set_workflow_limits(name, weight, running_max) -> WorkflowRecord  (told likewise)
# Account.change_limits(name: str | None, change: LimitsChange) -> AccountSnapshot
# Identity.snapshot(known_generation: int) -> IdentitySnapshot
# Identity.put_account(account, name, request_id, plane) -> AccountInfo
# Identity.ensure_account(account, plane: Plane | None) -> AccountInfo
# Identity.put_token(token_id, account, name, scope, digest, life_ms) -> TokenRecord
# Identity.revoke_token(account, token_id) -> None
