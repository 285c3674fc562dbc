"""How many SousChefs a workflow has: grows with its rate and queue, shrinks late, never swings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toque.gatekeeper.spread import Spread, SpreadRules
from toque.runtime import limits

RULES = SpreadRules(creates_per_second=100, queued=1_000)


class Looks:
    """Looks at a workflow, one a second."""

    def __init__(self, souschefs: int = 1, rules: SpreadRules = RULES) -> None:
        self.spread = Spread(rules, souschefs)
        self.now_ms = 1_000_000
        self.changes = 0

    def at(self, rate: float, queued: int = 0, spare: int = 1_000, looks: int = 1) -> int:
        """The number after so many looks."""
        for _ in range(looks):
            self.changes += self.spread.look(round(rate * 1000), queued, spare, self.now_ms)
            self.now_ms += limits.SPREAD_LOOK_MS
        return self.spread.souschefs


def test_it_grows_with_the_rate_and_with_the_queue() -> None:
    assert Looks().at(100, looks=5) == 1
    assert Looks().at(101, looks=2) == 2
    assert Looks().at(750, looks=2) == 8
    assert Looks().at(0, queued=3_001, looks=2) == 4
    assert Looks().at(10**6, looks=2) == limits.SOUSCHEFS_PER_WORKFLOW_MAX


def test_a_burst_of_a_moment_changes_nothing() -> None:
    looks = Looks()
    for _ in range(10):
        assert looks.at(1_000) == 1
        assert looks.at(5) == 1


def test_it_shrinks_only_after_a_long_calm_to_what_that_needed() -> None:
    looks = Looks(8)
    assert looks.at(10, looks=limits.SPREAD_SHRINK_LOOKS // 2) == 8
    looks.at(290)
    assert looks.at(10, looks=limits.SPREAD_SHRINK_LOOKS // 2 - 1) == 4
    assert looks.at(10, looks=limits.SPREAD_SHRINK_LOOKS) == 1


def test_a_rate_that_swings_around_a_bound_moves_nothing() -> None:
    looks = Looks()
    looks.at(250, looks=3)
    assert looks.changes == 1
    for _ in range(200):
        looks.at(190)
        looks.at(240)
    assert (looks.spread.souschefs, looks.changes) == (3, 1)


def test_it_does_not_grow_where_the_account_has_no_room_for_more() -> None:
    looks = Looks()
    assert looks.at(750, spare=2, looks=4) <= 9
    looks = Looks(2)
    assert looks.at(750, spare=0, looks=5) == 2
    assert looks.at(750, spare=1, looks=1) == 3


def test_there_are_never_fewer_than_the_least() -> None:
    rules = RULES._replace(least=3)
    assert Looks(3, rules).at(0, looks=200) == 3


def test_it_is_looked_at_once_a_second_whoever_asks() -> None:
    looks = Looks()
    for _ in range(10):
        assert not looks.spread.look(10**6, 0, 100, looks.now_ms)
    assert looks.spread.souschefs == 1


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 9_000)), max_size=150))
def test_it_stays_within_its_bounds(loads: list[tuple[int, int]]) -> None:
    looks = Looks()
    for rate, queued in loads:
        before = looks.spread.souschefs
        found = looks.at(rate, queued)
        assert 1 <= found <= limits.SOUSCHEFS_PER_WORKFLOW_MAX
        if found > before:
            assert found <= max(-(-rate // 100), -(-queued // 1_000))
