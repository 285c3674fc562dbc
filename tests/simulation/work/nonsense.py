"""Requests that make no sense: each is refused with a reason before any shard is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from toque.api.changes import Change, StepRef
from toque.api.listing import ListQuery
from toque.api.service import NewInstance
from toque.engines.ports import ENGINE_KIND, ENGINE_SHARD_KIND
from toque.runtime import limits
from toque.runtime.errors import CallerError, SystemFault
from toque.runtime.ids import EntityRef
from toque.testkit.parts import FrontEnd, FrontEndDied

from .base import Work

_HOLDS = "nonsense is refused at the edge"
_OF_INSTANCES = frozenset({ENGINE_KIND, ENGINE_SHARD_KIND})
_ASKED = 12
Asks = Callable[[Any, str, str], Awaitable[Any]]

NONSENSE: dict[str, Asks] = {
    "an id with dots": lambda p, a, w: p.create_instance(a, w, instance_id="../x"),
    "an empty id": lambda p, a, w: p.create_instance(a, w, instance_id=""),
    "an empty segment": lambda p, a, w: p.create_instance(a, w, instance_id="a//b"),
    "a long id": lambda p, a, w: p.create_instance(
        a, w, instance_id="x" * (limits.INSTANCE_ID_CHARS_MAX + 1)
    ),
    "an id to read": lambda p, a, w: p.get_instance(a, w, "a b"),
    "params that end early": lambda p, a, w: p.create_instance(a, w, params=b'{"a":'),
    "params with NaN": lambda p, a, w: p.create_instance(a, w, params=b"[NaN]"),
    "params too large": lambda p, a, w: p.create_instance(
        a, w, params=b'"' + b"x" * limits.PAYLOAD_BYTES_MAX + b'"'
    ),
    "a wait below zero": lambda p, a, w: p.create_instance(a, w, wait_ms=-1),
    "a wait of days": lambda p, a, w: p.get_instance(a, w, "job/1", wait_ms=limits.DAY_MS),
    "a retention below zero": lambda p, a, w: p.create_instances(
        a, w, [NewInstance("ok/1"), NewInstance("ok/2", retention=(-1, None))]
    ),
    "an empty batch": lambda p, a, w: p.create_instances(a, w, []),
    "a batch with one bad id": lambda p, a, w: p.create_instances(
        a, w, [NewInstance("ok/1"), NewInstance("not ok")]
    ),
    "a request id with a space": lambda p, a, w: p.create_instance(a, w, request_id="a b"),
    "an unknown workflow": lambda p, a, w: p.create_instance(a, "nobody", instance_id="ok/1"),
    "a bad workflow": lambda p, a, w: p.get_instance(a, "no/body", "job/1"),
    "a bad account": lambda p, a, w: p.get_instance("../acme", w, "job/1"),
    "an event of no type": lambda p, a, w: p.send_event(a, w, "job/1", "", b"0"),
    "an event that is no JSON": lambda p, a, w: p.send_event(a, w, "job/1", "order", b"oops"),
    "an unknown change": lambda p, a, w: p.change_status(a, w, "job/1", "explode"),
    "a rollback of a pause": lambda p, a, w: p.change_status(
        a, w, "job/1", Change("pause", rollback=True)
    ),
    "a step that none is": lambda p, a, w: p.change_status(
        a, w, "job/1", Change("restart", from_step=StepRef("x", 0))
    ),
    "a page of nothing": lambda p, a, w: p.list_instances(a, w, ListQuery(per_page=0)),
    "an unknown status": lambda p, a, w: p.list_instances(a, w, ListQuery(statuses=("lost",))),
    "a made-up cursor": lambda p, a, w: p.list_instances(a, w, ListQuery(cursor="AAAA")),
}


class Nonsense(Work):
    """See the module."""

    name = "nonsense"
    part_of = 40
    counts = ("nonsense asked",)

    def begin(self) -> Iterable[Awaitable[None]]:
        return [self._ask_all()] if self.world.switches.on("nonsense") else []

    async def _ask_all(self) -> None:
        chance = self.run.chance("nonsense")
        names = list(NONSENSE)
        for _ in range(_ASKED):
            await asyncio.sleep(chance.random() * 4)
            account, workflow = self.run.any_workflow(chance)
            name = names[chance.randrange(len(names))]
            fronts = self.world.fronts
            await self._ask(fronts[chance.randrange(len(fronts))], name, account, workflow)

    async def _ask(self, front: FrontEnd, name: str, account: str, workflow: str) -> None:
        world, asked = self.world, list[EntityRef]()
        world.faults["nonsense asked"] += 1
        told: object = "was done"
        try:
            await world.ask(front, lambda: NONSENSE[name](front.plane, account, workflow), asked)
        except CallerError as error:
            told = None if error.code and str(error) else f"was refused without a reason: {error!r}"
        except (SystemFault, FrontEndDied):
            told = None  # the account, which knows the workflows, did not answer
        reached = [ref for ref in asked if ref.kind in _OF_INSTANCES]
        world.promises.hold(_HOLDS, told is None and not reached, name, told, reached)


ITEM = Nonsense
