"""The Account: an account's small registry of workflows, versions and limits.

Each change raises the account's generation; front ends cache a snapshot and ask by generation.
It is asked on deploys, on changes of limits and on cache misses, never per instance. What the
Gatekeeper must know of a change is told through the outbox, in the same commit and in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ..runtime import limits
from ..runtime.entity import Context, DurableObject
from ..runtime.errors import (
    InvalidArgument,
    ScriptNotFound,
    TooManyWorkflows,
    WorkflowNotFound,
)
from ..runtime.ids import EntityRef, check_workflow_name
from ..runtime.tables import Row, Table
from .deploys import check_owner, plan_deploy
from .messages import (
    ACCOUNT_KIND,
    CLEARING_KIND,
    GATEKEEPER_KIND,
    AccountSnapshot,
    Deployed,
    DeployedWorkflow,
    LimitsChange,
    ScriptRecord,
    Settings,
    VersionRecord,
    WorkflowRecord,
)
from .settings import ACCOUNT_ROW, NOTHING_SET, SETTINGS, SettingsBook, check_change

ACCOUNTS = Table(
    "accounts",
    (("entity", "TEXT"), ("generation", "INTEGER"), ("running_max", "INTEGER")),
    key_size=1,
)
WORKFLOWS = Table(
    "account_workflows",
    (
        ("entity", "TEXT"),
        ("name", "TEXT"),
        ("uuid", "TEXT"),
        ("class_name", "TEXT"),
        ("script_name", "TEXT"),
        ("version_id", "TEXT"),
        ("code_hash", "TEXT"),
        ("created_ms", "INTEGER"),
        ("modified_ms", "INTEGER"),
        ("souschefs", "INTEGER"),
        ("generation", "INTEGER"),
        ("weight", "INTEGER"),
        ("running_max", "INTEGER"),
    ),
    key_size=2,
)
VERSIONS = Table(
    "account_versions",
    (
        ("entity", "TEXT"),
        ("uuid", "TEXT"),
        ("number", "INTEGER"),
        ("version_id", "TEXT"),
        ("code_hash", "TEXT"),
        ("class_name", "TEXT"),
        ("script_name", "TEXT"),
        ("created_ms", "INTEGER"),
    ),
    key_size=3,
)

SCRIPTS = Table(
    "account_scripts",
    (
        ("entity", "TEXT"),
        ("script", "TEXT"),
        ("code_hash", "TEXT"),
        ("created_ms", "INTEGER"),
        ("modified_ms", "INTEGER"),
        ("classes", "BLOB"),
    ),
    key_size=2,
)


@dataclass(frozen=True)
class AccountEnv:
    """What the wiring gives an Account.

    Attributes:
        running_max: the limit of an account that has set none; the Gatekeeper's must be the same.
        souschefs: over how many SousChefs a new workflow is spread.
        creates_per_second: of an account, and of a workflow, that has set none; the Gatekeeper's
            must be the same.
    """

    running_max: int = limits.RUNNING_PER_ACCOUNT_DEFAULT
    souschefs: int = limits.SOUSCHEFS_PER_WORKFLOW_DEFAULT
    creates_per_second: tuple[int, int] = (
        limits.CREATES_PER_SECOND_MAX,
        limits.CREATES_PER_SECOND_MAX,
    )


class Account(DurableObject):
    """The registry of one account; its key is the account's id."""

    KIND = ACCOUNT_KIND
    TABLES = (ACCOUNTS, WORKFLOWS, VERSIONS, SETTINGS, SCRIPTS)

    def __init__(self, ctx: Context, env: AccountEnv | None) -> None:
        super().__init__(ctx, env)
        self._env = env or AccountEnv()
        key = ctx.ref.key
        row = ctx.get(ACCOUNTS, (key,))
        self._generation = row[1] if row else 0
        self._running_max = row[2] if row else self._env.running_max
        rows = ctx.scan(WORKFLOWS, (key,), limit=limits.WORKFLOWS_PER_ACCOUNT_MAX)
        self._workflows = {row[1]: WorkflowRecord(*row[1:]) for row in rows}
        self._settings = SettingsBook(ctx)

    # --- workflows --------------------------------------------------------------------------

    def put_workflow(
        self,
        name: str,
        class_name: str,
        script_name: str,
        code_hash: str,
        take_over: bool = False,
    ) -> WorkflowRecord:
        """Register a workflow, or deploy a new version of it.

        The same class, script and hash again change nothing. Another class or hash makes a new
        version.

        Raises:
            InvalidId: the name breaks its grammar.
            WorkflowOwned: the name belongs to another script and is not to be taken over.
            TooManyWorkflows: the account is full.
        """
        check_workflow_name(name)
        known = self._workflows.get(name)
        if known is None:
            return self._create(name, class_name, script_name, code_hash)
        if not take_over:
            check_owner(known, script_name)
        if (known.code_hash, known.class_name) == (code_hash, class_name):
            if known.script_name == script_name:
                return known
            return self._change(known, script_name=script_name)
        return self._change(
            known,
            class_name=class_name,
            script_name=script_name,
            version_id=self.ctx.entropy.new_id(),
            code_hash=code_hash,
            modified_ms=self.ctx.clock.now_ms(),
        )

    def _create(
        self, name: str, class_name: str, script_name: str, code_hash: str
    ) -> WorkflowRecord:
        if len(self._workflows) >= limits.WORKFLOWS_PER_ACCOUNT_MAX:
            raise TooManyWorkflows(
                f"account {self.ctx.ref.key!r} has {len(self._workflows)} workflows; delete one "
                f"before adding {name!r}.",
                {"max": limits.WORKFLOWS_PER_ACCOUNT_MAX},
            )
        now_ms = self.ctx.clock.now_ms()
        record = WorkflowRecord(
            name=name,
            uuid=self.ctx.entropy.new_id(),
            class_name=class_name,
            script_name=script_name,
            version_id=self.ctx.entropy.new_id(),
            code_hash=code_hash,
            created_ms=now_ms,
            modified_ms=now_ms,
            souschefs=self._env.souschefs,
            generation=self._next_generation(),
        )
        self._note_version(record)
        self._write(record)
        return record

    def get_workflow(self, name: str) -> WorkflowRecord:
        """The workflow of that name.

        Raises:
            WorkflowNotFound
        """
        record = self._workflows.get(name)
        if record is None:
            raise WorkflowNotFound(f"there is no workflow {name!r:.80}.", {"name": name[:80]})
        return record

    # --- scripts ----------------------------------------------------------------------------

    def put_script(
        self, script: str, code_hash: str, classes: list[tuple[str, str]], take_over: bool
    ) -> Deployed:
        """Deploy a script: all its workflows, in one commit; see `deploys`.

        Args:
            script: its name.
            code_hash: of its code, which is stored already.
            classes: name and class of each workflow that the code defines.
            take_over: names of other scripts become this one's.

        Raises:
            InvalidId, InvalidArgument, WorkflowOwned, TooManyWorkflows: nothing was changed.
        """
        plan = plan_deploy(self._workflows, script, classes, take_over)
        known = self._script(script)
        if known is None and len(self.list_scripts()) >= limits.SCRIPTS_PER_ACCOUNT_MAX:
            raise InvalidArgument(
                f"the account has {limits.SCRIPTS_PER_ACCOUNT_MAX} scripts; deploy under a name "
                "that it has."
            )
        done = []
        for name, class_name in plan.puts:
            known_version = self._version_of(name)
            record = self.put_workflow(name, class_name, script, code_hash, take_over=True)
            done.append(DeployedWorkflow(record, record.version_id != known_version))
        return Deployed(self._put_script(known, script, code_hash, classes), done, plan.left)

    def _put_script(
        self,
        known: ScriptRecord | None,
        script: str,
        code_hash: str,
        classes: list[tuple[str, str]],
    ) -> ScriptRecord:
        if known is not None and (known.code_hash, known.classes) == (code_hash, classes):
            return known
        now_ms = self.ctx.clock.now_ms()
        created_ms = known.created_ms if known is not None else now_ms
        raw = msgspec.json.encode(classes)
        self.ctx.put(SCRIPTS, (self.ctx.ref.key, script, code_hash, created_ms, now_ms, raw))
        return ScriptRecord(script, code_hash, created_ms, now_ms, classes)

    def _version_of(self, name: str) -> str:
        known = self._workflows.get(name)
        return known.version_id if known is not None else ""

    def register(
        self, name: str, class_name: str, script_name: str, change: LimitsChange
    ) -> DeployedWorkflow:
        """Give a class of a deployed script a workflow's name, whoever had that name.

        Args:
            name, class_name, script_name: which.
            change: of the workflow's limits, made with it.

        Raises:
            InvalidId: the name breaks its grammar.
            InvalidArgument: a limit is out of range.
            ScriptNotFound: there is no such script, or it has no such class.
            TooManyWorkflows: the account is full.
        """
        check_workflow_name(name)
        check_change(change, of_workflow=True)
        script = self._script(script_name)
        if script is None:
            raise ScriptNotFound(
                f"no script {script_name!r:.80} has been deployed to this account. Deploy its "
                "code first ('toque deploy'), then name its classes."
            )
        present = sorted({known for _, known in script.classes})
        if class_name not in present:
            raise ScriptNotFound(
                f"script {script_name!r} has no workflow class {class_name!r:.80}; it has "
                f"{', '.join(present)}."
            )
        before = self._version_of(name)
        record = self.put_workflow(name, class_name, script_name, script.code_hash, take_over=True)
        self.change_limits(name, change)
        return DeployedWorkflow(self.get_workflow(name), record.version_id != before)

    def list_scripts(self) -> list[ScriptRecord]:
        """All scripts, by name."""
        rows = self.ctx.scan(SCRIPTS, (self.ctx.ref.key,), limit=limits.SCRIPTS_PER_ACCOUNT_MAX)
        return [_script_of(row) for row in rows]

    def _script(self, name: str) -> ScriptRecord | None:
        row = self.ctx.get(SCRIPTS, (self.ctx.ref.key, name))
        return None if row is None else _script_of(row)

    def list_versions(self, name: str) -> list[VersionRecord]:
        """The versions of a workflow, oldest first (the newest SCAN_ROWS_MAX of them)."""
        prefix = (self.ctx.ref.key, self.get_workflow(name).uuid)
        rows = self.ctx.scan(VERSIONS, prefix, limit=limits.SCAN_ROWS_MAX, reverse=True)
        return [VersionRecord(*row[3:]) for row in reversed(rows)]

    def delete_workflow(self, name: str) -> WorkflowRecord:
        """Remove a workflow; the name is free again, the uuid is never used again.

        Its instances are deleted in the background (`souschef.clearing`), told in this commit.

        Raises:
            WorkflowNotFound
        """
        record = self.get_workflow(name)
        key = self.ctx.ref.key
        while rows := self.ctx.scan(VERSIONS, (key, record.uuid), limit=limits.SCAN_ROWS_MAX):
            for row in rows:
                self.ctx.delete(VERSIONS, row[:3])
        if record.weight != 1 or record.running_max:
            self._tell_workflow(record.uuid, 1, 0)
        self._put_settings(record.uuid, NOTHING_SET)
        clearing = EntityRef(CLEARING_KIND, f"{key}/{record.uuid}")
        self.ctx.tell(clearing, "begin", "delete", [], record.uuid)
        self._next_generation()
        self.ctx.delete(WORKFLOWS, (key, name))
        del self._workflows[name]
        return record

    def set_souschefs(self, name: str, souschefs: int) -> WorkflowRecord:
        """Set over how many SousChefs new instances are spread; old ones stay where they are.

        Raises:
            WorkflowNotFound, InvalidArgument
        """
        if not 1 <= souschefs <= limits.SOUSCHEFS_PER_WORKFLOW_MAX:
            raise InvalidArgument(
                f"souschefs must be 1 to {limits.SOUSCHEFS_PER_WORKFLOW_MAX}, not {souschefs}."
            )
        record = self.get_workflow(name)
        return (
            record if record.souschefs == souschefs else self._change(record, souschefs=souschefs)
        )

    def set_workflow_limits(self, name: str, weight: int, running_max: int) -> WorkflowRecord:
        """Set a workflow's weight (1: as all others) and limit (0: only the account's).

        Raises:
            WorkflowNotFound, InvalidArgument
        """
        if not 1 <= weight <= limits.WORKFLOW_WEIGHT_MAX or running_max < 0:
            raise InvalidArgument(
                f"a weight is 1 to {limits.WORKFLOW_WEIGHT_MAX} and a limit at least 0, "
                f"not {weight} and {running_max}."
            )
        record = self.get_workflow(name)
        if (record.weight, record.running_max) == (weight, running_max):
            return record
        self._tell_workflow(record.uuid, weight, running_max)
        return self._change(record, weight=weight, running_max=running_max)

    # --- the account ------------------------------------------------------------------------

    def snapshot(self, known_generation: int) -> AccountSnapshot:
        """All that front ends cache; without the workflows if they know this generation."""
        if known_generation == self._generation:
            return AccountSnapshot(self._generation, self._running_max, None)
        return self._snapshot()

    def _snapshot(self) -> AccountSnapshot:
        return AccountSnapshot(
            self._generation,
            self._running_max,
            list(self._workflows.values()),
            self._settings.all,
            self._env.creates_per_second,
        )

    def change_limits(self, name: str | None, change: LimitsChange) -> AccountSnapshot:
        """Change limits and settings of a workflow (None: of the account), all or none of them.

        Raises:
            WorkflowNotFound, InvalidArgument
        """
        record = None if name is None else self.get_workflow(name)
        check_change(change, of_workflow=record is not None)
        if record is not None:
            self._change_workflow_limits(record, change)
        elif change.running_max is not msgspec.UNSET:
            self.set_limits(change.running_max)
        uuid = ACCOUNT_ROW if record is None else record.uuid
        if self._put_settings(uuid, self._settings.changed(uuid, change)):
            self._next_generation()
        return self._snapshot()

    def _change_workflow_limits(self, record: WorkflowRecord, change: LimitsChange) -> None:
        name = record.name
        if change.souschefs is not msgspec.UNSET:
            self.set_souschefs(name, change.souschefs)
        weight = record.weight if change.weight is msgspec.UNSET else change.weight
        most = record.running_max if change.running_max is msgspec.UNSET else change.running_max
        self.set_workflow_limits(name, weight, most)

    def _put_settings(self, uuid: str, settings: Settings) -> bool:
        """Set settings; the Gatekeeper is told of rates. Gives whether anything changed."""
        old = self._settings.get(uuid)
        if settings == old:
            return False
        if settings.creates_per_second != old.creates_per_second:
            gatekeeper = EntityRef(GATEKEEPER_KIND, self.ctx.ref.key)
            self.ctx.tell(gatekeeper, "set_rate", uuid, settings.creates_per_second)
        self._settings.put(uuid, settings)
        return True

    def set_limits(self, running_max: int) -> AccountSnapshot:
        """Set how many instances of the account may run.

        Raises:
            InvalidArgument
        """
        if running_max < 0:
            raise InvalidArgument(f"running_max must be at least 0, not {running_max}.")
        if running_max != self._running_max:
            key = self.ctx.ref.key
            self.ctx.tell(EntityRef(GATEKEEPER_KIND, key), "set_limit", running_max)
            self.ctx.put(ACCOUNTS, (key, self._generation + 1, running_max))
            self._generation += 1
            self._running_max = running_max
        return self._snapshot()

    # --- inside -----------------------------------------------------------------------------

    def _change(self, record: WorkflowRecord, **changes: Any) -> WorkflowRecord:
        values = {name: getattr(record, name) for name in record.__struct_fields__}
        changed = WorkflowRecord(**{**values, **changes, "generation": self._next_generation()})
        if changed.version_id != record.version_id:
            self._note_version(changed)
        self._write(changed)
        return changed

    def _next_generation(self) -> int:
        self.ctx.put(ACCOUNTS, (self.ctx.ref.key, self._generation + 1, self._running_max))
        self._generation += 1
        return self._generation

    def _write(self, record: WorkflowRecord) -> None:
        values = [getattr(record, name) for name in record.__struct_fields__]
        self.ctx.put(WORKFLOWS, (self.ctx.ref.key, *values))
        self._workflows[record.name] = record

    def _note_version(self, record: WorkflowRecord) -> None:
        prefix = (self.ctx.ref.key, record.uuid)
        newest = self.ctx.scan(VERSIONS, prefix, limit=1, reverse=True)
        number = newest[0][2] + 1 if newest else 1
        self.ctx.put(
            VERSIONS,
            (
                *prefix,
                number,
                record.version_id,
                record.code_hash,
                record.class_name,
                record.script_name,
                record.modified_ms,
            ),
        )

    def _tell_workflow(self, uuid: str, weight: int, running_max: int) -> None:
        gatekeeper = EntityRef(GATEKEEPER_KIND, self.ctx.ref.key)
        self.ctx.tell(gatekeeper, "set_workflow", uuid, weight, running_max)


def _script_of(row: Row) -> ScriptRecord:
    _, script, code_hash, created_ms, modified_ms, raw = row
    classes = msgspec.json.decode(raw, type=list[tuple[str, str]])
    return ScriptRecord(script, code_hash, created_ms, modified_ms, classes)
