"""An account moves while clients create and shards die at random: the real Migration drives."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.migration.rig import ACME, GATEKEEPER, OLD, Rig, rig_at
from toque.engines.views import CreateRequest, InstanceView
from toque.gatekeeper.planes import WrongControlPlane
from toque.migration.messages import Asked, MigrationStatus, OldCreate
from toque.runtime.errors import SystemFault
from toque.runtime.ids import EntityRef, Placement
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)

MIGRATION = EntityRef("Migration", ACME)
LIMIT = 8


class Client:
    """Creates wherever the account is, as front ends do, until it is acknowledged."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.plane = "v1"
        self.rerouted = 0

    async def create(self, instance_id: str) -> InstanceView:
        """Acknowledged, on whichever plane."""
        key = self.rig.key(instance_id)
        request = self.rig.request(params=b"0.4", souschefs=2)
        while True:
            try:
                return await self._try(key, request)
            except WrongControlPlane as error:
                self.rerouted += 1
                if error.data["is"] != "moving":
                    self.plane = error.data["is"]
                await asyncio.sleep(0.02)
            except SystemFault:
                await asyncio.sleep(0.05)

    async def _try(self, key: str, request: CreateRequest) -> InstanceView:
        if self.plane == "v1":
            return await self.rig.old(InstanceView, "create", OldCreate(key, request))
        await self.rig.old(Asked, "ask", key, True)
        return await self.rig.call(InstanceView, EntityRef("Engine", key), "create", request)


async def _crash_now_and_then(rig: Rig, drawn: random.Random, shards: list[str]) -> None:
    while True:
        await asyncio.sleep(drawn.uniform(0.01, 0.6))
        rig.crash(drawn.choice(shards), drawn.choice(("kept", "lost")))


@pytest.mark.parametrize(
    ("victims", "seed"), [("control", 0), ("control", 1), ("control", 2), ("all", 0), ("all", 1)]
)
async def test_nothing_is_lost_and_no_limit_broken(tmp_path: Path, victims: str, seed: int) -> None:
    drawn = random.Random(f"{victims} {seed}")
    async with rig_at(
        tmp_path, running_max=LIMIT, v1=(LIMIT, 10_000), lost_births=9, control_shards=3
    ) as rig:
        shards = rig.settings.placement.control_names()
        shards += rig.data if victims == "all" else []
        killer = asyncio.ensure_future(_crash_now_and_then(rig, drawn, shards))
        client = Client(rig)
        views: dict[str, InstanceView] = {}
        for n in range(80):
            if n == 30:
                await _start(rig)
            views[f"{n}"] = await client.create(f"{n}")
            await asyncio.sleep(drawn.uniform(0, 0.06))
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)
        await rig.until(lambda: _state_is(rig, "drained"), 300)
        assert client.plane == "v2"

        async def all_ended() -> bool:
            rows = await rig.rows_v2()
            return len(rows) == 80 and {row.status for row in rows} == {"complete"}

        await rig.until(all_ended, 300)
        assert (await rig.status()).unborn == 0
        for instance_id, view in views.items():
            assert (await rig.view(instance_id)).run_id == view.run_id
        if victims == "control":  # of a data shard that died, bodies run once more
            assert rig.bodies.most <= LIMIT
            assert rig.bodies.begun == 80
        await asyncio.sleep(40)
        assert (await rig.gatekeeper()).ledger == 0


async def _start(rig: Rig) -> None:
    while True:
        try:
            await rig.call(MigrationStatus, MIGRATION, "start", "request", 0)
        except SystemFault:
            await asyncio.sleep(0.05)
        else:
            return


async def _state_is(rig: Rig, state: str) -> bool:
    return (await rig.call(MigrationStatus, MIGRATION, "status")).state == state


def test_the_parts_live_on_shards_of_their_own() -> None:
    """Else a crash would always take all of them, and prove less."""
    placement = Placement(2, 3)
    assert placement.shard_of(OLD) != placement.shard_of(GATEKEEPER)
