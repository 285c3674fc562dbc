"""The move of an account: each step, again and late, over crashes, and what stays exact."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.migration.rig import ACCOUNT, ACME, GATEKEEPER, OLD, Rig, rig_at
from toque.engines.views import IndexRow, InstanceView
from toque.gatekeeper.account import Account
from toque.gatekeeper.messages import (
    AccountSnapshot,
)
from toque.gatekeeper.planes import StaleMigration, WrongControlPlane
from toque.migration.messages import Asked, Frozen, RegistryPart
from toque.migration.refusals import AbortRefused
from toque.runtime.simloop import VirtualTimeLoop
from toque.souschef.rows import HELD, ORDER, PARKED

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


# --- what stays the same, and exact ---------------------------------------------------------


def _roster_rows(rig: Rig) -> list[list[Any]]:
    ctx = rig.entity().ctx
    return [ctx.scan(table, (OLD.key,)) for table in (HELD, PARKED, ORDER)]


async def _mixed(rig: Rig) -> None:
    """Instances that run, wait, are paused, queued, ended and unborn."""
    for n in range(4):
        await rig.create(f"done/{n}", params=b"0.001", wait_ms=5_000)
    for n in range(3):
        await rig.create(f"ask/{n}", "ask")

    async def all_wait() -> bool:
        return (await rig.counts("ask")) == {"waiting": 3}

    await rig.until(all_wait)
    await rig.forward(InstanceView, "ask/0", "pause", "p", workflow="ask")
    for n in range(12):
        await rig.create(f"long/{n}", params=b"30")
    await asyncio.sleep(1)


async def test_the_same_rows_serve_both_planes(tmp_path: Path) -> None:
    async with rig_at(tmp_path, v1=(5, 1_000), lost_births=8) as rig:
        await _mixed(rig)
        before, listed = _roster_rows(rig), await rig.rows()
        counts = await rig.counts()
        asked = await rig.rows("ask")
        frozen = await rig.move()
        assert _roster_rows(rig) == before
        assert list(map(len, before)) == [5, 8, 7]
        unborn = (await rig.status()).unborn
        assert frozen == Frozen(
            "m1", frozen.at_ms, frozen.lease_version, 5, 5, 2, 1, unborn, 50, 2, 5
        )
        assert unborn == 2
        for then, now in ((listed, await rig.rows_v2()), (asked, await rig.rows_v2("ask"))):
            assert [_told(row) for row in then] == [_told(row) for row in now]
        rows = await rig.rows_v2()
        assert counts == {status: sum(row.status == status for row in rows) for status in counts}


def _told(row: IndexRow) -> tuple[Any, ...]:
    return row.id, row.status, row.created_ms, row.ended_ms, row.version_id, row.source


async def test_limits_are_exact_over_the_move(tmp_path: Path) -> None:
    """10 slots, full before, in between and after, with creates on both planes."""
    async with rig_at(tmp_path, running_max=10, v1=(10, 1_000), lost_births=7) as rig:
        for n in range(60):
            await rig.create(f"old/{n}", params=b"0.7")
        await asyncio.sleep(1)
        frozen = await rig.freeze()
        assert frozen.holding == rig.bodies.running == 10
        await asyncio.sleep(1)  # slots that are left are used again, and no other
        assert rig.bodies.running == 10
        await rig.adopt(frozen)
        assert (await rig.gatekeeper()).ledger == 10
        await rig.old(None, "route", "m1")
        for n in range(40):
            await rig.create_v2(f"new/{n}", params=b"0.3")
            await asyncio.sleep(0.02)
        await rig.heal()

        async def all_done() -> bool:
            rows = await rig.rows_v2()
            return len(rows) == 100 and all(row.status == "complete" for row in rows)

        await rig.until(all_done, 60)
        assert rig.bodies.most == 10
        assert rig.bodies.begun == 100
        assert (await rig.status()).ended == 60
        await asyncio.sleep(30)
        statistics = await rig.gatekeeper()
        assert (statistics.ledger, statistics.active) == (0, 0)


async def test_more_may_run_on_v2_and_never_more_than_the_account_may(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=30, v1=(5, 1_000)) as rig:
        for n in range(60):
            await rig.create(f"{n}", params=b"2")
        await asyncio.sleep(1)
        assert rig.bodies.running == 5
        await rig.move()
        await rig.heal()
        await rig.until_ended(60, 30)
        assert rig.bodies.most == 30


async def test_a_lowered_limit_is_obeyed_on_either_side(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=20, v1=(20, 1_000)) as rig:
        for n in range(60):
            await rig.create(f"{n}", params=b"5")
        await asyncio.sleep(1)
        await rig.old(AccountSnapshot, "set_limits", 4)
        await asyncio.sleep(3)
        frozen = await rig.freeze()
        assert (frozen.holding, frozen.running_max, frozen.target) == (20, 4, 4)
        await rig.adopt(frozen)
        statistics = await rig.gatekeeper()
        assert (statistics.ledger, statistics.running_max) == (20, 4)
        await asyncio.sleep(1.3)  # all 20 end while the account moves
        assert rig.bodies.running == 4
        assert rig.bodies.begun == 24
        await rig.old(None, "route", "m1")
        await rig.until_ended(60, 100)
        assert rig.bodies.most_of(24) == 4


# --- again, late, over crashes --------------------------------------------------------------

STEPS = ("freeze", "gatekeeper", "part", "account", "route", "heal", "healed")


async def _step(rig: Rig, step: str, migration_id: str, frozen: Frozen) -> Any:
    if step == "freeze":
        return await rig.freeze(migration_id)
    if step == "gatekeeper":
        return await rig.call(None, GATEKEEPER, "adopt", migration_id, frozen)
    if step == "part":
        after = None
        while True:
            part = await rig.old(RegistryPart, "registry_part", migration_id, after)
            await rig.call(None, ACCOUNT, "adopt_part", migration_id, part)
            after = part.after
            if after is None:
                return None
    if step == "account":
        return await rig.call(None, ACCOUNT, "adopt", migration_id)
    if step == "route":
        return await rig.old(None, "route", migration_id)
    if step == "heal":
        while await rig.old(int, "heal", migration_id):
            await asyncio.sleep(0.1)
        return None
    await rig.old(None, "healed", migration_id)
    return await rig.call(None, ACCOUNT, "healed", migration_id)


@pytest.mark.parametrize("victim", ["old", "account", "gatekeeper", "data"])
@pytest.mark.parametrize("outcome", ["kept", "lost"])
async def test_each_step_may_come_again_after_a_crash(
    tmp_path: Path, victim: str, outcome: str
) -> None:
    shards = {"old": OLD, "account": ACCOUNT, "gatekeeper": GATEKEEPER}
    async with rig_at(
        tmp_path, running_max=8, v1=(8, 1_000), lost_births=5, control_shards=3
    ) as rig:
        for n in range(40):
            await rig.create(f"{n}", params=b"0.5")
        await asyncio.sleep(1)
        first = await rig.freeze()
        for step in STEPS:
            before = await _step(rig, step, "m1", first)
            rig.crash("d0" if victim == "data" else rig.home(shards[victim]), outcome)
            await asyncio.sleep(0.3)
            assert await _step(rig, step, "m1", first) == before
        assert first == await rig.freeze()
        await rig.until_ended(40, 200)
        if victim != "data":  # a body of a data shard that died runs once more
            assert rig.bodies.most == 8
            assert rig.bodies.begun == 40
        status = await rig.status()
        assert (status.plane, status.healing, status.unborn) == ("v2", False, 0)
        snapshot = await rig.snapshot()
        assert [record.uuid for record in snapshot.workflows or ()] == [
            rig.records[name].uuid for name in sorted(rig.records)
        ]
        assert snapshot.plane.from_v1


async def test_late_messages_of_an_aborted_migration_change_nothing(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=8, v1=(8, 1_000), lost_births=5) as rig:
        for n in range(20):
            await rig.create(f"{n}", params=b"20")
        await asyncio.sleep(1)
        frozen = await rig.move()
        parts = [await rig.old(RegistryPart, "registry_part", "m1", None)]
        await rig.abort()

        async def late() -> None:
            for ref, method, args in [
                (OLD, "freeze", ("m1",)),
                (OLD, "registry_part", ("m1", None)),
                (OLD, "route", ("m1",)),
                (OLD, "heal", ("m1",)),
                (OLD, "healed", ("m1",)),
                (OLD, "retire", ("m1",)),
                (GATEKEEPER, "adopt", ("m1", frozen)),
                (ACCOUNT, "adopt_part", ("m1", parts[0])),
                (ACCOUNT, "adopt", ("m1",)),
                (ACCOUNT, "healed", ("m1",)),
                (ACCOUNT, "retired", ("m1",)),
            ]:
                with pytest.raises((StaleMigration, WrongControlPlane)):
                    await rig.router.call(ref, method, *args)
            await rig.abort()  # again

        await late()
        status = await rig.status()
        assert (status.plane, status.target, status.unborn) == ("v1", 8, 4)
        assert (await rig.gatekeeper()).ledger == 0
        with pytest.raises(WrongControlPlane):
            await rig.snapshot()
        second = await rig.move("m2")
        assert second.lease_version > frozen.lease_version
        await late()
        status = await rig.status()
        assert (status.plane, status.migration_id, status.healing) == ("v2", "m2", True)
        assert (await rig.gatekeeper()).ledger >= 8
        with pytest.raises(StaleMigration):
            await rig.freeze("m3")
        await rig.heal("m2")
        await late()
        await rig.until_ended(20, 200)
        assert rig.bodies.most == 8


async def test_an_answer_of_an_older_lease_is_not_obeyed(tmp_path: Path) -> None:
    """The Gatekeeper's answer is on its way when the account goes back to V1."""
    async with rig_at(tmp_path, running_max=30, v1=(5, 1_000)) as rig:
        for n in range(40):
            await rig.create(f"{n}", params=b"20")
        await rig.move()
        chef = rig.entity()
        while not chef._calling:
            await asyncio.sleep(0.001)
        await rig.old(None, "abort", "m1")
        await asyncio.sleep(3)
        assert (await rig.status()).target == 5
        assert not chef._calling
        assert rig.bodies.running == 5


