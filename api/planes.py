"""Which control plane an account is on, as this front end knows it, and the way its calls go.

An account that is on V2, and has none to heal, is not noted here and its calls pass as they are.
Of others this is known from their snapshots, and from calls that were refused because the account
is elsewhere (`WrongControlPlane`): whoever repeats such a call is sent the right way. So what is
known may be behind, and no call does anything on a plane that the account has left.

* On V1 (`migration.account_old`) all goes to AccountOld: calls of the Account are its own,
  creates too, and other calls of an Engine pass through it.
* While the account heals, AccountOld is asked before an id is created, and when an instance is
  not found: it may hold it, queued and without an Engine, which it then makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ..engines.ports import ENGINE_KIND
from ..gatekeeper.messages import ACCOUNT_KIND, GATEKEEPER_KIND
from ..gatekeeper.planes import ON_V2, PlaneInfo, WrongControlPlane
from ..migration.messages import Asked, Forwarded, OldCreate
from ..runtime import limits
from ..runtime.errors import InstanceNotFound
from ..runtime.ids import EntityRef, old_account
from .calls import Decode, RouterCall, RouterPort

ON_V1 = PlaneInfo("v1")
_HEALING = PlaneInfo("v2", healing=True, from_v1=True)
_REGISTRY = frozenset(
    {
        "change_limits",
        "delete_workflow",
        "get_workflow",
        "list_scripts",
        "list_versions",
        "put_script",
        "put_workflow",
        "register",
        "set_limits",
        "snapshot",
    }
)
"""What AccountOld does in the Account's place."""
_asked = msgspec.msgpack.Decoder(Asked).decode


class Way(NamedTuple):
    """A call: whom, which method, with what."""

    ref: EntityRef
    method: str
    args: tuple[Any, ...]


def way_on_v1(account: str, call: Way, timeout_ms: int) -> Way:
    """Where a call of an account on V1 goes.

    >>> way_on_v1("shop", Way(EntityRef("Account", "shop"), "get_workflow", ("orders",)), 1_000)
    Way(ref=EntityRef(kind='AccountOld', key='shop/-/old'), method='get_workflow', args=('orders',))
    """
    kind, key = call.ref
    if kind == ACCOUNT_KIND and call.method in _REGISTRY:
        return Way(old_account(account), call.method, call.args)
    if kind == ENGINE_KIND and call.method == "create":
        return Way(old_account(account), "create", (OldCreate(key, *call.args),))
    if kind == ENGINE_KIND:
        passed = Forwarded(key, call.method, list(call.args), timeout_ms)
        return Way(old_account(account), "forward", (passed,))
    if kind == GATEKEEPER_KIND and call.method == "statistics":  # whether it does its work
        return Way(old_account(account), "status", ())
    return call


class Planes:
    """The router that the calls of a front end go through; see the module's description.

    Args:
        router: the way to entities.

    Attributes:
        call: as of the router, and its very method while all accounts are on V2.
        moved: told of an account that is on another plane than was thought.
        reroutes: how many calls were refused because the account was elsewhere.
    """

    def __init__(self, router: RouterPort) -> None:
        self._router = router
        self.call: RouterCall = router.call
        self._known: dict[str, PlaneInfo] = {}
        self.moved: Callable[[str], None] = lambda account: None
        self.reroutes = 0

    def of(self, account: str) -> PlaneInfo:
        """Where an account's calls go, as far as is known."""
        return self._known.get(account, ON_V2)

    def note(self, account: str, info: PlaneInfo) -> None:
        """Take what an account's snapshot told."""
        if info.plane == "v2" and not info.healing:
            self._known.pop(account, None)
        else:
            self._known[account] = info
        self.call = self._call_by_plane if self._known else self._router.call

    def refused(self, error: WrongControlPlane) -> None:
        """Take what a refused call told. Of one that moves nothing new is known."""
        self.reroutes += 1
        account, plane = error.data["account"], error.data["is"]
        if plane == "moving" or plane == self.of(account).plane:
            return
        self.note(account, ON_V1 if plane == "v1" else _HEALING)
        self.moved(account)

    def _call_by_plane(
        self,
        ref: EntityRef,
        method: str,
        *args: Any,
        timeout_ms: int | None = None,
        decode: Decode = msgspec.msgpack.decode,
    ) -> asyncio.Future[Any]:
        account = ref.key.partition("/")[0]
        info = self._known.get(account)
        if info is None:
            return self._router.call(ref, method, *args, timeout_ms=timeout_ms, decode=decode)
        return self._call_elsewhere(account, info, Way(ref, method, args), timeout_ms, decode)

    def _call_elsewhere(
        self, account: str, info: PlaneInfo, call: Way, timeout_ms: int | None, decode: Decode
    ) -> asyncio.Future[Any]:
        if info.plane == "v2":
            if call.ref.kind == ENGINE_KIND:
                healing = self._healed_call(account, call, timeout_ms, decode)
                return asyncio.get_running_loop().create_task(healing)
            way = call
        else:
            way = way_on_v1(account, call, timeout_ms or limits.CALL_TIMEOUT_MS)
        return self._router.call(
            way.ref, way.method, *way.args, timeout_ms=timeout_ms, decode=decode
        )

    async def _healed_call(
        self, account: str, call: Way, timeout_ms: int | None, decode: Decode
    ) -> Any:
        """Call an Engine that may be unborn."""
        is_create = call.method == "create"
        if is_create:
            await self._ask(account, call, timeout_ms)
        try:
            return await self._router.call(
                call.ref, call.method, *call.args, timeout_ms=timeout_ms, decode=decode
            )
        except InstanceNotFound:
            if is_create:
                raise
        await self._ask(account, call, timeout_ms)
        # It is there now, if it was unborn; or was made by another a moment ago.
        return await self._router.call(
            call.ref, call.method, *call.args, timeout_ms=timeout_ms, decode=decode
        )

    async def _ask(self, account: str, call: Way, timeout_ms: int | None) -> bool:
        """Have AccountOld make the Engine if it holds the instance without one; whether it did."""
        asked: Asked = await self._router.call(
            old_account(account),
            "ask",
            call.ref.key,
            call.method == "create",
            timeout_ms=timeout_ms,
            decode=_asked,
        )
        if not asked.healing and self.of(account).healing:
            self.note(account, ON_V2)
        return asked.held
