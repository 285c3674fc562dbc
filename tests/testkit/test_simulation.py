"""Simulations as a test of a workflow uses them: time, events, waits that never end, wrong use."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.testkit.shop import Cart, Counter, Order, Receipt, parallel, two_steps
from toque import (
    InstanceAlreadyExists,
    InstanceFailed,
    InstanceNotFound,
    InvalidArgument,
    PayloadMismatch,
    WorkflowEntrypoint,
    workflow,
)
from toque.runtime.errors import WorkflowLoadError
from toque.testing import SimFactory, Simulation, WaitsForever, toque_seeds


@workflow
async def sleepy(event: Any, step: Any) -> list[float]:
    """Sleeps for so many days; when it was asked, and when it woke."""
    for number, days in enumerate(event.payload):
        await step.sleep(f"night {number}", timedelta(days=days))
    return list(event.payload)


def test_an_order_from_its_create_to_its_end(toque_sim: SimFactory) -> None:
    with toque_sim([Order]) as sim:
        order = sim.create(Order, Cart(7), id="o-1")
        sim.settle()
        assert order.steps()["charge"].output == 7
        assert order.status().status == "waiting"
        sim.advance("4 days")
        assert order.why().reasons[0].event_type == "packed"
        order.send_event("packed", 12)
        assert order.result(Receipt) == Receipt(paid=7, parcel="parcel 12")
        assert list(order.steps()) == ["charge-1", "cool off-1", "packed-1", "ship-1"]
        assert [e.step for e in order.executions()] == ["charge-1", "ship-1"]
        assert order.events()[-1].type == "workflow_completed"
        assert sim.instances()[0].id == "o-1"


def test_years_take_a_few_turns_and_sleeps_end_on_time(toque_sim: SimFactory) -> None:
    sim = toque_sim(sleepy, start="2030-01-01T00:00:00+00:00")
    days = [0.001, 1, 30, 300, 0.5]
    one = sim.create(sleepy, days)
    assert one.result() == days
    for step, wanted in zip(one.steps().values(), days, strict=True):
        began, ended = (
            datetime.fromisoformat(str(at)) for at in (step.shown.start, step.shown.end)
        )
        assert timedelta(days=wanted) <= ended - began < timedelta(days=wanted, seconds=5)
    assert sim.now - datetime(2030, 1, 1, tzinfo=UTC) < timedelta(days=sum(days), seconds=30)
    assert sim._world.loop.jumps < 10_000  # looking at alarms every five seconds: five million


def test_the_start_is_what_instances_see(toque_sim: SimFactory) -> None:
    @workflow
    async def when(event: Any, step: Any) -> str:
        return str(event.timestamp.date())

    at = datetime(1999, 12, 31, 23, 0, tzinfo=UTC)
    assert toque_sim(when, start=at).create(when).result() == "1999-12-31"


def test_a_wait_that_never_ends_says_what_all_wait_for(toque_sim: SimFactory) -> None:
    sim = toque_sim([Order, sleepy])
    order = sim.create(Order, Cart(7), id="paused")
    sim.settle()
    order.pause()
    sim.create(sleepy, [1_000 / 3], id="asleep")
    with pytest.raises(WaitsForever) as told:
        order.result(within="10 days")
    text = str(told.value)
    assert "Order 'paused' has not ended after 864000 s of virtual time" in text
    assert "paused is paused since 2026-01-01" in text
    assert "asleep is waiting" in text
    assert "sleep night 0-1" in text
    assert "commit" in text
    assert isinstance(told.value, AssertionError)
    order.resume()
    sim.advance("5 days")
    order.send_event("packed")
    assert order.result(Receipt).parcel == "parcel None"


def test_an_event_that_does_not_come_is_a_time_out(toque_sim: SimFactory) -> None:
    order = toque_sim(Order).create(Order, Cart(7))
    with pytest.raises(InstanceFailed, match="EventTimeout"):
        order.result()


@pytest.mark.parametrize("how", ["wait", "until"])
def test_a_wait_beside_one_that_never_rests_does_not_take_hours(
    toque_sim: SimFactory, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow
    async def restless(event: Any, step: Any) -> None:
        while True:
            await step.do("look", lambda: asyncio.sleep(5))
            await step.sleep("nap", 5)

    monkeypatch.setattr("toque.testkit.simulation.TESTKIT_COMMITS_MAX", 50)
    sim = toque_sim([Order, restless])
    order = sim.create(Order, Cart(7))
    sim.create(restless)
    waits = {
        "wait": order.wait,
        "until": lambda: sim.until(lambda: "ship" in order.steps()),
    }
    with pytest.raises(WaitsForever, match="or 50 commits"):
        waits[how]()
    assert (sim.now - toque_sim(Order).now).total_seconds() < 3_600


def test_until_asks_after_each_commit(toque_sim: SimFactory) -> None:
    sim = toque_sim(Order)
    order = sim.create(Order, Cart(7))
    sim.until(lambda: "cool off" in order.steps())
    assert "packed" not in order.steps()
    with pytest.raises(KeyError, match="known are charge-1, cool off-1"):
        order.steps()["ship"]
    with pytest.raises(WaitsForever, match="did not come after 3600 s"):
        sim.until(lambda: "ship" in order.steps(), within="1 hour")


def test_settling_ends_where_time_would_have_to_pass(toque_sim: SimFactory) -> None:
    sim = toque_sim([Order, two_steps])
    orders = [sim.create(Order, Cart(number)) for number in range(5)]
    sim.settle()
    assert [order.status().status for order in orders] == ["waiting"] * 5
    sim.create(two_steps)  # whose second body takes five minutes
    with pytest.raises(WaitsForever, match="1 instances did not come to rest"):
        sim.settle(within="1 minute")
    sim.settle()
    assert all(end.status in ("waiting", "complete") for end in sim.ends().values())


def test_client_code_runs_in_virtual_time(toque_sim: SimFactory) -> None:
    with toque_sim(Order) as sim:

        async def place(number: int) -> str:
            order = await sim.client.create_instance("Order", f"o-{number}", Cart(number))
            await asyncio.sleep(5 * 86_400)
            await order.send_event("packed", number)
            return (await order.output(Receipt)).parcel

        async def place_all() -> list[str]:
            return await asyncio.gather(*(place(number) for number in range(3)))

        assert sim.run(place_all) == ["parcel 0", "parcel 1", "parcel 2"]
        assert sim.run(place(3)) == "parcel 3"
        assert sim.now > datetime(2026, 1, 11, tzinfo=UTC)


async def test_a_test_that_is_async_calls_the_same(toque_sim: SimFactory) -> None:
    loop = asyncio.get_running_loop()
    with toque_sim(two_steps) as sim:
        one = sim.create(two_steps)
        await asyncio.gather(*(asyncio.to_thread(int) for _ in range(3)))
        assert one.result() == ["quick", "slow"]
    assert asyncio.get_running_loop() is loop
    assert await asyncio.to_thread(lambda: 1) == 1


def test_entities_are_there_too(toque_sim: SimFactory) -> None:
    sim = toque_sim([Counter, sleepy])
    counter = sim.object("Counter", "a")
    assert [sim.run(counter.add(by)) for by in (1, 2)] == [1, 3]
    sim.crash()
    sim.advance("2 s")
    assert sim.run(counter.add(4)) == 7


def test_operations_reach_the_instance(toque_sim: SimFactory) -> None:
    sim = toque_sim([two_steps, sleepy])
    one = sim.create(sleepy, [100])
    one.cancel()
    assert one.wait().status == "terminated"
    one.restart()
    assert one.wait().status == "complete"
    three = sim.create(two_steps)
    three.wait()
    three.restart(from_step="slow")
    three.wait()
    assert [e.step for e in three.executions()] == ["quick-1", "slow-1", "slow-1"]
    two = sim.create(sleepy, [1, 1], id="two")
    sim.settle()
    two.terminate()
    assert two.wait().status == "terminated"
    two.delete()
    sim.advance(10)
    with pytest.raises(InstanceNotFound):
        two.status()
    with pytest.raises(InstanceNotFound):
        two.wait()
    with pytest.raises(InstanceAlreadyExists):
        sim.create(sleepy, [1], id=one.id)


def test_params_that_do_not_fit_are_told(toque_sim: SimFactory) -> None:
    sim = toque_sim(Order)
    with pytest.raises(InstanceFailed, match="PayloadMismatch"):
        sim.create(Order, {"totl": 1}).result()
    order = sim.create(Order, Cart(1))
    sim.advance("4 days")
    order.send_event("packed")
    with pytest.raises(PayloadMismatch):
        order.result(Cart)


@pytest.mark.parametrize("seed", [0, 5])
def test_the_same_seed_is_the_same_run(toque_sim: SimFactory, seed: int) -> None:
    def play(seed: int) -> tuple[str, str, list[str]]:
        with toque_sim(Order, seed=seed) as sim:
            order = sim.create(Order, Cart(7))
            sim.advance("4 days")
            order.send_event("packed")
            order.result()
            return sim.digest, order.id, sim.story().splitlines()

    assert play(seed) == play(seed)
    assert play(seed) != play(seed + 1)


ORDERS: set[str] = set()


@toque_seeds(20)
def test_mishaps_do_not_show_and_repeat_themselves(toque_sim: SimFactory) -> None:
    digests = []
    for _ in range(2):
        with toque_sim([Order, parallel]) as sim:
            three = sim.create(parallel)
            order = sim.create(Order, Cart(7))
            sim.advance("4 days")
            order.send_event("packed", 1)
            assert order.result(Receipt) == Receipt(paid=7, parcel="parcel 1")
            ended = three.result()
            assert sorted(ended) == ["a", "b", "c"]
            digests.append(sim.digest)
    assert digests[0] == digests[1]
    ORDERS.add("".join(ended))


def test_a_workflow_with_an_actor_of_its_own_runs_in_place(toque_sim: SimFactory) -> None:
    class Big(WorkflowEntrypoint):
        placement = "actor"
        ray_options = {"num_gpus": 1}

        async def run(self, event: Any, step: Any) -> str:
            return str(await step.do("train", lambda: "model", ray_options={"num_gpus": 2}))

    assert toque_sim(Big).create(Big).result() == "model"


def test_user_code_can_t_drive_its_own_simulation(toque_sim: SimFactory) -> None:
    @workflow
    async def meddling(event: Any, step: Any) -> str:
        return str(
            await step.do("meddle", lambda: sim.advance(1), config={"retries": {"limit": 0}})
        )

    sim = toque_sim(meddling)
    with pytest.raises(InstanceFailed, match="Call it from the test"):
        sim.create(meddling).result()


def test_a_loop_that_lets_no_time_pass_is_found(toque_sim: SimFactory) -> None:
    @workflow
    async def spinning(event: Any, step: Any) -> None:
        async def spin() -> None:
            while True:
                await asyncio.sleep(0)

        await step.do("spin", spin)

    sim = toque_sim(spinning)
    with pytest.raises(WaitsForever, match="no virtual time passed"):
        sim.create(spinning).result()


def test_wrong_use_is_refused_in_words(toque_sim: SimFactory) -> None:
    for start in ("yesterday", "2026-01-01T00:00:00", datetime(2026, 1, 1), 3):
        with pytest.raises(InvalidArgument, match="the start is"):
            toque_sim(Order, start=start)  # type: ignore[arg-type]
    for seed in (-1, 1.5, True):
        with pytest.raises(InvalidArgument, match="the seed is"):
            toque_sim(Order, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(WorkflowLoadError, match="is no workflow"):
        toque_sim([Order, Cart])
    sim = toque_sim(Order)
    for unknown in ("Odrer", two_steps):
        with pytest.raises(InvalidArgument, match="known are Order"):
            sim.create(unknown)
    with pytest.raises(InvalidArgument, match="advance by"):
        sim.advance("soon")
    with pytest.raises(InvalidArgument, match="must be a coroutine"):
        sim.run(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="there are d0 and c0"):
        sim.crash("d7")
    sim.close()
    sim.close()
    with pytest.raises(InvalidArgument, match="is closed"):
        sim.create(Order)


def test_a_simulation_leaves_no_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toque.testkit.simulation._fast_folder", lambda: str(tmp_path))
    with Simulation(two_steps) as sim:
        sim.create(two_steps).result()
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
