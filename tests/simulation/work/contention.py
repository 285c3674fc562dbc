"""Several workflows want more than there is, in calm weather: the slots are shared out, max-min.

What is right is found one slot at a time, without the code that is judged.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from ..clients import Clients
from ..making import Script
from .base import Work

_LIMIT = 6
_INSTANCES = 18
_BODY_MS = 2_500
_BEGINS_S = 6.0
_SAMPLES_MIN = 4
_APART_MAX = 1.25
"""Slots that one has too many while another has too few. Odd slots go round, and handing over takes
cycles, in which a slot is nobody's."""


class Contention(Work):
    """See the module."""

    name = "contention"
    part_of = 8
    counts = ("slots contended",)

    async def judge(self) -> None:
        plan, world = self.run.plan, self.world
        workflows = plan.workflows[:2]
        if len(workflows) < 2 or not world.switches.on("contention"):
            return
        account, clients = plan.accounts[0], Clients(world, "contention")
        await clients.set_limit(account, _LIMIT)
        busy = Script([[["do", "busy", "ok", 0, _BODY_MS]]])
        errands = []
        for workflow in workflows:
            names = [f"busy/{number}" for number in range(_INSTANCES)]
            made = [self.run.errand(account, workflow, name, [busy]) for name in names]
            await clients.create_batch(made, f"busy-{workflow}")
            errands += made
        await asyncio.sleep(_BEGINS_S)
        await self._watch(account)
        await asyncio.gather(*(clients.wait(errand) for errand in errands))

    async def _watch(self, account: str) -> None:
        disk, samples, total = self.world.disk, 0, Counter[str]()
        while len(waiting := disk.waiting(account)) > 1:
            samples += 1
            total.update(disk.running_by_workflow(account))
            wanting = sorted(waiting)
            await asyncio.sleep(0.5)
        if samples < _SAMPLES_MIN:
            return
        self.world.faults["slots contended"] += 1
        right = _shares({uuid: disk.settings_of(uuid) for uuid in wanting})
        found = {uuid: total[uuid] / samples for uuid in wanting}
        apart = [found[uuid] - right[uuid] for uuid in wanting]
        self.world.promises.hold(
            "slots are shared out",
            min(apart) >= -_APART_MAX or max(apart) <= _APART_MAX,
            f"{samples} times {found} were held, {right} would be right",
        )


def _shares(settings: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Slots of each workflow, by its weight and limit (0: none): each to whom it helps most."""
    shares = dict.fromkeys(settings, 0)
    for _ in range(_LIMIT):
        open_to = [uuid for uuid, (_, most) in settings.items() if not most or shares[uuid] < most]
        if open_to:
            shares[min(open_to, key=lambda uuid: (shares[uuid] + 1) / settings[uuid][0])] += 1
    return shares


ITEM = Contention
