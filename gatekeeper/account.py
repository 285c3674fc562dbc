"""The Account: an account's small registry of workflows, versions, scripts and limits.

Each change raises the account's generation; front ends cache a snapshot and ask by generation.
It is asked on deploys, on changes of limits and on cache misses, never per instance. What the
Gatekeeper must know of a change is told through the outbox, in the same commit and in order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..runtime import limits
from ..runtime.errors import InvalidArgument, ScriptNotFound
from ..runtime.ids import EntityRef, check_workflow_name
from ..runtime.tables import Row, Table
from .adoption import ACCOUNT_PLANES, AdoptableRegistry
from .deploys import plan_deploy
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
    WorkflowRecord,
)
from .planes import commits_to_v2, never, requires
from .settings import ACCOUNT_ROW, NOTHING_SET, QUEUES, SETTINGS, SettingsBook, check_change
from .workflow_registry import (
    ACCOUNTS,
    FIXED_SPREADS,
    VERSIONS,
    WORKFLOWS,
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


class Account(AdoptableRegistry):
    """The registry of one account; its key is the account's id."""

    KIND = ACCOUNT_KIND
    REGISTRY = (ACCOUNTS, WORKFLOWS, FIXED_SPREADS, VERSIONS, SETTINGS, QUEUES, SCRIPTS)
    TABLES = (*REGISTRY, ACCOUNT_PLANES)

    def _load(self) -> None:
        super()._load()
        self._settings = SettingsBook(self.ctx)

    # --- scripts ----------------------------------------------------------------------------

    def _has_script(
        self, script: str, code_hash: str, classes: list[tuple[str, str]], take_over: bool
    ) -> bool:
        """Whether `put_script` would change nothing."""
        known = self._script(script)
        return (
            known is not None
            and (known.code_hash, known.classes) == (code_hash, classes)
            and all(self._has_workflow(name, each, script, code_hash) for name, each in classes)
        )

    @requires("v2")
    @commits_to_v2(_has_script)
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

    @requires("v2")
    @commits_to_v2(never)
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
        self._check_plane(change, of_workflow=True)
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

    @requires("v2")
    def list_scripts(self) -> list[ScriptRecord]:
        """All scripts, by name."""
        rows = self.ctx.scan(SCRIPTS, (self.ctx.ref.key,), limit=limits.SCRIPTS_PER_ACCOUNT_MAX)
        return [_script_of(row) for row in rows]

    def _script(self, name: str) -> ScriptRecord | None:
        row = self.ctx.get(SCRIPTS, (self.ctx.ref.key, name))
        return None if row is None else _script_of(row)

    @requires("v2")
    @commits_to_v2(never)
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
        self._fix_spread(record.uuid, None)
        clearing = EntityRef(CLEARING_KIND, f"{self.account}/{record.uuid}")
        self.ctx.tell(clearing, "begin", "delete", [], record.uuid)
        self._drop_unborn(record.uuid)
        self._next_generation()
        self.ctx.delete(WORKFLOWS, (key, name))
        del self._workflows[name]
        return record

    @requires("v2")
    @commits_to_v2(never)
    def set_souschefs(self, name: str, souschefs: int | None) -> WorkflowRecord:
        """Set over how many SousChefs new instances are spread; old ones stay where they are.

        None: the number follows the load, from the least on.

        Raises:
            WorkflowNotFound, InvalidArgument
        """
        if souschefs is not None and not 1 <= souschefs <= limits.SOUSCHEFS_PER_WORKFLOW_MAX:
            raise InvalidArgument(
                f"souschefs must be 1 to {limits.SOUSCHEFS_PER_WORKFLOW_MAX}, not {souschefs}."
            )
        record = self.get_workflow(name)
        is_auto = souschefs is None
        if record.souschefs_auto and is_auto:
            return record
        if souschefs is None:
            souschefs = self._env.souschefs
        if (record.souschefs, record.souschefs_auto) == (souschefs, is_auto):
            return record
        self._fix_spread(record.uuid, None if is_auto else souschefs)
        return self._change(record, souschefs=souschefs, souschefs_auto=is_auto)

    def _fix_spread(self, uuid: str, souschefs: int | None) -> None:
        """Note that the number was set (None: that it was not), and tell the Gatekeeper."""
        key = (self.ctx.ref.key, uuid)
        if souschefs is None:
            self.ctx.delete(FIXED_SPREADS, key)
        else:
            self.ctx.put(FIXED_SPREADS, key)
        self._tell_gatekeeper("set_spread", uuid, souschefs)

    def spread(self, uuid: str, souschefs: int) -> None:
        """The Gatekeeper tells over how many SousChefs a workflow's new instances go from now on.

        It may be late: the workflow is gone, or its number was set meanwhile.
        """
        record = next((r for r in self._workflows.values() if r.uuid == uuid), None)
        if record is not None and record.souschefs_auto and record.souschefs != souschefs:
            self._change(record, souschefs=souschefs)

    @requires("v2")
    @commits_to_v2(never)
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

    @requires("v2")
    def snapshot(self, known_generation: int) -> AccountSnapshot:
        """All that front ends cache; without the workflows if they know this generation."""
        if known_generation == self._generation:
            told = AccountSnapshot(self._generation, self._running_max, None)
            return msgspec.structs.replace(told, plane=self._planes.info)
        return self._snapshot()

    def _snapshot(self) -> AccountSnapshot:
        return AccountSnapshot(
            self._generation,
            self._running_max,
            list(self._workflows.values()),
            self._settings.all,
            self._env.creates_per_second,
            self._planes.info,
        )

    def _has_limit(self, name: str | None, change: LimitsChange) -> bool:
        """Whether `change_limits` would set the account's limit as it is, and nothing else."""
        return name is None and change == LimitsChange(running_max=self._running_max)

    @requires("v2")
    @commits_to_v2(_has_limit)
    def change_limits(self, name: str | None, change: LimitsChange) -> AccountSnapshot:
        """Change limits and settings of a workflow (None: of the account), all or none of them.

        Raises:
            WorkflowNotFound, InvalidArgument
        """
        record = None if name is None else self.get_workflow(name)
        check_change(change, of_workflow=record is not None)
        self._check_plane(change, of_workflow=record is not None)
        if record is not None:
            self._change_workflow_limits(record, change)
        elif change.running_max is not msgspec.UNSET:
            self.set_limits(_value(change.running_max, self._env.running_max))
        uuid = ACCOUNT_ROW if record is None else record.uuid
        if self._put_settings(uuid, self._settings.changed(uuid, change)):
            self._next_generation()
        return self._snapshot()

    def _change_workflow_limits(self, record: WorkflowRecord, change: LimitsChange) -> None:
        name = record.name
        if change.souschefs is not msgspec.UNSET:
            self.set_souschefs(name, change.souschefs)
        weight, most = record.weight, record.running_max
        if change.weight is not msgspec.UNSET:
            weight = _value(change.weight, 1)
        if change.running_max is not msgspec.UNSET:
            most = _value(change.running_max, 0)
        self.set_workflow_limits(name, weight, most)

    def _put_settings(self, uuid: str, settings: Settings) -> bool:
        """Set settings; the Gatekeeper is told of rates. Gives whether anything changed."""
        old = self._settings.get(uuid)
        if settings == old:
            return False
        if settings.creates_per_second != old.creates_per_second:
            self._tell_gatekeeper("set_rate", uuid, settings.creates_per_second)
        if settings.queued_max != old.queued_max:
            self._tell_gatekeeper("set_queue", uuid, settings.queued_max)
        self._settings.put(uuid, settings)
        return True

    @requires("v2")
    @commits_to_v2(lambda self, running_max: bool(running_max == self._running_max))
    def set_limits(self, running_max: int) -> AccountSnapshot:
        """Set how many instances of the account may run.

        Raises:
            InvalidArgument
        """
        if running_max < 0:
            raise InvalidArgument(f"running_max must be at least 0, not {running_max}.")
        if running_max != self._running_max:
            key = self.ctx.ref.key
            self._tell_gatekeeper("set_limit", running_max)
            self.ctx.put(ACCOUNTS, (key, self._generation + 1, running_max))
            self._generation += 1
            self._running_max = running_max
        return self._snapshot()

    # --- inside -----------------------------------------------------------------------------

    def _tell_workflow(self, uuid: str, weight: int, running_max: int) -> None:
        self._tell_gatekeeper("set_workflow", uuid, weight, running_max)

    def _tell_gatekeeper(self, method: str, *args: Any) -> None:
        self.ctx.tell(EntityRef(GATEKEEPER_KIND, self.account), method, *args)


def _script_of(row: Row) -> ScriptRecord:
    _, script, code_hash, created_ms, modified_ms, raw = row
    classes = msgspec.json.decode(raw, type=list[tuple[str, str]])
    return ScriptRecord(script, code_hash, created_ms, modified_ms, classes)


def _value(given: int | None, default: int) -> int:
    return default if given is None else given
