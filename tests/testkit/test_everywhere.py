"""A crash at each commit: what survives, what runs again, and what is found out."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from typing import Any

import pytest

from tests.simulation.sabotage import bugs
from tests.testkit.shop import Cart, Order, two_steps
from toque import InvalidArgument, workflow
from toque.testing import Boundary, OutcomeDiffers, SimFactory, SimInstance, Simulation
from toque.testkit.verdict import Outcome, Survival, differences, ran_more


def packed(sim: Simulation, order: SimInstance) -> Any:
    """The script of an order."""
    sim.advance("4 days")
    order.send_event("packed", 1)
    return order.result()


def test_an_order_survives_a_crash_at_each_commit(toque_sim: SimFactory) -> None:
    survival = toque_sim.crash_everywhere(Order, Cart(7), packed)
    assert survival.runs == 2 * survival.commits > 40
    assert set(survival.reran) == {"Order charge-1", "Order ship-1"}
    for where in survival.reran.values():
        assert [boundary.kept for boundary in where] == [False]  # its result is lost, once
    assert "the body of Order charge-1 ran again in 1 of them: before commit" in str(survival)


def test_a_body_that_is_not_idempotent_is_found(toque_sim: SimFactory) -> None:
    account: Tally[str] = Tally()

    @workflow
    async def deposit(event: Any, step: Any) -> int:
        def body() -> int:
            account["balance"] += 10
            return account["balance"]

        return int(await step.do("deposit", body))

    with pytest.raises(OutcomeDiffers) as told:
        toque_sim.crash_everywhere(deposit, prepare=lambda sim: account.clear())
    text = str(told.value)
    assert "deposit/crashed: without a crash complete with output 10; with it complete with" in text
    assert "output 20" in text
    assert "CRASH of shard d0 just before commit" in text
    assert "(time 2 that it runs)" in text
    assert isinstance(told.value, AssertionError)
    assert told.value.data["kept"] is False
    # the boundary that it names is one where it differs, each time
    with toque_sim(deposit) as sim:
        account.clear()
        sim.crash_at_commit(told.value.data["commit"], kept=False)
        assert sim.create(deposit, id="crashed").result() == 20


def test_an_idempotent_body_that_does_the_same_passes(toque_sim: SimFactory) -> None:
    account: dict[str, int] = {}

    @workflow
    async def deposit(event: Any, step: Any) -> int:
        def body() -> int:
            account[event.instance_id] = 10
            return sum(account.values())

        return int(await step.do("deposit", body))

    survival = toque_sim.crash_everywhere(deposit, prepare=lambda sim: account.clear())
    assert list(survival.reran) == ["deposit deposit-1"]


def test_a_step_that_may_not_run_twice_ends_otherwise(toque_sim: SimFactory) -> None:
    @workflow
    async def once(event: Any, step: Any) -> str:
        return str(await step.do("once", lambda: "done", config={"retries": {"limit": 0}}))

    with pytest.raises(OutcomeDiffers, match="with it errored with StepInterrupted"):
        toque_sim.crash_everywhere(once)


def test_a_script_that_fails_after_a_crash_is_told_with_where(toque_sim: SimFactory) -> None:
    def script(sim: Simulation, one: SimInstance) -> None:
        sim.advance("1 hour")
        assert one.steps()["slow"].attempts == 1, "an attempt too many"

    with pytest.raises(OutcomeDiffers, match="AssertionError: an attempt too many") as told:
        toque_sim.crash_everywhere(two_steps, script=script)
    assert isinstance(told.value.__cause__, AssertionError)


def test_a_script_that_fails_anyway_fails_as_it_is(toque_sim: SimFactory) -> None:
    def script(sim: Simulation, one: SimInstance) -> None:
        raise RuntimeError("in the script")

    with pytest.raises(RuntimeError, match="in the script"):
        toque_sim.crash_everywhere(two_steps, script=script)


def test_mocks_and_other_workflows_are_prepared_for_each_run(toque_sim: SimFactory) -> None:
    def prepare(sim: Simulation) -> None:
        sim.mock_step("slow", returns="fast")
        sim.create(Order, Cart(1), id="beside")

    survival = toque_sim.crash_everywhere(
        two_steps, prepare=prepare, workflows=[two_steps, Order], script=lambda sim, one: None
    )
    assert survival.runs > 20


@workflow
async def race(event: Any, step: Any) -> str:
    """Goes on with whoever is first."""

    async def run(name: str, seconds: float) -> str:
        async def body() -> str:
            await asyncio.sleep(seconds)
            return name

        return str(await step.do(name, body))

    tasks = [asyncio.ensure_future(run("a", 20)), asyncio.ensure_future(run("b", 10))]
    (first,), _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    winner = str(await step.do(f"after {first.result()}", lambda: first.result()))
    await asyncio.gather(*tasks)
    return await run(f"end {winner}", 10)


@pytest.mark.parametrize(
    ("bug", "match"),
    [("", ""), ("replay_order_ignored", "NonDeterminism"), ("result_unwritten", "crash")],
)
def test_a_bug_of_the_engine_itself_shows(toque_sim: SimFactory, bug: str, match: str) -> None:
    with bugs((bug,)):
        if not bug:
            assert toque_sim.crash_everywhere(race).runs > 20
            return
        with pytest.raises(OutcomeDiffers, match=match):
            toque_sim.crash_everywhere(race)


def test_seeds_and_crashes_everywhere_do_not_mix() -> None:
    with pytest.raises(InvalidArgument, match="leave @toque_seeds out"):
        SimFactory(3).crash_everywhere(two_steps)
    with pytest.raises(InvalidArgument, match="leave `seed=` out"):
        SimFactory(3)(two_steps, seed=4)


def test_a_script_with_too_many_commits_is_refused(
    toque_sim: SimFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toque.testkit.everywhere.TESTKIT_BOUNDARIES_MAX", 5)
    with pytest.raises(InvalidArgument, match="at most are 5"):
        toque_sim.crash_everywhere(two_steps)


def test_differences_are_told_side_by_side() -> None:
    usual = Outcome({"a/1": ("complete", 1, ""), "a/2": ("complete", 2, "")}, 7)
    assert differences(usual, usual) == []
    other = Outcome({"a/1": ("errored", None, "E: bad"), "a/3": ("complete", 3, "")}, 8)
    assert differences(usual, other) == [
        "a/1: without a crash complete with output 1; with it errored with E: bad",
        "a/2: without a crash complete with output 2; with it there is no such instance",
        "a/3: without a crash there is no such instance; with it complete with output 3",
        "the script gave 7 without a crash; with it 8",
    ]
    few, more = Tally({("w", "1", "s-1"): 1}), Tally({("w", "1", "s-1"): 2, ("w", "2", "t-1"): 1})
    assert ran_more(few, more) == ["w s-1", "w t-1"]
    assert ran_more(more, few) == []


def test_a_survival_is_told_in_few_lines() -> None:
    where = [Boundary(number, kept=bool(number % 2)) for number in range(7)]
    told = str(Survival(7, 14, {"w s-1": where}))
    assert "before commit 0, after commit 1" in told
    assert "and 2 more" in told
    assert "no body ran again" in str(Survival(7, 14))


async def test_crashes_everywhere_in_an_async_test(toque_sim: SimFactory) -> None:
    await asyncio.sleep(0)
    survival = toque_sim.crash_everywhere(
        two_steps, prepare=lambda sim: sim.mock_step("slow", returns="fast")
    )
    assert survival.runs > 10


def test_several_workflows_are_named_apart(toque_sim: SimFactory) -> None:
    with pytest.raises(InvalidArgument, match=r"workflows=\[Trip, Leg\]"):
        toque_sim.crash_everywhere([Order, two_steps])
