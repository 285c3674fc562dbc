"""What makes children of a shard's instances: a front end of the shard's own, without transport.

Made when the first child is wanted. What it knows of accounts and rates it gets as any front end
does: the Account is asked once per generation, rates are leased, calls are repeated until a
deadline. So a shard whose workflows start children costs the account what one more front end does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from ..engines.child_calls import ChildrenPort
from ..engines.journal import ChildCall
from ..engines.views import Parent
from ..runtime.clock import Clock
from ..runtime.entropy import Entropy
from ..runtime.errors import RuntimeClosed, ShardUnavailable
from ..runtime.ids import Placement, engine_key
from ..runtime.rpc import Router

if TYPE_CHECKING:
    from .service import ControlPlane

SOURCE = "binding"
"""What made a child, as lists show it: code of the account's, and no call from outside."""


class ShardChildren(ChildrenPort):
    """See the module's description.

    Args:
        router: the shard's.
        placement: which shards there are.
        clock, entropy: the shard's.
    """

    def __init__(
        self, router: Router, placement: Placement, clock: Clock, entropy: Entropy
    ) -> None:
        self._made_of = router, placement, clock, entropy
        self._plane: ControlPlane | None = None
        self._is_closed = False

    async def start(self, account: str, call: ChildCall, parent: Parent) -> str:
        if self._plane is None:
            if self._is_closed:
                raise ShardUnavailable("the shard is closed.")
            # imported now: a shard is open the sooner without it
            control_plane = import_module(".service", __package__).ControlPlane
            self._plane = cast("ControlPlane", control_plane(*self._made_of))
        try:
            view = await self._plane.create_instance(
                account,
                call.workflow,
                instance_id=call.id,
                params=call.params,
                request_id=call.call,
                source=SOURCE,
                parent=parent,
            )
        except RuntimeClosed as closed:  # which is nothing that the child is refused for
            raise ShardUnavailable("the shard is being closed.") from closed
        return engine_key(account, view.workflow_uuid, view.id)

    def stop(self) -> None:
        """Refuse what is asked from now on."""
        self._is_closed = True
        if self._plane is not None:
            self._plane.refuse()

    async def close(self) -> None:
        """End background work."""
        self.stop()
        plane, self._plane = self._plane, None
        if plane is not None:
            await plane.close()
