"""A control plane of two shards on virtual time, over the stores of a folder.

Clock and entropy come from a seed, so what it leaves on disk is the same each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.migration.flows import FLOWS, Counter, held
from toque.api.client import Client
from toque.api.client_embedded import EmbeddedBackend
from toque.api.service import ControlPlane
from toque.api.shards import OpenShard, ShardSettings, open_shard
from toque.api.wiring import ObjectStub
from toque.engines.code_host import InProcessCodeHost
from toque.engines.workflow import definition_of
from toque.gatekeeper.messages import ACCOUNT_KIND
from toque.migration.formats import STORE_UPGRADES
from toque.runtime.datadir import store_path
from toque.runtime.entropy import SeededEntropy
from toque.runtime.ids import EntityRef, Placement
from toque.runtime.link_local import LocalLinks
from toque.runtime.rpc import Router
from toque.runtime.simloop import LoopClock
from toque.runtime.upgrades import StoreUpgrade

ACCOUNT = "acme"
DEFINITIONS = [definition_of(flow, "v1") for flow in FLOWS]
START_MS = 1_790_000_000_000
COMMIT_S = 0.002


class House:
    """See the module's description.

    Args:
        folder: the data directory; its `shards` folder exists.
        start_ms: the time of day when it opens.
        running_max: slots of the account.
        seed: of its entropy.
        upgrades: of stores.
    """

    def __init__(
        self,
        folder: Path,
        start_ms: int = START_MS,
        running_max: int = 1,
        seed: str = "house",
        upgrades: Sequence[StoreUpgrade] = STORE_UPGRADES,
    ) -> None:
        self.folder = folder
        self.loop = asyncio.get_running_loop()
        self.held = held[self.loop] = asyncio.Event()
        self.clock = LoopClock(self.loop, start_ms - round(self.loop.time() * 1_000))
        self.links = LocalLinks(self.loop)
        self.placement = Placement(1, 1)
        self.shards: dict[str, OpenShard] = {}
        settings = ShardSettings(
            self.placement,
            running_max=running_max,
            objects=(Counter,),
            writer="inline",
            commit_delay=lambda: COMMIT_S,
            upgrades=upgrades,
        )
        for shard in self.placement.names():
            self.shards[shard] = open_shard(
                shard,
                store_path(folder, shard),
                settings,
                loop=self.loop,
                clock=self.clock,
                entropy=SeededEntropy(f"{seed} {shard}"),
                links=self.links,
                code_host=InProcessCodeHost(self.loop, DEFINITIONS, inline=True),
            )
            self.links.register(shard, self.shards[shard].server)
        self.router = Router(self.placement, self.links, self.loop)
        entropy = SeededEntropy(f"{seed} front")
        self.plane = ControlPlane(self.router, self.placement, self.clock, entropy)
        self.client = Client(EmbeddedBackend(self.plane, ACCOUNT), entropy)

    async def register(self) -> None:
        """Make the account and its workflows."""
        await self.plane.accounts.ensure_account(ACCOUNT)
        ref = EntityRef(ACCOUNT_KIND, ACCOUNT)
        for one in DEFINITIONS:
            await self.router.call(ref, "put_workflow", one.name, one.class_name, "", "v1", True)

    def counter(self, key: str) -> Any:
        """A user's entity."""
        return ObjectStub(self.router, EntityRef(Counter.KIND, key))

    async def until(self, workflow: str, id: str, status: str) -> None:
        """Wait until an instance has a status."""
        while (await self.client.instance(workflow, id).status()).status != status:
            await asyncio.sleep(0.05)

    async def crash(self) -> None:
        """End as a killed process does: what is not committed is lost."""
        await self._stop()
        for shard in self.shards.values():
            shard.store.crash("lost")

    async def close(self) -> None:
        """End in good order."""
        await self._stop()
        for shard in self.shards.values():
            await shard.close()

    async def _stop(self) -> None:
        await self.plane.close()
        self.router.close()
        for shard in self.shards.values():
            shard.stop()
