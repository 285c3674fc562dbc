"""What seeds decide: every kind comes up, none for ever, and the same each time."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from typing import Any

import pytest

from tests.testkit.shop import Cart, Order, Receipt, parallel, two_steps
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import SystemFault
from toque.runtime.limits import TESTKIT_MISHAPS_MAX
from toque.runtime.simnet import Weather
from toque.testing import SimFactory, Simulation, SimulationFault
from toque.testkit.mishaps import CALM, Fates, Mishaps, mishaps_of


def chance(name: object) -> SeededEntropy:
    """A generator."""
    return SeededEntropy(f"{name}")


def test_fifty_seeds_have_all_kinds_and_each_other_ones() -> None:
    kinds = Tally(
        kind for seed in range(50) for kind in mishaps_of(seed, chance(seed)).told().split(", ")
    )
    for kind in ("crashes", "lost messages", "messages that come late", "calls that come twice"):
        assert 5 < kinds[kind] < 45
    assert 5 < kinds["bodies that end in another order"] < 50
    assert kinds["pauses"] == kinds["with another owner meanwhile"] > 5
    assert mishaps_of(0, chance(0)) == Mishaps(order=True)
    assert mishaps_of(7, chance(7)) == mishaps_of(7, chance(7))
    assert CALM.told() == "nothing"


def test_mishaps_come_to_an_end() -> None:
    fates = Fates(Mishaps(crashes=1, pauses=1), chance("a"), chance("b"))
    struck = [fates.crash() is not None or fates.pause() is not None for _ in range(1_000)]
    assert sum(struck) == TESTKIT_MISHAPS_MAX
    assert not any(struck[TESTKIT_MISHAPS_MAX:])
    none = Fates(CALM, chance("a"), chance("b"))
    assert (none.crash(), none.pause(), none.body_s()) == (None, None, 0.0)


WORST = Mishaps(
    crashes=4,
    pauses=6,
    weather=Weather(delay_ms=5, loss=0.05, stall=0.01, tail=0.05, tail_ms=2_000, repeat=0.2),
    order=True,
)


@pytest.mark.parametrize("seed", range(6))
def test_the_worst_weather_does_not_show(seed: int) -> None:
    with Simulation([Order, parallel, two_steps], seed=seed, mishaps=WORST) as sim:
        long = sim.create(two_steps)
        orders = [sim.create(Order, Cart(total), id=f"o-{total}") for total in range(3)]
        sim.advance("4 days")
        for order in orders:
            order.send_event("packed", order.id)
        for total, order in enumerate(orders):
            assert order.result(Receipt) == Receipt(paid=total, parcel=f"parcel o-{total}")
        assert long.result() == ["quick", "slow"]
        assert sum(sim._world.faults.values()) > 20


def test_bodies_end_in_every_order() -> None:
    wanted = {"abc", "acb", "bac", "bca", "cab", "cba"}
    found: set[str] = set()
    for seed in range(60):
        with Simulation(parallel, seed=seed, mishaps=Mishaps(order=True)) as sim:
            found.add("".join(sim.create(parallel).result()))
        if found == wanted:
            break
    assert found == wanted


def test_what_toque_does_wrong_is_its_own_fault(toque_sim: SimFactory) -> None:
    sim = toque_sim(Order)
    order = sim.create(Order, Cart(1))
    owner = sim._world.sites["d0"].owner
    assert owner is not None
    sim._world.broken(owner, ValueError("by no fault of its disk"))
    with pytest.raises(SimulationFault, match="a store breaks only if it must") as told:
        order.result()
    assert "report it with the seed 0" in str(told.value)
    assert isinstance(told.value, SystemFault)
    sim._world.problem = None


def test_an_error_that_nobody_takes_is_logged(
    toque_sim: SimFactory, caplog: pytest.LogCaptureFixture
) -> None:
    from_bodies: list[Any] = []

    async def body() -> None:
        async def lost() -> None:
            raise ValueError("in a task that nobody awaits")

        from_bodies.append(asyncio.get_running_loop().create_task(lost()))

    sim = toque_sim(parallel)
    sim.mock_step("a", body)
    sim.create(parallel).result()
    from_bodies.clear()
    assert "in a task that nobody awaits" in sim.story()
    assert "in a task that nobody awaits" in caplog.text