# --- abort ----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(len(STEPS) - 1))
async def test_an_abort_leaves_v1_as_it_was(tmp_path: Path, steps: int) -> None:
    async with rig_at(tmp_path, running_max=8, v1=(8, 1_000), lost_births=4) as rig:
        await _mixed(rig)
        before, counts = await rig.old(AccountSnapshot, "snapshot", -1), await rig.counts()
        frozen = await rig.freeze()
        for step in STEPS[: steps + 1]:
            await _step(rig, step, "m1", frozen)
        await rig.abort()
        assert await rig.old(AccountSnapshot, "snapshot", -1) == before
        assert await rig.counts() == counts
        account = rig.shards[rig.home(ACCOUNT)].host.local(ACCOUNT)
        assert not any(account.ctx.scan(table, (ACME,)) for table in Account.REGISTRY)
        assert (await rig.gatekeeper()).holders == 0
        await rig.create("after", params=b"1")
        await rig.move("m2")
        await rig.heal("m2")

        async def ended() -> bool:
            return (await rig.status()).ended == 17

        await rig.until(ended, 200)
        assert rig.bodies.most <= 8


async def test_after_the_first_create_there_is_no_way_back(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.move()
        await rig.ask(rig.key("new"), creates=False)
        assert (await rig.status()).first_create_ms == 0
        at_ms = rig.clock.now_ms()
        await rig.create_v2("new")
        rig.crash(rig.home(OLD))
        with pytest.raises(AbortRefused) as caught:
            await rig.old(None, "abort", "m1")
        assert at_ms <= caught.value.data["since_ms"] <= rig.clock.now_ms()
        assert (await rig.status()).plane == "v2"


async def test_a_change_of_the_registry_ends_the_way_back_too(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await rig.move()
        assert await rig.ask("", creates=True) == Asked(False, True)
        with pytest.raises(AbortRefused):
            await rig.old(None, "abort", "m1")


async def test_what_is_healed_can_not_be_aborted(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=2) as rig:
        await rig.create("0")
        await rig.create("1")
        await rig.move()
        with pytest.raises(StaleMigration):
            await rig.old(None, "healed", "m1")  # one is unborn
        await rig.heal()
        with pytest.raises(AbortRefused):
            await rig.old(None, "abort", "m1")
