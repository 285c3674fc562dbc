"""Moves an account from V1 to V2 by hand, a state at a time, for tests of those who call then."""

from __future__ import annotations

from typing import Any

from toque.gatekeeper.messages import ACCOUNT_KIND, GATEKEEPER_KIND
from toque.runtime.ids import EntityRef, old_account
from toque.runtime.rpc import Router

ID = "000000001"


class Move:
    """The calls of a migration, in their order.

    Args:
        router: reaches entities.
        account: which.
        migration_id: its migration's.
    """

    def __init__(self, router: Router, account: str = "default", *, migration_id: str = ID) -> None:
        self._router = router
        self._account = account
        self._id = migration_id

    async def old(self, method: str, *args: Any) -> Any:
        """A call of AccountOld."""
        return await self._router.call(old_account(self._account), method, *args)

    async def _new(self, kind: str, method: str, *args: Any) -> Any:
        return await self._router.call(EntityRef(kind, self._account), method, self._id, *args)

    async def freeze(self) -> Any:
        """V1 stops: it takes no calls from now on."""
        return await self.old("freeze", self._id)

    async def adopt(self, frozen: Any) -> None:
        """Account and Gatekeeper take over what was frozen."""
        after = None
        while True:
            *_, after = part = await self.old("registry_part", self._id, after)
            await self._new(ACCOUNT_KIND, "adopt_part", part)
            if after is None:
                break
        await self._new(GATEKEEPER_KIND, "adopt", frozen)
        await self._new(ACCOUNT_KIND, "adopt")

    async def route(self) -> None:
        """V2 serves; the account heals."""
        await self.old("route", self._id)

    async def heal(self) -> None:
        """All have an Engine."""
        while await self.old("heal", self._id):
            pass
        await self.old("healed", self._id)
        await self._new(ACCOUNT_KIND, "healed")

    async def abort(self) -> None:
        """V1 serves again."""
        await self.old("abort", self._id)
        await self._new(GATEKEEPER_KIND, "abandon")
        await self._new(ACCOUNT_KIND, "abandon")

    async def to_v2(self) -> None:
        """Freeze, adopt, route."""
        await self.adopt(await self.freeze())
        await self.route()
