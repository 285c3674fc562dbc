"""The Gatekeeper entity: durable before it answers, cautious after a crash or a full store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.runtime.shards import COMMIT_S, Cluster
from toque.gatekeeper.gatekeeper import Gatekeeper, GatekeeperEnv
from toque.gatekeeper.messages import (
    CycleReply,
    CycleRequest,
    GatekeeperStatistics,
    RateReply,
    RateRequest,
)
from toque.runtime import limits
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


async def full_house(cluster: Cluster) -> tuple[CycleReply, asyncio.Task[CycleReply]]:
    """A SousChef with all slots that wants more: its lease, and its next call."""
    lease = await cycle(cluster, request(fresh=20))
    assert lease.target == 10
    again = obeying(lease, seq=2, holding=10, fresh=10)
    return lease, asyncio.create_task(cycle(cluster, again))


def obeying(lease: CycleReply, souschef: str = "acme/w/0", **values: Any) -> CycleRequest:
    given = {"lease_version": lease.lease_version, "target": lease.target, "may_wait": True}
    return request(souschef, **{**given, **values})


async def test_an_answer_with_nothing_new_waits_for_most_of_the_period(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        lease, waits = await full_house(cluster)
        start_s = cluster.loop.time()
        assert await waits == lease
        assert 0.85 < cluster.loop.time() - start_s < 0.95


async def test_who_must_give_slots_up_hears_of_it_at_once(tmp_path: Path) -> None:
    """And so does the newcomer, when they have been given up: both between two of their calls."""
    async with cluster_at(tmp_path) as cluster:
        lease, waits = await full_house(cluster)
        start_s = cluster.loop.time()
        newcomer = asyncio.create_task(cycle(cluster, request("acme/x/0", fresh=3, may_wait=True)))
        lowered = await waits
        assert lowered.target == 7
        assert cluster.loop.time() - start_s < 0.2
        confirming = obeying(lowered, seq=3, holding=7, fresh=10)
        confirms = asyncio.create_task(cycle(cluster, confirming))
        assert (await newcomer).target == 3
        assert cluster.loop.time() - start_s < 0.4
        assert not confirms.done()
        assert lease.lease_version < lowered.lease_version == (await confirms).lease_version


async def test_a_call_that_came_twice_has_one_answer_and_a_newer_one_ends_its_wait(
    tmp_path: Path,
) -> None:
    async with cluster_at(tmp_path) as cluster:
        lease, waits = await full_house(cluster)
        again = obeying(lease, seq=2, holding=10, fresh=10)
        twice = asyncio.create_task(cycle(cluster, again))
        await asyncio.sleep(0.5)
        assert not waits.done()
        assert not twice.done()
        newer = asyncio.create_task(cycle(cluster, msgspec.structs.replace(again, seq=3)))
        assert await waits == await twice == lease
        assert not newer.done()
        start_s = cluster.loop.time()
        assert await cycle(cluster, again) == lease  # late: it has that of the newer one
        assert newer.done()
        assert cluster.loop.time() - start_s > 0.5


async def test_one_that_has_left_is_given_nothing_by_a_late_copy_of_its_call(
    tmp_path: Path,
) -> None:
    async with cluster_at(tmp_path) as cluster:
        lease = await cycle(cluster, request(fresh=2))
        stale = obeying(lease, seq=2)
        left = obeying(lease, seq=3, target=0, leaving=True, may_wait=False)
        await cycle(cluster, left)
        start_s = cluster.loop.time()
        await cycle(cluster, stale)
        assert cluster.loop.time() - start_s < 0.1
        other = await cycle(cluster, request("acme/x/0"))
        await asyncio.sleep(2)
        await cycle(cluster, obeying(other, "acme/x/0", seq=2, target=0, leaving=True))
        assert (await statistics(cluster)).ledger == 0


async def test_who_waits_hears_that_the_gatekeeper_is_gone_or_can_not_write(
    tmp_path: Path,
) -> None:
    async with cluster_at(tmp_path) as cluster:
        gatekeeper = cluster.hosts["c0"].local(ACME)
        assert isinstance(gatekeeper, Gatekeeper)
        _, waits = await full_house(cluster)
        put, gatekeeper._write = gatekeeper._write, _full  # type: ignore[method-assign]
        await cluster.router.call(ACME, "set_limit", 4)
        with pytest.raises(Overloaded):
            await waits
        gatekeeper._write = put  # type: ignore[method-assign]
        assert (await statistics(cluster)).ledger == 10
        lease = await cycle(cluster, request(seq=3, holding=10, fresh=10))
        waits = asyncio.create_task(cycle(cluster, obeying(lease, seq=4, holding=10, fresh=10)))
        await asyncio.sleep(0.5)
        cluster.crash("c0")
        with pytest.raises(Exception, match="closed"):
            await waits
        cluster.open("c0")


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


async def test_a_late_copy_of_a_dead_front_ends_report_holds_nothing(tmp_path: Path) -> None:
    last = RateRequest("dead", 8, {"w": 50_000}, {"": 300_000, "w": 100_000}, {"w": 25}, {"w": 50})

    async def told(report: RateRequest) -> RateReply:
        return msgspec.convert(await cluster.router.call(ACME, "lease_rates", report), RateReply)

    async def live(seq: int) -> RateReply:
        await asyncio.sleep(1)
        return await told(RateRequest("live", seq, {"w": 200_000}, {}))

    async with cluster_at(tmp_path) as cluster:
        await cluster.router.call(ACME, "set_queue", "w", 100)
        await told(last)
        for seq in range(limits.RATE_SILENT_PERIODS + 5):
            alone = await live(seq + 1)
        assert alone.room == {"w": 100}
        assert (await told(last)).room == {}
        assert (await live(100)) == msgspec.structs.replace(alone, seq=100)
        back = msgspec.structs.replace(last, seq=9)  # it was only slow
        assert (await told(back)).room
        assert (await live(101)).room["w"] < 100


async def test_of_workflows_that_come_and_go_only_what_is_special_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WORKFLOWS_PER_ACCOUNT_MAX", 2)
    async with cluster_at(tmp_path) as cluster:
        for seq in range(1, 20):
            report = RateRequest("front", seq, {f"w{seq}": 0}, {})
            await cluster.router.call(ACME, "lease_rates", report)
        keeper = cluster.hosts["c0"].local(ACME)
        assert isinstance(keeper, Gatekeeper)
        assert len(keeper._spreads) <= 4
