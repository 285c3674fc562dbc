"""Deliberate bugs in the move of an account from V1 to V2; see `sabotage`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from toque.api.planes import Planes
from toque.gatekeeper.gatekeeper import Gatekeeper
from toque.migration.account_old import AccountOld
from toque.migration.messages import Frozen, old_key
from toque.migration.old_moves import MovingAccount

Bug = tuple[Any, str, Any]


def _lease_not_frozen() -> Bug:
    """V1 gives one more slot after it has told how many it holds."""
    freeze = MovingAccount.freeze

    def loose(self: Any, migration_id: str) -> Any:
        frozen = freeze(self, migration_id)
        return msgspec.structs.replace(frozen, holding=max(0, frozen.holding - 1))

    return AccountOld, "freeze", loose


def _heal_forgets() -> Bug:
    """A healing says that it is done while somebody has no Engine."""

    async def heal(self: Any, migration_id: str) -> int:
        return 0

    return AccountOld, "heal", heal


def _healed_unasked() -> Bug:
    """That it is done is believed."""

    def healed(self: Any, migration_id: str) -> None:
        self._planes.write(healing=False)

    return AccountOld, "healed", healed


def _ask_skipped() -> Bug:
    """A front end creates on V2 without asking V1 for the id."""

    async def nobody(self: Any, account: str, call: Any, timeout_ms: int | None) -> bool:
        return False

    return Planes, "_ask", nobody


def adopt_again() -> Bug:
    """The Gatekeeper adds the first lease again when it is told again.

    It is, if a crash falls between two commits: for the matrix, since seeds seldom meet it.
    """
    adopt = Gatekeeper.adopt

    def anew(self: Any, migration_id: str, frozen: Frozen) -> None:
        known = self._book.holders.get(old_key(self.ctx.ref.key))
        if known is not None and self._planes.state.migration_id == migration_id:
            held = known.ledger + frozen.holding
            frozen = msgspec.structs.replace(frozen, holding=held)
        self._planes.write(plane="v1", migration_id="")
        adopt(self, migration_id, frozen)

    return Gatekeeper, "adopt", anew


MOVING_BUGS: dict[str, tuple[Callable[[], Bug], ...]] = {
    "lease_not_frozen": (_lease_not_frozen,),
    "heal_forgets": (_heal_forgets, _healed_unasked),
    "ask_skipped": (_ask_skipped,),
}
