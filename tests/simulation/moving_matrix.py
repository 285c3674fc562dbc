"""A move from V1 to V2 of a small account, to be crashed at any chosen commit; see `matrix`.

When it begins one instance runs, one waits, two are queued, and two have no Engine. While the
account heals an id that has no Engine is created again by another request, which must be refused.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from toque.migration.messages import MIGRATION_KIND, MigrationStatus
from toque.migration.refusals import MigrationRefused
from toque.runtime.codec import decode_json
from toque.runtime.ids import EntityRef
from toque.testkit.parts import FrontEnd

from .clients import Clients
from .making import Script
from .matrix import END_S_MAX, Played, play
from .parts import Layout
from .program import Op
from .verdict import Errand
from .work.moving import ACCOUNT, deploy_on_v1, make_on_v1
from .world import World

LAYOUT = Layout(data_shards=2, control_shards=2, limit=3, souschefs=2, commit_ms=2.0)
_WORKFLOW = "alpha"
_LONG: list[Op] = [["do", "ok1", "ok", 0, 2_000], ["do", "ok2", "ok", 0, 20]]
_WAITS: list[Op] = [["event", "wait1", "order", 60_000], ["do", "ok1", "ok", 0, 20]]
_PROGRAMS: list[list[Op]] = [_WAITS, _LONG, _LONG, _LONG, _LONG, _LONG]
_MIGRATION = EntityRef(MIGRATION_KIND, ACCOUNT)


class MovingPlay:
    """One play.

    Attributes:
        began, healed: how many commits each shard had made when the move began, and when it had
            healed the account.
    """

    def __init__(self) -> None:
        self.began: dict[str, int] = {}
        self.healed: dict[str, int] = {}

    def play(self, folder: Path, crash: tuple[str, int, str] | None = None) -> Played:
        """Play it in an empty folder, with a crash at `(shard, commit, outcome)`."""
        return play(folder, crash, self._work, LAYOUT)

    async def _work(self, world: World) -> list[Any]:
        for shard in world.sites:
            world.boot(shard)
        world.open_front_end()
        clients = Clients(world, "move")
        await make_on_v1(clients)
        await deploy_on_v1(clients, _WORKFLOW)
        errands = []
        for number, ops in enumerate(_PROGRAMS):
            claim = world.claims.of(ACCOUNT, _WORKFLOW, f"moving/{number}")
            world.ids[ACCOUNT, _WORKFLOW].add(claim.id)
            scripts = [Script([ops]), Script([_LONG])]
            errands.append(Errand(claim, scripts, world.promises, world.bodies))
        creates = [asyncio.ensure_future(clients.create_surely(errand)) for errand in errands]
        await asyncio.sleep(0.3)
        self.began = {name: site.commits for name, site in world.sites.items()}
        await self._ask(clients, "start", "r1", 0)
        async with asyncio.timeout(END_S_MAX):
            known = [errand for errand in errands if errand.claim.acked]
            await asyncio.gather(
                self._until(clients, "healed"), *(clients.create(errand, 1) for errand in known)
            )
            self.healed = {name: site.commits for name, site in world.sites.items()}
            await clients.send_events(errands[0], "order", 1)
            await asyncio.gather(*creates, *(clients.wait(errand) for errand in errands))
            await self._until(clients, "drained")
        await clients.list_all(ACCOUNT, _WORKFLOW)
        results = []
        for errand in errands:
            view = await clients.look(errand)
            errand.judge(view)
            output = decode_json(view.output)
            results.append([view.status, sorted(name for name, _ in output["seen"])])
        world.promises.raise_broken()
        return results

    async def _until(self, clients: Clients, state: str) -> None:
        while state not in dict((await self._ask(clients, "status")).log):
            await asyncio.sleep(0.01)

    async def _ask(self, clients: Clients, method: str, *args: Any) -> MigrationStatus:
        async def work(front: FrontEnd) -> MigrationStatus:
            caller = front.plane._caller
            found: MigrationStatus = await caller.call(
                MigrationStatus, caller.deadline(), _MIGRATION, method, *args
            )
            return found

        while True:
            try:
                found: MigrationStatus = await clients.attempt(method, work, stubborn=True)
            except MigrationRefused:  # a shard is away
                await asyncio.sleep(0.2)
            else:
                return found
