"""SousChefs with a real Gatekeeper, on real hosts and stores, in kind weather."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.souschef.world import Weather, World
from toque.runtime import limits
from toque.runtime.activation import Activation
from toque.runtime.entity import AlarmInfo
from toque.runtime.errors import EntityReset, Overloaded
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop
from toque.souschef.souschef import SousChef

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


@asynccontextmanager
async def world_at(folder: Path, **options: Any) -> AsyncIterator[World]:
    world = World(folder, **options)
    try:
        yield world
        assert world.too_many == []
        assert world.hasty_calls() == []
    finally:
        await world.close()


async def test_an_instance_is_granted_and_its_slot_comes_back(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        world.create("one", [50])
        took_s = await world.until(lambda: not world.unended(), 2)
        assert took_s < 0.2
        await world.until(lambda: not world.gatekeeper().statistics().ledger, 30)
        (key,) = world.cycles
        said = world.souschef(key).statistics()
        assert (said.holding, said.target, said.ended) == (0, 0, {"complete": 1})
        calls = sum(map(len, world.cycles.values()))
        await asyncio.sleep(600)
        assert sum(map(len, world.cycles.values())) == calls  # silent


async def test_a_create_after_a_lull_starts_without_a_cycle(tmp_path: Path) -> None:
    async with world_at(tmp_path, limit=50_000) as world:
        world.create("first", [50])
        await world.until(lambda: not world.unended(), 2)
        for pause_s in (0.3, 3.0, 40.0):  # within the period, while it lingers, after it has left
            await asyncio.sleep(pause_s)
            for n in range(50):
                world.create(f"after-{pause_s}-{n}", [50], n=1)
            took_s = await world.until(lambda: not world.unended(), 2)
            assert took_s < 0.2


@pytest.mark.parametrize(("delay_ms", "within_s"), [(0, 1.3), (5, 2.6)])
async def test_a_newcomer_has_its_share_within_little_more_than_a_cycle(
    tmp_path: Path, delay_ms: int, within_s: float
) -> None:
    """If its creates trickle in, its first call tells of the first ones only: a cycle more."""
    async with world_at(tmp_path, weather=Weather(delay_ms)) as world:
        for n in range(1_000):
            world.create(f"{n}", [200], workflow="acme/a")
        await asyncio.sleep(5)
        assert world.running == 20
        for n in range(10):
            world.create(f"{n}", [200], workflow="acme/b")
        b = [i for i in world.instances.values() if i.key.startswith("acme/b")]
        took_s = await world.until(lambda: all(i.granted_ms for i in b), 5)
        assert took_s <= within_s
        await world.until(lambda: not world.unended(), 60)


async def test_slots_stay_busy_while_there_is_demand(tmp_path: Path) -> None:
    """1,000 instances of 200 ms on 20 slots take 10 s; hand-overs cost little more."""
    async with world_at(tmp_path) as world:
        for n in range(1_000):
            world.create(f"{n}", [200])
        took_s = await world.until(lambda: not world.unended(), 60)
        assert took_s < 13


async def test_awakened_instances_go_before_new_ones(tmp_path: Path) -> None:
    async with world_at(tmp_path, limit=4) as world:
        for n in range(4):
            world.create(f"sleeper-{n}", [100, 1_000, 100], n=1)
        await asyncio.sleep(0.5)
        for n in range(200):
            world.create(f"new-{n}", [500], n=1)
        sleepers = [i for i in world.instances.values() if "sleeper" in i.key]
        took_s = await world.until(lambda: all(i.state == "ended" for i in sleepers), 10)
        assert took_s < 3
        await world.until(lambda: not world.unended(), 60)


async def test_a_lowered_limit_binds_and_a_raised_one_is_used(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        for n in range(400):
            world.create(f"{n}", [500])
        await asyncio.sleep(3)
        world.gatekeeper().set_limit(5)
        await asyncio.sleep(4)
        world.limit = 5
        assert world.running <= 5
        await world.until(lambda: world.running == 5, 5)
        world.limit = 40
        world.gatekeeper().set_limit(40)
        await world.until(lambda: world.running == 40, 4)
        await world.until(lambda: not world.unended(), 60)


@pytest.mark.parametrize("event", ["alarm", "report"])
async def test_a_call_that_is_cut_short_ends_the_activation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """What it has in memory is wrong then, and may not be written by the next event."""
    async with world_at(tmp_path) as world:
        world.create("sleeper", [50, 5_000, 50])
        await asyncio.sleep(1)
        (key,) = world.cycles
        souschef = world.souschef(key)
        call = {"alarm": lambda: souschef.alarm(AlarmInfo(0)),
                "report": lambda: souschef.report([])}[event]  # fmt: skip

        def full(*_: Any) -> None:
            raise Overloaded("the next batch is full.")

        with monkeypatch.context() as patched:
            patched.setattr(souschef._roster, "due_pokes", full)
            patched.setattr(souschef._roster, "on_reports", full)
            with pytest.raises(Overloaded):
                call()
        with pytest.raises(EntityReset):
            call()
        await world.until(lambda: not world.unended(), 60)


async def test_what_was_reported_goes_on_though_the_store_is_full_right_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody speaks to it again, so it has to come back by itself."""
    plain, refused = Activation.set_alarm, []

    def full_once(activation: Activation, at_ms: int) -> None:
        if activation.ref.kind == SousChef.KIND and not refused:
            refused.append(at_ms)
            raise Overloaded("the next batch is full.")
        plain(activation, at_ms)

    monkeypatch.setattr(Activation, "set_alarm", full_once)
    async with world_at(tmp_path) as world:
        world.create("one", [50])
        await world.until(lambda: not world.unended(), limits.SOUSCHEF_ALARM_MS / 1000 + 60)
    assert len(refused) == 1


