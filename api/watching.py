"""Watching instances: their events by page, and why they wait.

The operations sit beside those of `service.ControlPlane`, which makes one of these. Who waits in a
queue is told where: the SousChef that keeps it says how many are before it, and all SousChefs of
the workflow together say whose limit holds it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from ..engines.ports import ENGINE_KIND, SOUSCHEF_KIND, souschef_key, souschef_ref
from ..engines.views import EventPage, WaitingView
from ..engines.watch import check_types
from ..gatekeeper.messages import WorkflowRecord
from ..runtime import limits
from ..runtime.errors import InvalidArgument, SystemFault
from ..runtime.ids import EntityRef, check_instance_id, engine_key
from ..souschef.souschef import QueuePlace, SousChefStatistics
from .calls import Caller

LookUp = Callable[[str, str], Awaitable[WorkflowRecord]]


class Slot(msgspec.Struct, frozen=True):
    """What a queued instance waits for. `limited_by`: `account` or `workflow`."""

    place: QueuePlace
    limited_by: str


class Watching:
    """See the module's description.

    Args:
        caller: reaches entities.
        look_up: finds a workflow of an account.
    """

    def __init__(self, caller: Caller, look_up: LookUp) -> None:
        self._caller = caller
        self._look_up = look_up

    async def events(
        self,
        account: str,
        workflow: str,
        instance_id: str,
        *,
        cursor: int = 0,
        types: Iterable[str] = (),
        limit: int = limits.EVENTS_PAGE_MAX,
        wait_ms: int = 0,
    ) -> EventPage:
        """Events past the cursor; if there is none yet, wait for one so long.

        Raises:
            InstanceNotFound, InvalidArgument
        """
        check_instance_id(instance_id)
        wanted = sorted(check_types(types))
        if not 0 <= wait_ms <= limits.WAIT_MAX_MS:
            raise InvalidArgument(f"wait may be 0 to {limits.WAIT_MAX_MS // 1000} seconds.")
        record = await self._look_up(account, workflow)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while True:
            slice_ms = max(0, min(int((until - loop.time()) * 1000), limits.WAIT_SLICE_MS))
            page: EventPage = await self._caller.call(
                EventPage,
                self._caller.deadline(slice_ms + limits.REQUEST_DEADLINE_MS),
                EntityRef(ENGINE_KIND, engine_key(account, record.uuid, instance_id)),
                "events",
                cursor,
                limit,
                wanted,
                slice_ms,
                attempt_ms=slice_ms + limits.REQUEST_ATTEMPT_MS,
            )
            cursor = page.cursor
            if page.events or page.ended or loop.time() >= until - 0.001:
                return page

    async def waiting(
        self, account: str, workflow: str, instance_id: str
    ) -> tuple[WaitingView, Slot | None]:
        """Why an instance does not go on; of a queued one, where it stands."""
        check_instance_id(instance_id)
        record = await self._look_up(account, workflow)
        key = engine_key(account, record.uuid, instance_id)
        deadline = self._caller.deadline()
        view: WaitingView = await self._caller.call(
            WaitingView, deadline, EntityRef(ENGINE_KIND, key), "waiting"
        )
        if view.status != "queued":
            return view, None
        return view, await self._slot(account, record, key, view)

    async def _slot(
        self, account: str, record: WorkflowRecord, key: str, view: WaitingView
    ) -> Slot | None:
        """Where it queues; None if its SousChef can't be asked just now."""
        deadline = self._caller.deadline(limits.READY_TIMEOUT_MS)
        prefix = f"{account}/{record.uuid}"
        own = souschef_ref(souschef_key(key, key[len(prefix) + 1 :], view.souschef))
        calls: list[Any] = [self._caller.call(QueuePlace, deadline, own, "place_of", key)]
        if record.running_max:
            calls += [
                self._caller.call(
                    SousChefStatistics,
                    deadline,
                    EntityRef(SOUSCHEF_KIND, f"{prefix}/{number}"),
                    "statistics",
                )
                for number in range(max(record.souschefs, view.souschef + 1))
            ]
        try:
            place, *chefs = await asyncio.gather(*calls)
        except SystemFault:
            return None
        used = sum(chef.holding for chef in chefs)
        is_full = bool(record.running_max) and used >= record.running_max
        return Slot(place, "workflow" if is_full else "account")
