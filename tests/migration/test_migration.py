"""An account moves from V1 to V2 by the entity that makes the move, whichever shard dies."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.migration.rig import ACME, OLD, Rig, rig_at
from toque.gatekeeper.planes import WrongControlPlane
from toque.migration.messages import MigrationPlan, MigrationStatus
from toque.migration.refusals import (
    AbortRefused,
    MigrationNotFound,
    MigrationRefused,
    MigrationUnderWay,
)
from toque.runtime.errors import InvalidArgument, RequestIdReused, SystemFault
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)
ME = EntityRef("Migration", ACME)
LIMIT = 3
_IDS = itertools.count()


async def me(rig: Rig, method: str, *args: Any) -> MigrationStatus:
    return await rig.call(MigrationStatus, ME, method, *args)


def new_id() -> str:
    """A request's."""
    return f"request-{next(_IDS)}"


async def status(rig: Rig) -> MigrationStatus:
    """How it stands, as soon as its shard answers."""
    while True:
        try:
            return await me(rig, "status")
        except SystemFault:
            await asyncio.sleep(0.01)


async def until(rig: Rig, *states: str) -> MigrationStatus:
    since_s = rig.loop.time()
    while (found := await status(rig)).state not in states:
        assert rig.loop.time() < 400, found
        await asyncio.sleep(max(0.005, (rig.loop.time() - since_s) / 20))
    return found


async def fill(rig: Rig, count: int = 12) -> None:
    """Some that run, queue or are unborn, one that waits."""
    await rig.create("waits", "ask")
    for number in range(count):
        await rig.create(f"n{number}", params=b"0.3")


async def checked(rig: Rig, count: int = 12) -> None:
    """All have ended as they must, once, and no more ran than may."""
    names = [row.id for row in await rig.rows_v2()]
    assert sorted(names) == sorted(f"n{number}" for number in range(count))
    assert {row.status for row in await rig.rows_v2()} == {"complete"}
    assert 0 < rig.bodies.most <= LIMIT


async def test_it_goes_all_its_way(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=LIMIT, lost_births=4, retention_ms=30_000) as rig:
        await fill(rig)
        before = await rig.rows()
        plan = await rig.call(MigrationPlan, ME, "plan")
        assert (plan.objections, plan.workflows, plan.plane) == ([], 2, "v1")
        assert (await me(rig, "status")).state == "none"
        began = await me(rig, "start", "r1", 0)
        assert (began.migration_id, began.plane in ("v1", "moving", "v2")) == ("000000001", True)
        assert (await me(rig, "start", "r1", 0)).migration_id == "000000001", "the same again"
        found = await until(rig, "healed")
        assert (found.old and found.old.unborn, found.plane) == (0, "v2")
        assert found.frozen is not None
        assert (found.frozen.unborn > 0, found.frozen.holding <= LIMIT) == (True, True)
        assert [row[:1] + row[2:3] for row in map(tuple_of, await rig.rows_v2())] == [
            row[:1] + row[2:3] for row in map(tuple_of, before)
        ], "the same list in the same order"
        await rig.call(int, EntityRef("Engine", rig.key("waits", "ask")), "send_event",
                       "answer", b"1", "e1")  # fmt: skip
        await until(rig, "drained")
        await checked(rig)
        found = await until(rig, "retired")
        assert [state for state, _ in found.log] == [
            "planned", "frozen", "adopted", "routed", "healed", "drained", "retired",
        ]  # fmt: skip
        times = dict(found.log)
        assert times["routed"] - times["planned"] < 200, "callers wait that long at most"
        assert (await rig.snapshot()).plane.from_v1 is False


def tuple_of(row: Any) -> tuple[Any, ...]:
    return (row.id, row.status, row.created_ms)