async def test_all_goes_on_after_a_crash_of_everything(tmp_path: Path) -> None:
    async with world_at(tmp_path, control_shards=1) as world:
        for n in range(200):
            world.create(f"{n}", [300, 2_000, 100])
        await asyncio.sleep(1.5)
        world.crash("c0")
        await asyncio.sleep(2)
        world.open("c0")
        await world.until(lambda: not world.unended(), 60)
        await world.until(lambda: not world.gatekeeper().statistics().ledger, 30)


async def test_a_lease_is_given_back_though_its_holder_crashed_meanwhile(tmp_path: Path) -> None:
    async with world_at(tmp_path, control_shards=1) as world:
        world.create("one", [50])
        await world.until(lambda: not world.unended(), 2)
        await asyncio.sleep(1)
        world.crash("c0")
        world.open("c0")
        assert world.gatekeeper().statistics().ledger > 0
        await world.until(lambda: not world.gatekeeper().statistics().ledger, 30)


async def test_an_engine_that_overslept_is_poked_and_its_lateness_known(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        world.create("one", [50, 5_000, 50], n=1)
        instance = world.instances["acme/w/one"]
        await world.until(lambda: instance.state == "waiting" and not instance.reporting, 2)
        instance.mute = True  # its timer is lost
        took_s = await world.until(lambda: instance.state == "ended", 60)
        assert took_s < (5_000 + limits.POKE_AFTER_MS + 2 * limits.POKE_EVERY_MS) / 1000
        lateness = world.souschef("acme/w/0").statistics().lateness
        assert lateness.count == 1
        assert limits.POKE_AFTER_MS <= lateness.max_ms <= limits.POKE_AFTER_MS + 6_000


async def test_a_long_sleeper_is_poked_though_all_was_evicted(tmp_path: Path) -> None:
    """Nothing is in memory but the alarm while only sleepers are left."""
    async with world_at(tmp_path) as world:
        world.create("one", [50, 3_600_000, 50], n=1)
        instance = world.instances["acme/w/one"]
        await world.until(lambda: instance.state == "waiting" and not instance.reporting, 2)
        instance.mute = True
        await asyncio.sleep(600)
        key = EntityRef("SousChef", "acme/w/0")
        assert all(host.peek(key) is None for host in world.hosts.values())
        await world.until(lambda: instance.state == "ended", 3_700)


async def test_a_slot_of_an_engine_that_is_gone_comes_back(tmp_path: Path) -> None:
    async with world_at(tmp_path, limit=1) as world:
        world.create("gone", [10_000_000], n=1)
        await world.until(lambda: world.running == 1, 2)
        await asyncio.sleep(1)
        del world.instances["acme/w/gone"]
        world.running -= 1
        world.create("next", [50], n=1)
        took_s = await world.until(lambda: not world.unended(), 200)
        assert took_s < (limits.POKE_HELD_AFTER_MS + 2 * limits.POKE_EVERY_MS) / 1000


async def test_a_restarted_instance_runs_once_more(tmp_path: Path) -> None:
    async with world_at(tmp_path, limit=2) as world:
        for n in range(6):
            world.create(f"{n}", [400], n=1)
        await asyncio.sleep(0.6)
        for instance in list(world.instances.values()):
            world.restart(instance, [400])
        await world.until(lambda: not world.unended(), 60)
        assert all(len(i.granted_ms) == 1 for i in world.instances.values())
        await asyncio.sleep(1)
        assert world.souschef("acme/w/0").statistics().holding == 0


async def test_grants_of_a_turn_travel_together(tmp_path: Path) -> None:
    async with world_at(tmp_path, limit=10_000) as world:
        world.create("warm", [1], n=1)
        await asyncio.sleep(2)
        before = world.calls["grant_many"]
        world.weather.delay_ms_max = 0
        for n in range(500):
            world.create(f"{n}", [50], n=1)
        await world.until(lambda: not world.unended(), 5)
        assert world.calls["grant_many"] - before <= 8


@pytest.mark.parametrize("lost", [0.0, 0.2])
async def test_of_a_herd_a_window_of_grants_is_on_its_way(tmp_path: Path, lost: float) -> None:
    async with world_at(tmp_path, limit=10_000) as world:
        world.create("warm", [1], n=1)
        await world.until(lambda: not world.unended(), 5)
        world.weather.lost, world.weather.delay_ms_max = lost, 400
        for n in range(6 * limits.GRANTS_IN_FLIGHT_MAX):
            world.create(f"{n}", [50], n=1)
        await world.until(lambda: not world.unended(), 200)
        most = limits.GRANTS_IN_FLIGHT_MAX + limits.GRANTS_PER_CALL_MAX
        assert world.most_flying >= limits.GRANTS_IN_FLIGHT_MAX
        assert world.most_flying < most + limits.GRANTS_PER_CALL_MAX  # one is being answered


async def test_who_queues_is_told_where(tmp_path: Path) -> None:
    async with world_at(tmp_path, limit=1) as world:
        world.create("first", [50_000], n=1)
        await world.until(lambda: world.running == 1, 5)
        for name in ("second", "third"):
            world.create(name, [50], n=1)
            await asyncio.sleep(1)
        chef = world.souschef("acme/w/0")
        first, second, third = (chef.place_of(f"acme/w/{n}") for n in ("first", "second", "third"))
        assert (first.state, second.state, third.state) == ("granted", "queued", "queued")
        assert (second.lane, second.position, third.position) == ("new", 1, 2)
        assert (third.queued, third.holding, third.target) == (2, 1, 1)
        assert chef.place_of("acme/w/other").state == "elsewhere"
        await world.until(lambda: not world.unended(), 200)
