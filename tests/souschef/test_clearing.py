"""Clearing: every instance of a workflow is ended once, whichever shard crashes meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.shards import Cluster
from toque.engines.ports import ClearPage
from toque.runtime import limits
from toque.runtime.entity import Context, DurableObject
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop
from toque.souschef.clearing import Clearing, ClearingEnv

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)
ME = EntityRef("Clearing", "acme/u1")
SHARDS = ["d0", "d1"]


class EngineShard(DurableObject):
    """Holds numbers in place of instances, three a batch; deletes or ends them."""

    def __init__(self, ctx: Context, env: dict[str, Any]) -> None:
        super().__init__(ctx, env)
        self.rows: list[int] = env["rows"][ctx.ref.key]

    def clear(
        self,
        account: str,
        uuid: str,
        how: str,
        statuses: list[str],
        after: tuple[int, str] | None,
        request_id: str,
        source: str,
    ) -> ClearPage:
        assert how == "delete" or not self.env["unborn"], "too early"
        self.env["sources"].add(source)
        self.env["asked"].append((self.ctx.ref.key, account, uuid, how, statuses, request_id))
        found = [n for n in self.rows if after is None or n > after[0]][:3]
        for number in found:
            self.env["ended"].append((self.ctx.ref.key, number, request_id))
            if how == "delete":
                self.rows.remove(number)
        return ClearPage(len(found), (found[-1], str(found[-1])) if len(found) == 3 else None)


class AccountOld(DurableObject):
    """Holds two without an Engine; each call has one of them be born."""

    def bear(self, workflow_uuid: str) -> int:
        assert (self.ctx.ref.key, workflow_uuid) == ("acme/-/old", "u1")
        self.env["unborn"] = max(0, self.env["unborn"] - 1)
        return int(self.env["unborn"])


def cluster_at(folder: Path, **rows: list[int]) -> tuple[Cluster, dict[str, Any]]:
    seen: dict[str, Any] = {"rows": rows, "asked": [], "ended": [], "sources": set(), "unborn": 2}
    classes = {"Clearing": Clearing, "EngineShard": EngineShard, "AccountOld": AccountOld}
    envs = {"Clearing": ClearingEnv(SHARDS), "EngineShard": seen, "AccountOld": seen}
    return Cluster(folder, classes, envs, data_shards=2), seen


async def until_done(cluster: Cluster) -> None:
    while await cluster.router.call(ME, "is_running"):
        await asyncio.sleep(0.05)


async def test_all_shards_are_passed_once_though_each_crashes(tmp_path: Path) -> None:
    cluster, seen = cluster_at(tmp_path, d0=list(range(7)), d1=list(range(4)))
    assert await cluster.router.call(ME, "begin", "terminate", ["queued"], "r1")
    assert await cluster.router.call(ME, "begin", "terminate", ["queued"], "r1"), "the same again"
    assert not await cluster.router.call(ME, "begin", "terminate", [], "r2")
    for shard in ("c0", "d0", "d1", "c0"):
        await asyncio.sleep(0.012)
        cluster.crash(shard)
        cluster.open(shard)
    await until_done(cluster)
    assert {one[:2] for one in seen["ended"]} == {
        *(("d0", n) for n in range(7)), *(("d1", n) for n in range(4)),
    }  # fmt: skip
    assert all(
        one[1:] == ("acme", "u1", "terminate", ["queued"], "clear-r1") for one in seen["asked"]
    )
    assert await cluster.router.call(ME, "begin", "terminate", [], "r3"), "it may begin anew"
    await until_done(cluster)
    await cluster.close()


@pytest.mark.parametrize("source", ["api", "binding"])
async def test_what_asked_for_it_is_passed_on_over_a_crash(tmp_path: Path, source: str) -> None:
    cluster, seen = cluster_at(tmp_path, d0=list(range(7)), d1=[])
    for _ in range(2):
        assert await cluster.router.call(ME, "begin", "terminate", [], "r1", source)
        cluster.crash("c0")
        cluster.open("c0")
    await until_done(cluster)
    assert len(seen["ended"]) >= 7
    assert seen["sources"] == {source}
    await cluster.close()


async def test_a_deletion_stays_until_nothing_can_be_created_any_more(tmp_path: Path) -> None:
    cluster, seen = cluster_at(tmp_path, d0=list(range(4)), d1=[])
    assert await cluster.router.call(ME, "begin", "terminate", [], "r1")
    assert await cluster.router.call(ME, "begin", "delete", [], "u1"), "it takes the other's place"
    assert not await cluster.router.call(ME, "begin", "terminate", [], "r2")
    await asyncio.sleep(5)
    assert seen["rows"]["d0"] == []
    seen["rows"]["d1"].append(99)  # a front end that had not heard of it yet
    await asyncio.sleep(limits.CLEARING_LINGER_MS / 1_000)
    await until_done(cluster)
    assert seen["rows"] == {"d0": [], "d1": []}
    before = len(seen["asked"])
    await asyncio.sleep(600)
    assert len(seen["asked"]) == before
    await cluster.close()
