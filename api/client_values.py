"""What the client gives back: instances, steps, workflows, as values.

Frozen; made from the server's JSON. Times are ISO 8601 texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, TypeVar

import msgspec

from ..engines.durations import Duration
from ..engines.failures import PayloadMismatch
from ..runtime.codec import convert_plain, decode_json, type_name
from ..runtime.errors import ToqueError
from .listing import FINAL_STATUSES

T = TypeVar("T")


class InstanceError(msgspec.Struct, frozen=True):
    """Why an instance, a step or an attempt failed.

    Attributes:
        data: the details that it carried.
        at: where it was raised, as lines like `orders.py:41 in charge`, oldest call first; empty
            if no code of the workflow raised it.
    """

    name: str
    message: str
    data: Any = None
    at: tuple[str, ...] = ()


class StepAttempt(msgspec.Struct, frozen=True):
    """One attempt of a step."""

    start: str
    end: str | None
    success: bool | None
    error: InstanceError | None


class StepStatus(msgspec.Struct, frozen=True):
    """A step, sleep or wait of an instance.

    Attributes:
        type: `step`, `sleep`, `waitForEvent`, `rollback`, `startChild`, `child` (a wait for one's
            end), or `termination`: the instance was terminated or cancelled; then `trigger` says
            what asked for it.
        name: its public name, `name-<n>`.
        end: for an open sleep or wait, when it is to end.
        success: for steps and rollbacks; None while open.
        finished: for sleeps and waits.
        child: of `startChild` and `child`, `workflow` and `id` of the child.
    """

    type: str
    name: str
    start: str
    end: str | None = None
    success: bool | None = None
    finished: bool | None = None
    output: Any = None
    error: InstanceError | None = None
    attempts: list[StepAttempt] = []
    attempts_total: int = 0
    config: dict[str, Any] | None = None
    retry_at: str | None = None
    event_type: str | None = None
    interruptions: int = 0
    trigger: dict[str, Any] | None = None
    child: dict[str, Any] | None = None


class ParentInstance(msgspec.Struct, frozen=True):
    """The instance that started another one: its workflow, its id, and its run then.

    `on_parent_end` is what becomes of the child when that run ends: `cancel`, `terminate` or
    `abandon`.
    """

    workflow: str
    id: str
    run_id: str = ""
    on_parent_end: str = ""


class RollbackStatus(msgspec.Struct, frozen=True):
    """How a rollback ended: `complete` or `failed`, and why."""

    outcome: str
    error: InstanceError | None = None


class InstanceStatus(msgspec.Struct, frozen=True):
    """How an instance stands.

    Attributes:
        status: see `toque.api.listing.STATUSES`.
        output: what `run` returned, once complete.
        error: once errored or terminated.
        steps: empty unless asked for.
        continued: how many runs ended by `step.continue_as_new` before this one.
        parent: the instance that started it, if a workflow did.
    """

    id: str
    status: str
    output: Any = None
    error: InstanceError | None = None
    success: bool | None = None
    params: Any = None
    run_id: str = ""
    version_id: str = msgspec.field(name="versionId", default="")
    start: str | None = None
    end: str | None = None
    created_on: str = ""
    step_count: int = 0
    steps: list[StepStatus] = []
    code_changed: bool = False
    continued: int = 0
    rollback: RollbackStatus | None = None
    parent: ParentInstance | None = None

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.status in FINAL_STATUSES

    def output_as(self, expected: type[T]) -> T:
        """The output as a dataclass, model, datetime or other typed value.

        Raises:
            PayloadMismatch: it does not fit.
        """
        try:
            value: T = convert_plain(self.output, expected)
        except Exception as error:
            raise PayloadMismatch(
                f"the output of instance {self.id!r} does not fit {type_name(expected)}: {error}"
            ) from None
        return value


class CreatedStatus(InstanceStatus, frozen=True):
    """An `InstanceStatus` as the answer to a create tells it."""

    version_id: str = msgspec.field(name="version_id", default="")


def created_status(made: InstanceStatus, params: bytes) -> InstanceStatus:
    """The status of an instance that was made with these params, which no answer repeats."""
    given = {name: getattr(made, name) for name in InstanceStatus.__struct_fields__}
    return InstanceStatus(**{**given, "params": decode_json(params)})


class StepOutputStatus(msgspec.Struct, frozen=True):
    """What a step gave; `output` is not cut."""

    status: str
    error: InstanceError | None = None
    output: Any = None
    event_type: str | None = None


class InstanceLine(msgspec.Struct, frozen=True, gc=False):
    """A line of a list of instances."""

    id: str
    status: str
    created_on: str
    started_on: str | None
    ended_on: str | None
    modified_on: str
    version_id: str
    workflow_id: str
    trigger_source: str


class WorkflowSummary(msgspec.Struct, frozen=True):
    """A workflow and how many instances it has, by status."""

    id: str
    name: str
    class_name: str
    script_name: str
    created_on: str
    modified_on: str
    instances: dict[str, int]
    version_id: str


class LinePage(msgspec.Struct, frozen=True):
    """A page of a list; `cursor` is None at the end."""

    lines: list[InstanceLine]
    cursor: str | None


# --- calls and batches ---


class CallOptions(NamedTuple):
    """How long calls may take; None: as the backend is set.

    Attributes:
        timeout_s: the whole call, with its repeats.
        retry_for_s: how long it is repeated while the server can't take it.
    """

    timeout_s: float | None = None
    retry_for_s: float | None = None


class InstanceSpec(TypedDict, total=False):
    """One of many instances to create; see `Client.create_instance`."""

    id: str | None
    params: Any
    retention: tuple[Duration, Duration] | None


@dataclass(frozen=True, slots=True)
class CreateResult:
    """What became of one of many creates.

    Attributes:
        index: its place among those that were given, from 0.
        id: its id; empty if one was to be made and none was.
        outcome: `created`; `duplicate`: the id is in use, nothing was changed; `failed`: refused,
            not made; `unknown`: no answer came, it may have been made.
        error: of `failed` and `unknown`.
    """

    index: int
    id: str
    outcome: str
    error: ToqueError | None = None


class CreateProgress(NamedTuple):
    """How far many creates are.

    Attributes:
        total: how many there are; None if that shows at the end only.
    """

    created: int
    duplicates: int
    failed: int
    total: int | None

    @property
    def done(self) -> int:
        """How many have an outcome."""
        return self.created + self.duplicates + self.failed


# --- accounts, tokens, limits, versions ---


class WhoAmI(msgspec.Struct, frozen=True):
    """Whom a token stands for. `account` is `*` for an operator, `scope` read, write or admin."""

    account: str
    scope: str
    token_id: str = ""
    name: str = ""


class Account(msgspec.Struct, frozen=True):
    """An account: a tenant with workflows, limits and tokens of its own.

    Attributes:
        control_plane: `v1`, `v2`, or `moving` from one to the other; None: that can't be told
            just now.
    """

    id: str
    name: str = ""
    created_on: str | None = None
    control_plane: str | None = None


class Token(msgspec.Struct, frozen=True):
    """A token, without its secret."""

    id: str
    name: str
    account: str
    scope: str
    created_on: str = ""
    expires_on: str | None = None


class NewToken(Token, frozen=True):
    """A token that was just made; `token` is its text, which is shown this once."""

    token: str = ""

    def __repr__(self) -> str:
        return f"NewToken({self.id!r}, {self.name!r}, {self.account!r}, {self.scope!r})"


class AccountLimits(msgspec.Struct, frozen=True):
    """An account's limits. Retention in milliseconds; None: the server's default."""

    running_max: int
    creates_per_second: int
    success_retention: int | None = None
    error_retention: int | None = None
    generation: int = 0


class WorkflowLimits(msgspec.Struct, frozen=True):
    """A workflow's limits; `running_max` 0: the account's only. Retention in milliseconds.

    None: as its account, its code or the server has it. `souschefs` is how many there are now;
    `souschefs_auto`: the number follows the load.
    """

    running_max: int
    weight: int
    creates_per_second: int
    souschefs: int | None = None
    steps: int | None = None
    success_retention: int | None = None
    error_retention: int | None = None
    queued_max: int | None = None
    souschefs_auto: bool | None = None


class OldInstances(msgspec.Struct, frozen=True):
    """The instances that V1 has made, by how they stand. `running`: they hold a slot.

    `unborn` are queued and have no Engine yet; they are not in `queued`.
    """

    unborn: int = 0
    queued: int = 0
    running: int = 0
    waiting: int = 0
    paused: int = 0
    ended: int | None = None

    @property
    def live(self) -> int:
        """How many have not ended."""
        return self.unborn + self.queued + self.running + self.waiting + self.paused


class MigrationState(msgspec.Struct, frozen=True):
    """A state that a migration has reached, and when."""

    state: str
    since: str = ""


class Migration(msgspec.Struct, frozen=True):
    """How the move of an account from V1 to V2 stands.

    Attributes:
        state: `none` if there was none, else see docs/migration.md.
        plane: where the account is; None: V1 does not answer just now.
        paused, holds: it is to stand still; it does.
        starts_on: when it begins, if that was put off.
        states: those that it has reached, and when.
        at_freeze, instances: V1's instances as they were then, and as they are now.
        trouble: why the last try failed.
        abortable, final: whether it can be aborted, and why not.
    """

    account: str
    state: str
    migration_id: str | None = None
    plane: str | None = None
    paused: bool = False
    holds: bool = False
    starts_on: str | None = None
    states: list[MigrationState] = []
    at_freeze: OldInstances | None = None
    instances: OldInstances | None = None
    trouble: str | None = None
    abortable: bool = False
    final: str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing follows any more."""
        return self.state in ("none", "retired", "aborted")


class MigrationPlan(msgspec.Struct, frozen=True):
    """What a move from V1 to V2 would do. With `objections` it would be refused."""

    account: str
    possible: bool
    plane: str | None = None
    objections: list[str] = []
    steps: list[str] = []
    instances: OldInstances | None = None
    workflows: int = 0
    scripts: int = 0
    running_max_before: int = 0
    running_max_after: int = 0


class DeployedWorkflow(msgspec.Struct, frozen=True):
    """A workflow of a deployed script; `is_new`: this deploy made a new version of it."""

    name: str
    class_name: str = ""
    version_id: str = ""
    id: str = ""
    is_new: bool = False


class Script(msgspec.Struct, frozen=True):
    """A deployed script and its workflows; `modified_on`: when its newest code came.

    `left`: after a deploy, workflows of the script that its code does not define any more; they
    stay on the code that did.
    """

    script: str
    code_hash: str
    workflows: list[DeployedWorkflow] = []
    created_on: str = ""
    left: list[str] = []
    modified_on: str = ""


class Version(msgspec.Struct, frozen=True):
    """A version of a workflow."""

    id: str
    class_name: str = ""
    created_on: str = ""
    modified_on: str = ""
    workflow_id: str = ""
    has_dag: bool = False
