"""The Account's part in a cut-over: it takes over the registry that AccountOld kept.

Below `account`. An account that was made on V1 has a row that says so before anybody can use it;
until it is adopted all its registry's methods are refused (`planes.requires`). Rows come over in
parts; only when all are here may it be adopted, in one commit. What was given up is deleted before
anything else comes over.

While the account heals it may still go back. A change of the registry ends that first, durably:
what was acknowledged here is never taken back.
"""

from __future__ import annotations

from typing import ClassVar

from ..runtime.entity import Context
from ..runtime.errors import InvalidArgument
from ..runtime.ids import EntityRef, old_account
from ..runtime.tables import Table
from .handover import (
    ALL_ROWS,
    NO_ROWS,
    SOME_ROWS,
    PlaneBook,
    RegistryPart,
    clear_rows,
    plane_table,
    write_part,
)
from .messages import GATEKEEPER_KIND, LimitsChange
from .planes import Plane, PlaneUnsupported, StaleMigration
from .refusals import AccountAlreadyExists
from .workflow_registry import AccountEnv, WorkflowRegistry

ACCOUNT_PLANES = plane_table("account_planes")


class AdoptableRegistry(WorkflowRegistry):
    """See the module's description.

    Attributes:
        REGISTRY: the tables that come over.
    """

    REGISTRY: ClassVar[tuple[Table, ...]] = ()

    def __init__(self, ctx: Context, env: AccountEnv | None) -> None:
        self._planes = PlaneBook(ctx, ACCOUNT_PLANES)
        self._settled = False
        super().__init__(ctx, env)

    @property
    def plane(self) -> Plane:
        """Where the account is."""
        return self._planes.state.plane

    @property
    def _is_settled(self) -> bool:
        """Whether the account can't go back to V1: once healed it can't."""
        return self._settled or not self._planes.state.healing

    async def _settle(self) -> None:
        """Have AccountOld note that V2 changes something, so that nothing is lost by an abort.

        Raises:
            WrongControlPlane: the account is back on V1, or not yet on V2.
        """
        await self.ctx.call(old_account(self.account), "ask", "", True)
        self._settled = True

    def set_plane(self, plane: str) -> None:
        """Make a new account one of V1. Again, or after it has moved, it changes nothing.

        Raises:
            InvalidArgument: `plane` is not `v1`.
            AccountAlreadyExists: the account has been used on V2.
        """
        if plane != "v1":
            raise InvalidArgument(
                f"an account is made on V2 unless it is set to 'v1', not to {plane!r:.20}; 'toque "
                "migrate' moves one from V1 to V2."
            )
        if self.plane == "v1" or self._planes.state.migration_id:
            return
        if any(self.ctx.scan(table, (self.ctx.ref.key,), limit=1) for table in self.REGISTRY):
            raise AccountAlreadyExists(
                f"account {self.account!r} is in use on control plane V2 and stays there; make "
                "another account on V1."
            )
        self._planes.write(plane="v1")
        self.ctx.tell(EntityRef(GATEKEEPER_KIND, self.account), "set_plane", plane)

    async def adopt_part(self, migration_id: str, part: RegistryPart) -> None:
        """Take over rows of the registry.

        Raises:
            StaleMigration
        """
        if self._planes.is_adopted_by(migration_id):
            return
        state = self._planes.state
        if state.rows and state.migration_id != migration_id:
            await self.ctx.block_concurrency_while(self._clear)
        state = self._planes.state
        rows = ALL_ROWS if part.after is None else max(state.rows, SOME_ROWS)
        self._planes.write(migration_id=migration_id, rows=rows)
        write_part(self.ctx, self.REGISTRY, part)

    def adopt(self, migration_id: str) -> None:
        """Serve the account from now on; its instances heal.

        Raises:
            StaleMigration: another migration has it, or the registry is not here as a whole.
        """
        if self._planes.is_adopted_by(migration_id):
            return
        state = self._planes.state
        if state.rows != ALL_ROWS or state.migration_id != migration_id:
            raise StaleMigration(
                f"migration {migration_id!r:.80} of account {self.account!r} can't go on: its "
                "registry has not come over as a whole.",
                {"account": self.account, "migration_id": migration_id, "reason": "no registry"},
            )
        self._planes.write(plane="v2", healing=True, from_v1=True)
        self._settled = False
        self._load()

    def healed(self, migration_id: str) -> None:
        """No instance is left without an Engine: front ends need to ask AccountOld no more.

        Raises:
            StaleMigration
        """
        self._planes.check_current(migration_id)
        if self._planes.state.healing:
            self._planes.write(healing=False)

    def retired(self, migration_id: str) -> None:
        """No instance of V1 is left.

        Raises:
            StaleMigration
        """
        self._planes.check_current(migration_id)
        if self._planes.state.from_v1:
            self._planes.write(healing=False, from_v1=False)

    async def abandon(self, migration_id: str) -> None:
        """The migration was given up: nothing of it was ever here."""
        state = self._planes.state
        if state.migration_id != migration_id:
            self._planes.give_up(migration_id)
            return
        self._planes.give_up(migration_id, plane="v1", healing=False, from_v1=False)
        if state.rows:
            await self.ctx.block_concurrency_while(self._clear)

    async def _clear(self) -> None:
        await clear_rows(self.ctx, self.REGISTRY)
        self._planes.write(migration_id="", rows=NO_ROWS)
        self._load()

    def _drop_unborn(self, uuid: str) -> None:
        """A workflow is deleted: who has no Engine gets none."""
        if self._planes.state.healing:
            self.ctx.tell(old_account(self.account), "drop_unborn", uuid)

    def _check_plane(self, change: LimitsChange, *, of_workflow: bool) -> None:
        """Refuse what can't hold while instances of V1 are left (`PlaneUnsupported`)."""
        is_set = isinstance(change.running_max, int) and change.running_max > 0
        if of_workflow and is_set and self._planes.state.from_v1:
            raise PlaneUnsupported(
                f"account {self.account!r} came from control plane V1, and instances that were "
                "made there count for the account, not for their workflow, for as long as they "
                "are kept. Set a workflow's running_max when the migration is retired ('toque "
                "migrate status'): when the last of them is over its retention, or was deleted. "
                "Until then the account's running_max and weights of workflows hold.",
                {"account": self.account, "field": "running_max"},
            )
