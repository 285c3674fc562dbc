"""A small shard cluster for tests: real hosts and stores, one process, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toque.runtime.entity import DurableObject
from toque.runtime.entropy import SeededEntropy
from toque.runtime.host import Host, HostFaults, tables_of
from toque.runtime.ids import Placement
from toque.runtime.link_local import LocalLinks
from toque.runtime.rpc import Router, ShardServer
from toque.runtime.simloop import LoopClock
from toque.runtime.store_sqlite import SqliteStore

COMMIT_S = 0.005


class Cluster:
    """Data shards `d0..` (and one control shard) on the running loop.

    A shard can be crashed (what is not committed is lost) and opened again.
    """

    def __init__(
        self,
        folder: Path,
        classes: Mapping[str, type[DurableObject]],
        envs: Mapping[str, Any] | None = None,
        data_shards: int = 1,
        faults: HostFaults | None = None,
    ) -> None:
        self.folder = folder
        self.classes = dict(classes)
        self.envs = dict(envs or {})
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.placement = Placement(data_shards, 1)
        self.links = LocalLinks(self.loop)
        self.router = Router(self.placement, self.links, self.loop)
        self.faults = faults
        self.stores: dict[str, SqliteStore] = {}
        self.hosts: dict[str, Host] = {}
        self.broken: list[str] = []
        for shard in self.placement.names():
            self.open(shard)

    def open(self, shard: str) -> Host:
        """Open (again) a shard, as a new owner."""
        store = SqliteStore.open(
            self.folder / f"{shard}.sqlite",
            tables=tables_of(self.classes),
            loop=self.loop,
            writer="inline",
            commit_delay=lambda: COMMIT_S,
        )
        host = Host(
            shard,
            store,
            self.clock,
            SeededEntropy(shard),
            self.loop,
            Router(self.placement, self.links, self.loop),
            self.classes,
            self.envs,
            on_broken=lambda error: self.broken.append(shard),
            faults=self.faults,
        )
        self.links.register(shard, ShardServer(host, self.loop))
        self.stores[shard], self.hosts[shard] = store, host
        host.start()
        return host

    def crash(self, shard: str, outcome: str = "lost") -> None:
        """End a shard as kill -9 would; `outcome` is the fate of the commit under way."""
        self.hosts[shard].close()
        self.stores[shard].crash(outcome)
        self.hosts[shard].router.close()
        self.router.close()
        self.router = Router(self.placement, self.links, self.loop)

    async def close(self) -> None:
        """Close everything."""
        self.router.close()
        for shard, host in self.hosts.items():
            host.close()
            host.router.close()
            if self.stores[shard].broken is None:
                await self.stores[shard].close()
