"""What a SousChef asks for: a slot for each long instance, of short ones what keeps slots busy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toque.souschef.demand import Demand, Wanted


class Work:
    """Instances that come and go, and what is asked for each second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.demand = Demand(0.0)
        self.arrived = self.released = 0

    def second(self, arrivals: int, hold_s: float, queued: int = 0) -> Wanted:
        """A second in which so many come, one after the other, and hold a slot for so long."""
        for n in range(arrivals):
            self.arrived += 1
            self.demand.note(1, self.arrived, self.released, self.now_s + n / arrivals)
            self.released += 1
            end_s = self.now_s + n / arrivals + hold_s
            self.demand.note(0, self.arrived, self.released, end_s)
        self.now_s += 1
        return self.demand.ask(queued, 1.0, self.now_s)


def test_until_something_is_known_each_instance_is_a_slot() -> None:
    demand = Demand(0.0)
    demand.note(3, 3, 0, 0.0)
    assert demand.ask(7, 1.0, 1.0) == Wanted(10, 10)


def test_of_long_instances_each_is_a_slot() -> None:
    demand = Demand(0.0)
    for second in range(10):  # three at a time, for three seconds each
        demand.note(3, second, second, float(second))
        wanted = demand.ask(20, 1.0, second + 1.0)
    assert wanted == Wanted(23, 23)


def test_of_short_instances_a_slot_serves_many() -> None:
    work = Work()
    for _ in range(3):
        work.second(10, 0.05)
    wanted = work.second(10, 0.05, queued=20)
    assert 2 <= wanted.needs <= 3
    assert 100 <= work.second(10, 0.05, queued=2_000).needs <= 140


def test_what_comes_now_and_then_is_expected_for_a_while() -> None:
    work = Work()
    for _ in range(3):
        assert work.second(2, 0.05).expects == 1
    for _ in range(3):
        assert work.second(0, 0.05) == Wanted(0, 1)
    for _ in range(20):
        wanted = work.second(0, 0.05)
    assert wanted == Wanted(0, 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 300), st.integers(0, 300), st.integers(0, 60)),
        max_size=30,
    )
)
def test_never_more_than_there_is_and_something_if_there_is_any(
    seconds: list[tuple[int, int, int, int]],
) -> None:
    demand = Demand(0.0)
    arrived = released = 0
    for now, (holding, queued, came, went) in enumerate(seconds, 1):
        arrived += came
        released += went
        demand.note(holding, arrived, released, now - 0.5)
        needs, expects = demand.ask(queued, 1.0, float(now))
        assert needs <= holding + queued
        assert needs <= expects
        assert needs > 0 or not holding
