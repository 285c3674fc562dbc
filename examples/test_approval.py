"""Tests of `approval.py` with the test kit: three days of patience take no time.

    python -m pytest examples/test_approval.py

The fixture `toque_sim` comes with toque, and needs no server: the whole system runs in the test,
on virtual time. docs/testing.md tells the rest.
"""

from __future__ import annotations

import pytest
from approval import Order, Purchase

from toque import NonRetryableError
from toque.testing import SimFactory, SimInstance, Simulation, toque_seeds


def test_what_is_cheap_is_bought_at_once(toque_sim: SimFactory) -> None:
    with toque_sim(Purchase) as sim:
        pen = sim.create(Purchase, Order("pen", 2))
        assert pen.result() == "bought pen"
        assert list(pen.steps()) == ["buy-1"]


@pytest.mark.parametrize(
    ("approved", "outcome"), [(True, "bought desk"), (False, "refused by Kim")]
)
def test_the_rest_waits_for_leave(toque_sim: SimFactory, approved: bool, outcome: str) -> None:
    with toque_sim(Purchase) as sim:
        desk = sim.create(Purchase, Order("desk", 400))
        sim.advance("2 days")
        assert desk.why().reasons[0].event_type == "decision"
        assert sim.executions("buy") == []
        desk.send_event("decision", {"approved": approved, "by": "Kim"})
        assert desk.result() == outcome


def test_nobody_answers(toque_sim: SimFactory) -> None:
    with toque_sim(Purchase) as sim:
        began = sim.now
        assert sim.create(Purchase, Order("yacht", 9e5)).result() == "nobody answered"
        assert 3 <= (sim.now - began).days < 4


def test_a_shop_that_is_down_is_asked_again(toque_sim: SimFactory) -> None:
    with toque_sim(Purchase) as sim:
        sim.mock_step("buy", raises=ConnectionError("the shop is down"), times=3)
        lamp = sim.create(Purchase, Order("lamp", 20))
        assert lamp.result() == "bought lamp"
        assert lamp.steps()["buy"].attempts == 4
        sim.mock_step("buy", raises=NonRetryableError("sold out"))
        assert sim.create(Purchase, Order("lamp", 20)).wait().status == "errored"


def approve(sim: Simulation, desk: SimInstance) -> object:
    """What happens to an order, in each run of the test that follows."""
    sim.advance("1 day")
    desk.send_event("decision", {"approved": True, "by": "Kim"})
    return desk.result()


def test_it_survives_a_crash_at_each_commit(toque_sim: SimFactory) -> None:
    survival = toque_sim.crash_everywhere(Purchase, Order("desk", 400), approve)
    assert list(survival.reran) == ["Purchase buy-1"]  # so buying must be idempotent


@toque_seeds(10)
def test_it_survives_what_a_seed_has(toque_sim: SimFactory) -> None:
    with toque_sim(Purchase) as sim:
        assert approve(sim, sim.create(Purchase, Order("desk", 400))) == "bought desk"