@pytest.mark.parametrize("state", ["planned", "frozen", "adopted", "routed", "healed"])
@pytest.mark.parametrize("at", [ME, OLD, None], ids=["Migration", "AccountOld", "everything"])
async def test_a_shard_that_dies_in_a_state_changes_nothing(
    tmp_path: Path, state: str, at: EntityRef | None
) -> None:
    """Other commits are for the simulation."""
    async with rig_at(tmp_path, running_max=LIMIT, lost_births=4, control_shards=4) as rig:
        await fill(rig, 8)
        await me(rig, "start", "r1", 0)
        while state not in dict((await status(rig)).log):
            await asyncio.sleep(0.001)
        victims = list(rig.shards) if at is None else [rig.home(at)]
        for number, shard in enumerate(victims):
            rig.crash(shard, ("lost", "kept")[number % 2])
        await until(rig, "healed")
        ref = EntityRef("Engine", rig.key("waits", "ask"))
        await rig.call(int, ref, "send_event", "answer", b"1", "e1")
        await until(rig, "drained")
        await checked(rig, 8)


@pytest.mark.parametrize("state", ["frozen", "adopted"])
async def test_a_clock_that_is_set_back_holds_no_account(tmp_path: Path, state: str) -> None:
    """Its alarm is an hour ahead then; whoever looks has it go on."""
    async with rig_at(tmp_path, running_max=LIMIT, lost_births=4, control_shards=4) as rig:
        await fill(rig, 4)
        await me(rig, "start", "r1", 0)
        while state not in dict((await status(rig)).log):
            await asyncio.sleep(0.001)
        rig.clock.skew_ms = -3_600_000
        rig.crash(rig.home(ME))
        found = await until(rig, "healed")
        assert found.plane == "v2"


async def test_who_looks_is_shown_what_is(tmp_path: Path) -> None:
    """By itself it looks the more seldom the longer it takes: then once a minute, or an hour."""
    async with rig_at(tmp_path, retention_ms=1_000) as rig:
        await rig.create("waits", "ask")
        await me(rig, "start", "r1", 0)
        await until(rig, "healed")
        await asyncio.sleep(3_600)
        ref = EntityRef("Engine", rig.key("waits", "ask"))
        await rig.call(int, ref, "send_event", "answer", b"1", "e1")
        began_s = rig.loop.time()
        while (found := await me(rig, "status")).state != "drained":
            assert rig.loop.time() < began_s + 5, found
            await asyncio.sleep(0.5)


async def test_it_holds_where_it_may_and_goes_on(tmp_path: Path) -> None:
    async with rig_at(tmp_path, lost_births=3) as rig:
        await fill(rig, 4)
        await me(rig, "start", "r1", 2_000)
        with pytest.raises(MigrationUnderWay, match="planned"):
            await me(rig, "start", "r2", 0)
        assert (await me(rig, "pause", new_id())).holds
        await asyncio.sleep(3)
        found = await me(rig, "status")
        assert (found.state, found.holds, found.plane) == ("planned", True, "v1")
        assert (await me(rig, "resume", "go on")).holds is False
        await me(rig, "pause", new_id())
        assert (await me(rig, "resume", "go on")).paused, "a late copy changes nothing"
        await me(rig, "resume", new_id())
        await until(rig, "healed")
        await me(rig, "pause", new_id())
        await asyncio.sleep(10)
        assert (await me(rig, "status")).state == "healed"
        await me(rig, "resume", new_id())
        ref = EntityRef("Engine", rig.key("waits", "ask"))
        await rig.call(int, ref, "send_event", "answer", b"1", "e1")
        await until(rig, "drained")


@pytest.mark.parametrize("same", [True, False], ids=["the same", "another"])
async def test_two_begin_it_at_once(tmp_path: Path, same: bool) -> None:
    """However far apart: one migration, and each is told how that stands."""
    async with rig_at(tmp_path, control_shards=4) as rig:
        for turns in range(60):
            first = asyncio.create_task(me(rig, "start", f"r{turns}", 60_000))
            for _ in range(turns):
                await asyncio.sleep(0)
            second = me(rig, "start", f"r{turns}" if same else f"s{turns}", 60_000)
            results = await asyncio.gather(first, second, return_exceptions=True)
            refused = [each for each in results if isinstance(each, BaseException)]
            assert [type(each) for each in refused] == ([] if same else [MigrationUnderWay]), turns
            told = {each.migration_id for each in results if isinstance(each, MigrationStatus)}
            assert told == {(await me(rig, "abort", new_id())).migration_id}


