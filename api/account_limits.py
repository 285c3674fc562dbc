"""Limits of accounts and workflows: what they are, and changes of them, without transport.

The Account holds what was set; what was not set is told as its default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..gatekeeper.messages import (
    ACCOUNT_KIND,
    AccountSnapshot,
    LimitsChange,
    Settings,
    WorkflowRecord,
)
from ..gatekeeper.settings import ACCOUNT_ROW, NOTHING_SET
from ..runtime.errors import WorkflowNotFound
from ..runtime.ids import EntityRef, check_account_id, check_workflow_name
from .calls import Caller


class AccountLimits(NamedTuple):
    """An account's limits; `settings` holds what was set."""

    running_max: int
    creates_per_second: int
    settings: Settings
    generation: int


class WorkflowLimits(NamedTuple):
    """A workflow's limits; `settings` holds what was set."""

    record: WorkflowRecord
    creates_per_second: int
    settings: Settings


class LimitsAdmin:
    """The operations.

    Args:
        caller: for calls to Accounts.
        changed: told of the account of each change.
    """

    def __init__(self, caller: Caller, changed: Callable[[str], None]) -> None:
        self._caller = caller
        self._changed = changed

    async def of_account(self, account: str, change: LimitsChange | None = None) -> AccountLimits:
        """An account's limits, changed first if a change is given.

        Raises:
            InvalidArgument: and nothing was changed.
        """
        found = await self._asked(account, None, change)
        settings = found.settings.get(ACCOUNT_ROW, NOTHING_SET)
        rate = settings.creates_per_second
        return AccountLimits(
            found.running_max,
            found.creates_per_second[0] if rate is None else rate,
            settings,
            found.generation,
        )

    async def of_workflow(
        self, account: str, workflow: str, change: LimitsChange | None = None
    ) -> WorkflowLimits:
        """A workflow's limits, changed first if a change is given.

        Raises:
            WorkflowNotFound, InvalidArgument: and nothing was changed.
        """
        check_workflow_name(workflow)
        found = await self._asked(account, workflow, change)
        record = next((r for r in found.workflows or () if r.name == workflow), None)
        if record is None:
            raise WorkflowNotFound(f"there is no workflow {workflow!r}.", {"workflow": workflow})
        settings = found.settings.get(record.uuid, NOTHING_SET)
        rate = settings.creates_per_second
        return WorkflowLimits(
            record, found.creates_per_second[1] if rate is None else rate, settings
        )

    async def _asked(
        self, account: str, workflow: str | None, change: LimitsChange | None
    ) -> AccountSnapshot:
        check_account_id(account)
        ref = EntityRef(ACCOUNT_KIND, account)
        if change is None:
            return await self._caller.call(
                AccountSnapshot, self._caller.deadline(), ref, "snapshot", -1
            )
        found: AccountSnapshot = await self._caller.call(
            AccountSnapshot,
            self._caller.deadline(),
            ref,
            "change_limits",
            workflow,
            change,
            changes=True,
        )
        self._changed(account)
        return found
