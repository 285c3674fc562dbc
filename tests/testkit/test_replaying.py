"""Histories of instances, replayed on today's code: what may be deployed, and what may not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import toque
from tests.testkit.shop import Cart, Order
from toque import InvalidArgument, WorkflowEntrypoint, WorkflowEvent, workflow
from toque.engines.failures import NonDeterminism
from toque.runtime.limits import REPLAYED_PER_TURN_MAX
from toque.runtime.payload_codec import CodecMissing, ZlibCodec
from toque.testing import (
    History,
    Replay,
    ReplayFails,
    SimFactory,
    SimInstance,
    check_replay,
    histories,
)


@dataclass
class Basket:
    """What is not ordered."""

    price: int


def waiting_order(toque_sim: SimFactory, by: str = "1 day") -> SimInstance:
    """An order that has charged, and waits."""
    sim = toque_sim(Order)
    order = sim.create(Order, Cart(7), id="o-1")
    sim.advance(by)
    return order


def test_the_same_code_repeats_itself(toque_sim: SimFactory) -> None:
    order = waiting_order(toque_sim)
    assert check_replay(order.history(), Order) == Replay(2)
    later = waiting_order(toque_sim, "4 days")
    later.send_event("unasked", 1)
    assert check_replay(later.history(), Order) == Replay(3)
    later.send_event("packed", 1)
    done = later.result()
    assert check_replay(later.history(), Order) == Replay(4, (), "complete", done)


def test_code_that_takes_another_way_is_told_with_both_sides(toque_sim: SimFactory) -> None:
    class Order2(WorkflowEntrypoint):
        name = "Order"

        async def run(self, event: WorkflowEvent[Cart], step: Any) -> None:
            await step.do("check stock", lambda: True)
            await step.do("charge", lambda: 7)

    history = waiting_order(toque_sim).history()
    with pytest.raises(NonDeterminism) as told:
        check_replay(history, Order2)
    text = str(told.value)
    assert "instance 'o-1' of 'Order'" in text
    assert "came to the new step 'check stock-1'" in text
    assert "the journal says that step 'charge-1'" in text


def test_what_is_added_where_the_journal_ends_is_fine(toque_sim: SimFactory) -> None:
    class Order3(WorkflowEntrypoint):
        async def run(self, event: WorkflowEvent[Cart], step: Any) -> None:
            await step.do("charge", lambda: 7)
            await step.sleep("cool off", "3 days")
            await step.do("check stock", lambda: True)

    class Order4(Order3):
        async def run(self, event: WorkflowEvent[Cart], step: Any) -> None:
            await step.do("charge", lambda: 7)
            await step.sleep("cool off", "3 days")

    assert check_replay(waiting_order(toque_sim).history(), Order3) == Replay(2)
    history = waiting_order(toque_sim, "4 days").history()
    with pytest.raises(NonDeterminism, match="took another way"):
        check_replay(history, Order3)  # which waits for its event already
    with pytest.raises(NonDeterminism, match="took another way"):
        check_replay(history, Order4)


def test_no_body_runs_and_the_history_stays_as_it_is(toque_sim: SimFactory) -> None:
    ran: list[str] = []

    @workflow
    async def two(event: Any, step: Any) -> list[Any]:
        first = await step.do("one", lambda: ran.append("one"))
        return [first, await step.do("two", lambda: ran.append("two"))]

    sim = toque_sim(two)
    sim.mock_step("two", raises=ValueError("no"))
    one = sim.create(two)
    sim.advance("15 s")
    history = one.history()
    assert (history.status, history.is_finished, ran) == ("waiting", False, ["one"])
    before = history.copied()
    assert check_replay(history, two) == check_replay(history, two) == Replay(2)
    assert ran == ["one"]
    assert history == before


def test_params_that_no_longer_fit_are_told(toque_sim: SimFactory) -> None:
    class Order5(WorkflowEntrypoint):
        async def run(self, event: WorkflowEvent[Basket], step: Any) -> None:
            await step.do("charge", lambda: event.payload.price)

    with pytest.raises(ReplayFails, match="ends with PayloadMismatch"):
        check_replay(waiting_order(toque_sim).history(), Order5)


def test_who_has_ended_must_end_the_same(toque_sim: SimFactory) -> None:
    @workflow
    async def adding(event: Any, step: Any) -> int:
        return int(await step.do("draw", lambda: 4)) + 1

    @workflow
    async def doubling(event: Any, step: Any) -> int:
        return int(await step.do("draw", lambda: 4)) * 2

    @workflow
    async def failing(event: Any, step: Any) -> int:
        raise KeyError(await step.do("draw", lambda: 4))

    @workflow
    async def lasting(event: Any, step: Any) -> None:
        await step.do("draw", lambda: 4)
        await step.sleep("on", "1 day")

    def ended(entry: Any) -> History:
        one = toque_sim(entry).create(entry)
        one.wait()
        return one.history()

    assert check_replay(ended(adding), adding) == Replay(1, (), "complete", 5)
    with pytest.raises(ReplayFails, match="is complete with 5; today's code gives 8"):
        check_replay(ended(adding), doubling)
    with pytest.raises(ReplayFails, match=r"ends with KeyError: 4\. It is complete"):
        check_replay(ended(adding), failing)
    with pytest.raises(ReplayFails, match="does not come to an end: it goes on with sleep on-1"):
        check_replay(ended(adding), lasting)
    assert check_replay(ended(failing), failing).ended == "errored"
    with pytest.raises(ReplayFails, match="is errored with 'KeyError'; today's code gives 5"):
        check_replay(ended(failing), adding)


def test_a_long_history_is_replayed_in_slices(toque_sim: SimFactory) -> None:
    steps = REPLAYED_PER_TURN_MAX + 20

    @workflow
    async def long(event: Any, step: Any) -> int:
        for number in range(steps):
            await step.do(f"step {number}", lambda: None)
        await step.sleep("night", "1 day")
        return steps

    sim = toque_sim(long)
    one = sim.create(long)
    sim.settle()
    assert check_replay(one.history(), long) == Replay(steps + 1)


def test_a_history_is_a_file(toque_sim: SimFactory, tmp_path: Path) -> None:
    order = waiting_order(toque_sim, "4 days")
    order.send_event("other", {"some": "payload"})
    history = order.history()
    history.save(tmp_path / "o-1.json")
    again = History.load(tmp_path / "o-1.json")
    assert again == history
    assert (again.id, again.workflow) == ("o-1", "Order")
    assert check_replay(again, Order) == Replay(3)
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "new.json").write_text(
        (tmp_path / "o-1.json").read_text().replace('"format":1', '"format":2')
    )
    for name, match in (("bad", "is no history"), ("none", "is no history"), ("new", "format 2")):
        with pytest.raises(InvalidArgument, match=match):
            History.load(tmp_path / f"{name}.json")
    with pytest.raises(InvalidArgument, match="must be a History"):
        check_replay(order, Order)  # type: ignore[arg-type]


@workflow
async def keeper(event: Any, step: Any) -> str:
    """Keeps something large, and something else, and waits."""
    kept = await step.do("keep", lambda: "x" * 2_000)
    await step.wait_for_event("go", "go")
    return str(kept + event.payload)


@workflow(name="keeper")
async def other_keeper(event: Any, step: Any) -> str:
    """As `keeper`, but it waits first."""
    await step.wait_for_event("go", "go")
    return str(await step.do("keep", lambda: "x"))


async def test_instances_of_a_data_directory_are_checked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with toque.embedded(data, [keeper], data_shards=2) as runtime:
        client = runtime.client()
        made = [await client.create_instance("keeper", f"k-{n}", "y" * 2_000) for n in range(4)]
        for one in made:
            async for event in one.events():
                if event.type == "wait_started":
                    break
        await made[0].send_event("go")
        await made[0].wait()
        live = {history.id: history for history in histories(data)}
        assert sorted(live) == ["k-1", "k-2", "k-3"]
    found = {history.id: history for history in histories(data, "keeper", finished=True)}
    assert sorted(found) == ["k-0", "k-1", "k-2", "k-3"]
    for history in found.values():
        assert check_replay(history, keeper).repeated == 2
        with pytest.raises(NonDeterminism):
            check_replay(history, other_keeper)
    assert check_replay(found["k-0"], keeper).output == "x" * 2_000 + "y" * 2_000
    assert [history.id for history in histories(data, id="k-2")] == ["k-2"]
    assert list(histories(data, "other")) == []
    assert list(histories(data, account="other")) == []
    with pytest.raises(InvalidArgument, match="is no data directory"):
        next(histories(tmp_path))


async def test_payloads_behind_a_codec_want_that_codec(tmp_path: Path) -> None:
    codecs = {"default": ZlibCodec()}
    async with toque.embedded(tmp_path / "data", [keeper], codecs=codecs) as runtime:
        one = await runtime.client().create_instance("keeper", "k", "y")
        async for event in one.events():
            if event.type == "wait_started":
                break
    (history,) = histories(tmp_path / "data", codecs=codecs)
    assert check_replay(history, keeper) == Replay(2)
    with pytest.raises(CodecMissing):
        list(histories(tmp_path / "data"))


@workflow
async def many_ways(event: Any, step: Any) -> str:
    """May be undone, cancelled, paused, and continued."""
    await step.do("book", lambda: "room", rollback=lambda ctx, output: None)
    if event.payload == "fail":
        raise ValueError("as it is told")
    if event.payload == "again":
        step.continue_as_new("once")
    try:
        await step.sleep("night", "1 day")
    finally:
        async with step.shield():
            await step.do("tidy", lambda: None)
    await step.wait_for_event("go", "go", "90 days")
    return "done"


@workflow(name="many_ways")
async def one_way(event: Any, step: Any) -> None:
    """Takes another one."""
    await step.sleep("night", "1 day")


def test_histories_of_every_fate_repeat_themselves(toque_sim: SimFactory) -> None:
    sim = toque_sim(many_ways)
    sim.mock_step("rollback book", raises=ConnectionError("closed"), times=1)
    undoing = sim.create(many_ways, "fail")
    sim.advance("2 s")
    cancelled, paused, continued, restarted = (
        sim.create(many_ways, "again" if number == 2 else "stay") for number in range(4)
    )
    sim.settle()
    cancelled.cancel()
    paused.pause()
    sim.advance("3 days")
    restarted.restart(from_step="tidy")
    paused.resume()
    sim.advance("1 hour")
    stopped = sim.create(many_ways, "stay")
    sim.settle()
    stopped.terminate(rollback=True)
    sim.settle()
    fates = [undoing, cancelled, paused, continued, restarted, stopped]
    found = [one.history() for one in fates]
    assert [history.status for history in found] == [
        "errored",
        "terminated",
        "waiting",
        "waiting",
        "waiting",
        "terminated",
    ]
    for history in found:
        check_replay(history, many_ways)
        with pytest.raises(NonDeterminism):
            check_replay(history, one_way)


def test_a_rollback_under_way_is_replayed_for_its_handlers(toque_sim: SimFactory) -> None:
    sim = toque_sim(many_ways)
    sim.mock_step("rollback book", raises=ConnectionError("closed"))
    one = sim.create(many_ways, "fail")
    sim.until(lambda: one.status().status == "rollingBack")
    assert one.history().status == "rollingBack"
    check_replay(one.history(), many_ways)
    with pytest.raises((NonDeterminism, ReplayFails)):
        check_replay(one.history(), one_way)
