"""SousChefs and Gatekeeper in bad weather: the limit holds at every instant, nobody is stuck.

Messages are late, doubled and lost; control shards crash at any point of a commit, come back, are
taken over while the old owner still runs, and refuse rows. In the end all have run, no slot is
held and the ledger is empty. A seed gives the same run each time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.souschef.world import Weather, World
from toque.gatekeeper.slots import GatekeeperFaults
from toque.runtime import limits
from toque.runtime.entropy import SeededEntropy
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)

STORM = Weather(delay_ms_max=400, lost=0.1, doubled=0.2, commit_ms_max=40)
WORKFLOWS = ("acme/a", "acme/b", "acme/c")


def plan_of(random: SeededEntropy) -> list[int]:
    """Runs and sleeps of random lengths, up to three runs."""
    plan = [random.randrange(900)]
    for _ in range(random.randrange(3)):
        plan += [random.randrange(4_000), random.randrange(900)]
    return plan


async def create_over_time(world: World, random: SeededEntropy, count: int) -> None:
    """Creates in bursts, over some 20 s; some are restarted."""
    for n in range(count):
        workflow = WORKFLOWS[random.randrange(len(WORKFLOWS))]
        world.create(f"{n}", plan_of(random), workflow=workflow)
        if random.random() < 0.05:
            await asyncio.sleep(random.randrange(2_000) / 1000)
        if random.random() < 0.05:
            keys = list(world.instances)
            instance = world.instances[keys[random.randrange(len(keys))]]
            world.restart(instance, plan_of(random))


async def make_trouble(world: World, random: SeededEntropy, times: int) -> None:
    """Crash control shards, take them over, fill their stores."""
    for _ in range(times):
        await asyncio.sleep(random.randrange(3_000) / 1000)
        shard = world.placement.control_names()[random.randrange(3)]
        kind = random.random()
        if kind < 0.3:
            world.take_over(shard)
            continue
        if kind < 0.5:
            world.fill(shard, 2 + random.randrange(10))
            await asyncio.sleep(random.randrange(1_500) / 1000)
            world.fill(shard, limits.BATCH_ROWS_MAX)
            continue
        world.crash(shard)
        await asyncio.sleep(random.randrange(1_500) / 1000)
        if shard not in world.hosts:
            world.open(shard)


@pytest.mark.parametrize("seed", range(6))
async def test_the_limit_holds_and_all_run_in_a_storm(tmp_path: Path, seed: int) -> None:
    random = SeededEntropy(seed)
    world = World(tmp_path, seed, 1 + random.randrange(12), STORM, control_shards=3)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(create_over_time(world, random, 150))
            group.create_task(make_trouble(world, random, 12))
        await world.until(lambda: not world.unended(), 3_000)
        assert world.too_many == []
        assert world.hasty_calls() == []
        world.weather.__init__()  # type: ignore[misc]
        await world.until(lambda: not world.gatekeeper().statistics().ledger, 300)
        for key in world.cycles:
            said = world.souschef(key).statistics()
            assert (said.holding, said.awakened, said.fresh, said.target) == (0, 0, 0, 0)
    finally:
        await world.close()


async def told_by(seed: int, folder: Path) -> tuple[float, dict[str, int], int]:
    """When all had ended, and what was said until then."""
    folder.mkdir()
    random = SeededEntropy(seed)
    world = World(folder, seed, 5, STORM, control_shards=3)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(create_over_time(world, random, 40))
            group.create_task(make_trouble(world, random, 4))
        await world.until(lambda: not world.unended(), 3_000)
        return world.loop.time(), dict(world.calls), world.refused
    finally:
        await world.close()


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    told = []
    for attempt, seed in enumerate((7, 7, 8)):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            told.append(runner.run(told_by(seed, tmp_path / str(attempt))))
    assert told[0] == told[1] != told[2]


async def test_a_gatekeeper_that_grants_outside_its_ledger_is_caught(tmp_path: Path) -> None:
    """The checker can fail."""
    faults = GatekeeperFaults(grant_outside_ledger=True)
    world = World(tmp_path, limit=3, faults=faults)
    try:
        for n in range(20):
            world.create(f"{n}", [500])
        await world.until(lambda: not world.unended(), 60)
        assert world.too_many
    finally:
        await world.close()