async def test_a_late_copy_changes_nothing_of_the_next_migration(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        await me(rig, "start", "r1", 60_000)
        await me(rig, "abort", "a1")
        for change, request_id in (("abort", "a2"), ("pause", "p1"), ("resume", "g1")):
            assert (await me(rig, change, request_id)).state == "aborted"
        await me(rig, "start", "r2", 60_000)
        for change, request_id in (("abort", "a1"), ("abort", "a2"), ("pause", "p1")):
            found = await me(rig, change, request_id)
            assert (found.state, found.paused) == ("planned", False), request_id
        with pytest.raises(RequestIdReused):
            await me(rig, "pause", "r2")
        assert (await me(rig, "status")).paused is False


async def test_a_pause_holds_before_the_old_entity_goes(tmp_path: Path) -> None:
    async with rig_at(tmp_path, retention_ms=1_000) as rig:
        await rig.create("n1", params=b"0")
        await me(rig, "start", "r1", 0)
        await until(rig, "drained")
        assert (await me(rig, "pause", "p1")).holds
        await asyncio.sleep(300)
        assert (await me(rig, "status")).state == "drained"
        await me(rig, "resume", "g1")
        await until(rig, "retired")


async def hold_routed(rig: Rig, request_id: str) -> MigrationStatus:
    """Begin it, and have it hold as soon as V2 serves."""
    await me(rig, "start", request_id, 0)
    while (await me(rig, "status")).state == "planned":
        await asyncio.sleep(0.001)
    await me(rig, "pause", new_id())
    found = await until(rig, "routed")
    assert found.holds
    return found


async def test_it_is_taken_back_and_made_again(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=LIMIT, lost_births=4) as rig:
        await fill(rig, 8)
        with pytest.raises(MigrationNotFound, match=f"toque migrate start {ACME}"):
            await me(rig, "abort", new_id())
        await me(rig, "start", "r1", 60_000)
        assert (await me(rig, "abort", new_id())).state == "aborted", "before it has begun"
        found = await hold_routed(rig, "r2")
        assert (found.final, found.plane) == ("", "v2")
        found = await me(rig, "abort", new_id())
        assert (found.state, found.plane) == ("aborted", "v1")
        assert (await me(rig, "abort", new_id())).state == "aborted", "again"
        with pytest.raises(WrongControlPlane):
            await rig.snapshot()
        await rig.create("again", params=b"0")
        await me(rig, "start", "r3", 0)
        found = await until(rig, "healed")
        assert found.migration_id == "000000003"


async def test_it_is_too_late_after_the_first_create_of_v2(tmp_path: Path) -> None:
    async with rig_at(tmp_path, running_max=LIMIT, lost_births=2) as rig:
        await fill(rig, 4)
        await hold_routed(rig, "r1")
        before_ms = rig.clock.now_ms()
        await rig.create_v2("first", params=b"0")
        after_ms = rig.clock.now_ms()
        with pytest.raises(AbortRefused, match=r"can't be aborted, since 2\d{3}-") as late:
            await me(rig, "abort", new_id())
        assert before_ms <= late.value.data["since_ms"] <= after_ms
        found = await me(rig, "status")
        assert (found.state, found.plane) == ("routed", "v2")
        assert "made" in found.final or "taken" in found.final
        await me(rig, "resume", new_id())
        await until(rig, "healed")
        with pytest.raises(AbortRefused):
            await me(rig, "abort", new_id())


async def test_what_can_not_be_moved_is_refused(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        with pytest.raises(InvalidArgument, match="within 7 days"):
            await me(rig, "start", "r1", -1)
        await me(rig, "start", "r1", 0)
        await until(rig, "drained", "retired")
        with pytest.raises((MigrationRefused, MigrationUnderWay), match=r"not on V1|being moved"):
            await me(rig, "start", "r2", 0)
        other = EntityRef("Migration", "never")
        plan = await rig.call(MigrationPlan, other, "plan")
        assert plan.objections == ["It is not on V1: there is nothing to move."]
        with pytest.raises(MigrationRefused, match="not on V1") as refused:
            await rig.call(MigrationStatus, other, "start", "r1", 0)
        assert refused.value.data["objections"] == plan.objections
        assert (await rig.call(MigrationStatus, other, "status")).state == "none"
