"""The workflows of an account and their versions: the part of `Account` that keeps them.

Each change raises the account's generation. A name that is deleted is free again; the uuid behind
it, which all else goes by, is never used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ..runtime import limits
from ..runtime.entity import Context, DurableObject
from ..runtime.errors import TooManyWorkflows, WorkflowNotFound
from ..runtime.ids import check_workflow_name
from ..runtime.tables import Table, every_row
from .deploys import check_owner
from .messages import VersionRecord, WorkflowRecord
from .planes import Plane, commits_to_v2, requires

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
FIXED_SPREADS = Table("account_fixed_spreads", (("entity", "TEXT"), ("uuid", "TEXT")), key_size=2)
"""The workflows whose number of SousChefs was set; others' follow their load."""
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


@dataclass(frozen=True)
class AccountEnv:
    """What the wiring gives an Account.

    Attributes:
        running_max: the limit of an account that has set none; the Gatekeeper's must be the same.
        souschefs: over how many SousChefs a new workflow is spread at first.
        creates_per_second: of an account, and of a workflow, that has set none; the Gatekeeper's
            must be the same.
    """

    running_max: int = limits.RUNNING_PER_ACCOUNT_DEFAULT
    souschefs: int = limits.SOUSCHEFS_PER_WORKFLOW_DEFAULT
    creates_per_second: tuple[int, int] = (
        limits.CREATES_PER_SECOND_MAX,
        limits.CREATES_PER_SECOND_MAX,
    )


class WorkflowRegistry(DurableObject):
    """See the module's description; its key begins with the account's id."""

    _env: AccountEnv

    def __init__(self, ctx: Context, env: AccountEnv | None) -> None:
        super().__init__(ctx, env)
        self._env = env or AccountEnv()
        self._load()

    @property
    def plane(self) -> Plane:
        """Where the account is, as this entity knows; see `planes.requires`."""
        return "v2"

    @property
    def _is_settled(self) -> bool:
        """Whether the account can't go back to V1; see `planes.commits_to_v2`."""
        return True

    async def _settle(self) -> None:
        """Return when it can't."""

    @property
    def account(self) -> str:
        """The account's id."""
        return self.ctx.ref.key.split("/", 1)[0]

    def _load(self) -> None:
        """Read the rows."""
        ctx = self.ctx
        key = ctx.ref.key
        row = ctx.get(ACCOUNTS, (key,))
        self._generation = row[1] if row else 0
        self._running_max = row[2] if row else self._env.running_max
        is_fixed = {uuid for _, uuid in every_row(ctx, FIXED_SPREADS, (key,))}
        known = (WorkflowRecord(*row[1:]) for row in every_row(ctx, WORKFLOWS, (key,)))
        self._workflows = {
            record.name: msgspec.structs.replace(record, souschefs_auto=record.uuid not in is_fixed)
            for record in known
        }

    def _has_workflow(
        self,
        name: str,
        class_name: str,
        script_name: str,
        code_hash: str,
        take_over: bool = False,
    ) -> bool:
        """Whether `put_workflow` would change nothing."""
        known = self._workflows.get(name)
        wanted = (class_name, script_name, code_hash)
        return known is not None and wanted == (
            known.class_name, known.script_name, known.code_hash,
        )  # fmt: skip

    @requires("v2")
    @commits_to_v2(_has_workflow)
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
                f"account {self.account!r} has {len(self._workflows)} workflows; delete one "
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

    @requires("v2")
    def get_workflow(self, name: str) -> WorkflowRecord:
        """The workflow of that name.

        Raises:
            WorkflowNotFound
        """
        record = self._workflows.get(name)
        if record is None:
            raise WorkflowNotFound(f"there is no workflow {name!r:.80}.", {"name": name[:80]})
        return record

    @requires("v2")
    def list_versions(self, name: str) -> list[VersionRecord]:
        """The versions of a workflow, oldest first (the newest SCAN_ROWS_MAX of them)."""
        prefix = (self.ctx.ref.key, self.get_workflow(name).uuid)
        rows = self.ctx.scan(VERSIONS, prefix, limit=limits.SCAN_ROWS_MAX, reverse=True)
        return [VersionRecord(*row[3:]) for row in reversed(rows)]

    # --- inside -----------------------------------------------------------------------------

    def _version_of(self, name: str) -> str:
        known = self._workflows.get(name)
        return known.version_id if known is not None else ""

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
        *values, _ = msgspec.structs.astuple(record)  # `souschefs_auto` has a table of its own
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
