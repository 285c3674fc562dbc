"""Moving accounts from V1 to V2: the operations, without transport.

Each is one call to the account's `Migration`, which does all the work and survives whoever asked.
"""

from __future__ import annotations

from ..migration.messages import MIGRATION_KIND, MigrationPlan, MigrationStatus
from ..runtime.entropy import Entropy
from ..runtime.ids import EntityRef, check_account_id
from .accounts import Accounts
from .calls import Caller

CHANGES = ("pause", "resume", "abort")


class Migrations:
    """The operations. All raise `AccountNotFound` of an account that is none.

    Args:
        caller: for calls to Migrations.
        accounts: which there are.
        entropy: request ids.
    """

    def __init__(self, caller: Caller, accounts: Accounts, entropy: Entropy) -> None:
        self._caller = caller
        self._accounts = accounts
        self._entropy = entropy

    async def plan(self, account: str) -> MigrationPlan:
        """What a move would do, and what speaks against it. Changes nothing."""
        ref = await self._of(account)
        found: MigrationPlan = await self._caller.call(
            MigrationPlan, self._caller.deadline(), ref, "plan"
        )
        return found

    async def status(self, account: str) -> MigrationStatus:
        """How the account's last migration stands."""
        ref = await self._of(account)
        found: MigrationStatus = await self._caller.call(
            MigrationStatus, self._caller.deadline(), ref, "status"
        )
        return found

    async def start(
        self, account: str, *, in_ms: int = 0, request_id: str | None = None
    ) -> MigrationStatus:
        """Begin to move an account, now or after a while.

        Raises:
            MigrationRefused: something speaks against it.
            MigrationUnderWay: another request has begun it.
            InvalidArgument: `in_ms` is out of range.
        """
        ref = await self._of(account)
        request_id = request_id or self._entropy.new_id()
        return await self._changed(ref, "start", request_id, in_ms)

    async def change(
        self, account: str, change: str, *, request_id: str | None = None
    ) -> MigrationStatus:
        """Pause, resume or abort it (one of CHANGES).

        Raises:
            MigrationNotFound: none was ever begun.
            AbortRefused: V2 has taken creates.
        """
        assert change in CHANGES, change
        request_id = request_id or self._entropy.new_id()
        return await self._changed(await self._of(account), change, request_id)

    async def _changed(self, ref: EntityRef, method: str, *args: object) -> MigrationStatus:
        found: MigrationStatus = await self._caller.call(
            MigrationStatus, self._caller.deadline(), ref, method, *args, changes=True
        )
        return found

    async def _of(self, account: str) -> EntityRef:
        check_account_id(account)
        await self._accounts.get_account(account)
        return EntityRef(MIGRATION_KIND, account)
