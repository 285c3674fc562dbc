"""The registry part of AccountOld: the logic of Account over AccountOld's own rows.

What V1 never had is refused: weights, SousChefs, and limits of a workflow. Nothing is told to a
Gatekeeper, which the account does not have yet.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..gatekeeper.account import Account
from ..gatekeeper.messages import LimitsChange, WorkflowRecord
from ..gatekeeper.planes import PlaneUnsupported

NEEDS_V2 = ("weight", "souschefs", "creates_per_second", "queued_max")


class OldRegistry(Account):
    """See the module. It is no entity: AccountOld holds one, with its own context."""

    KIND = "OldRegistry"

    @property
    def running_max(self) -> int:
        """The account's limit."""
        return self._running_max

    def has(self, uuid: str) -> bool:
        """Whether a workflow of that uuid is registered."""
        return any(record.uuid == uuid for record in self._workflows.values())

    def set_souschefs(self, name: str, souschefs: int | None) -> WorkflowRecord:
        """On V1 a workflow has none of its own."""
        if souschefs is not None:
            self._refuse("souschefs", of_workflow=True)
        return self.get_workflow(name)

    def _check_plane(self, change: LimitsChange, *, of_workflow: bool) -> None:
        fields = (*NEEDS_V2, "running_max") if of_workflow else NEEDS_V2
        for field in fields:
            value = getattr(change, field)
            if value is not msgspec.UNSET and value is not None:
                self._refuse(field, of_workflow=of_workflow)

    def _refuse(self, field: str, *, of_workflow: bool) -> None:
        whose = "a workflow's" if of_workflow else "the account's"
        late = field == "running_max"  # see `adoption.AdoptableRegistry._check_plane`
        raise PlaneUnsupported(
            f"account {self.account!r} is on control plane V1, where {whose} {field} can't be set; "
            "move it to V2 first ('toque migrate')"
            + (", and set it when the migration is retired." if late else "."),
            {"account": self.account, "field": field},
        )

    def _tell_gatekeeper(self, method: str, *args: Any) -> None:
        """There is none."""
