"""The Gatekeeper entity: durable before it answers, cautious after a crash or a full store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.runtime.shards import COMMIT_S, Cluster
from toque.gatekeeper.gatekeeper import Gatekeeper, GatekeeperEnv
from toque.gatekeeper.messages import CycleReply, CycleRequest, GatekeeperStatistics
from toque.runtime.errors import InvalidArgument, Overloaded
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)

ACME = EntityRef("Gatekeeper", "acme")


def request(souschef: str = "acme/w/0", **values: Any) -> CycleRequest:
    plain = {
        "incarnation": 1,
        "seq": 1,
        "awakened": 0,
        "fresh": 0,
        "oldest_awakened_ms": 0,
        "oldest_fresh_ms": 0,
        "holding": 0,
        "lease_version": 0,
        "target": 0,
        "leaving": False,
    }
    return CycleRequest(souschef=souschef, **{**plain, **values})


async def cycle(cluster: Cluster, asked: CycleRequest) -> CycleReply:
    return msgspec.convert(await cluster.router.call(ACME, "cycle", asked), CycleReply)


async def statistics(cluster: Cluster) -> GatekeeperStatistics:
    found = await cluster.router.call(ACME, "statistics")
    return msgspec.convert(found, GatekeeperStatistics)


@asynccontextmanager
async def cluster_at(folder: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, {"Gatekeeper": Gatekeeper}, {"Gatekeeper": GatekeeperEnv(10)})
    try:
        yield cluster
    finally:
        await cluster.close()


async def test_a_lease_is_durable_before_it_is_told(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        start_s = cluster.loop.time()
        reply = await cycle(cluster, request(fresh=20))
        assert cluster.loop.time() - start_s >= COMMIT_S
        assert reply.target == 10
        cluster.crash("c0")
        cluster.open("c0")
        assert (await statistics(cluster)).ledger == 10
        other = await cycle(cluster, request("acme/x/0", fresh=20))
        assert other.target == 0


async def test_a_lease_that_was_not_told_is_not_kept(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        asked = cluster.router.call(ACME, "cycle", request(fresh=20))
        while not cluster.stores["c0"].write_seq > cluster.stores["c0"].durable_seq:
            await cluster.router.call(EntityRef("Gatekeeper", "other"), "statistics")
        cluster.crash("c0", "lost")
        with pytest.raises(Exception, match="closed"):
            await asked
        cluster.open("c0")
        assert (await statistics(cluster)).ledger == 0


async def test_a_call_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        first = await cycle(cluster, request(fresh=20))
        rows = cluster.stores["c0"].statistics()["rows"]
        for seq in range(2, 6):
            asked = request(
                seq=seq, holding=10, fresh=10, lease_version=first.lease_version, target=10
            )
            assert await cycle(cluster, asked) == first
        assert cluster.stores["c0"].statistics()["rows"] == rows
        assert (await statistics(cluster)).calls == 5


async def test_a_store_that_is_full_gives_no_lease_that_it_does_not_hold(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        gatekeeper = cluster.hosts["c0"].local(ACME)
        assert isinstance(gatekeeper, Gatekeeper)
        put, gatekeeper._write = gatekeeper._write, _full  # type: ignore[method-assign]
        with pytest.raises(Overloaded):
            await cycle(cluster, request(fresh=20))
        gatekeeper._write = put  # type: ignore[method-assign]
        assert (await statistics(cluster)).ledger == 0
        assert (await cycle(cluster, request(fresh=20))).target == 10
        cluster.crash("c0")
        cluster.open("c0")
        assert (await statistics(cluster)).ledger == 10


def _full(holder: object) -> None:
    raise Overloaded("full")


async def test_limits_outlive_a_crash(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        await cluster.router.call(ACME, "set_limit", 4)
        await cluster.router.call(ACME, "set_workflow", "w", 2, 3)
        await cluster.router.call(ACME, "set_workflow", "x", 2, 3)
        await cluster.router.call(ACME, "set_workflow", "x", 1, 0)
        cluster.crash("c0")
        cluster.open("c0")
        assert (await statistics(cluster)).running_max == 4
        assert (await cycle(cluster, request(fresh=20))).target == 3
        assert (await cycle(cluster, request("acme/x/0", fresh=20))).target == 1


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("cycle", (request("other/w/0"),)),
        ("cycle", (request(holding=-1),)),
        ("cycle", (request(seq=-1),)),
        ("set_limit", (-1,)),
        ("set_workflow", ("", 1, 1)),
        ("set_workflow", ("w", 0, 1)),
        ("set_workflow", ("w", 1, -1)),
    ],
)
async def test_bad_input_is_refused(tmp_path: Path, method: str, args: tuple[Any, ...]) -> None:
    async with cluster_at(tmp_path) as cluster:
        with pytest.raises(InvalidArgument):
            await cluster.router.call(ACME, method, *args)
        assert (await statistics(cluster)).holders == 0


async def test_calls_are_counted_over_the_last_seconds(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        for n in range(20):
            await cycle(cluster, request(f"acme/w/{n}"))
        assert (await statistics(cluster)).calls_per_second == 2.0
