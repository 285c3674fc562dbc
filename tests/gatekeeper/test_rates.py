"""Rates of creates: shares, floors, the silent, and sums that stay within the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toque.gatekeeper.messages import RateRequest
from toque.gatekeeper.rates import ACCOUNT, MILLI, Bucket, RateBook
from toque.runtime import limits

W = "workflow"
PERIOD = 1_000


class Fronts:
    """Front ends that report to a book, as they do in life."""

    def __init__(self, account: int = 80, workflow: int = 1_000) -> None:
        self.book = RateBook(account, workflow)
        self.now_ms = 1_000_000
        self.seq = 0
        self.held: dict[str, dict[str, int]] = {}

    def report(self, front: str, arrivals: int, workflow: str = W) -> int:
        """One report; gives its lease of the account's rate, in thousandths."""
        self.seq += 1
        held = self.held.setdefault(front, {})
        request = RateRequest(front, self.seq, {workflow: arrivals * MILLI}, held)
        reply = self.book.on_report(request, PERIOD, self.now_ms)
        held.update(reply.leases)
        return reply.leases[ACCOUNT]

    def cycle(self, **arrivals: int) -> dict[str, int]:
        """A report of each, then a second."""
        found = {front: self.report(front, count) for front, count in arrivals.items()}
        self.now_ms += PERIOD
        return found


def test_a_front_end_alone_has_all() -> None:
    fronts = Fronts(80, 25)
    assert fronts.cycle(a=0) == {"a": 80_000}
    assert fronts.held["a"] == {ACCOUNT: 80_000, W: 25_000}
    assert fronts.cycle(a=500) == {"a": 80_000}


def test_a_rate_goes_where_creates_arrive_and_no_further_than_needed() -> None:
    fronts = Fronts(80)
    for _ in range(3):
        found = fronts.cycle(a=10, b=500)
    assert found == {"a": 10_000, "b": 70_000}
    for _ in range(3):
        found = fronts.cycle(a=500, b=500)
    assert found == {"a": 40_000, "b": 40_000}
    for _ in range(3):
        found = fronts.cycle(a=10, b=20)
    assert found == {"a": 35_000, "b": 45_000}  # what is left is spread evenly


def test_one_that_joins_may_begin_and_has_its_share_within_two_cycles() -> None:
    fronts = Fronts(80)
    fronts.cycle(a=500)
    floor = 80_000 // 16
    assert fronts.cycle(a=500, b=0)["b"] == 80_000 // 16
    assert fronts.cycle(a=500, b=500) == {"a": 80_000 - floor, "b": floor}
    assert fronts.cycle(a=500, b=500) == {"a": 40_000, "b": 40_000}


def test_one_without_arrivals_keeps_a_floor() -> None:
    fronts = Fronts(80)
    for _ in range(4):
        found = fronts.cycle(a=500, b=0)
    assert found == {"a": 75_000, "b": 5_000}


def test_the_silent_keep_their_part_for_a_while_and_then_others_have_it() -> None:
    fronts = Fronts(80)
    for _ in range(3):
        fronts.cycle(a=500, b=500)
    for _ in range(limits.RATE_SILENT_PERIODS - 1):
        assert fronts.cycle(a=500) == {"a": 40_000}
    fronts.cycle(a=500)
    assert fronts.cycle(a=500) == {"a": 80_000}


def test_a_stale_report_changes_nothing() -> None:
    fronts = Fronts(80)
    for _ in range(3):
        fronts.cycle(a=500, b=500)
    old = RateRequest("a", 1, {W: 0}, {})
    assert fronts.book.on_report(old, PERIOD, fronts.now_ms).leases[ACCOUNT] == 40_000
    assert fronts.cycle(a=500, b=500) == {"a": 40_000, "b": 40_000}


def test_a_limit_that_changes_is_leased_anew() -> None:
    fronts = Fronts(80)
    fronts.cycle(a=500, b=500)
    fronts.book.set_limit(ACCOUNT, 8)
    for _ in range(3):
        found = fronts.cycle(a=500, b=500)
    assert found == {"a": 4_000, "b": 4_000}
    fronts.book.set_limit(ACCOUNT, None)
    fronts.book.set_limit(W, 2)
    for _ in range(3):
        fronts.cycle(a=500, b=500)
    assert fronts.held["a"] == {ACCOUNT: 40_000, W: 1_000}


def test_after_a_restart_what_is_held_counts() -> None:
    fronts = Fronts(80)
    for _ in range(3):
        fronts.cycle(a=500, b=500)
    fronts.book = RateBook(80, 1_000)
    fronts.seq = 100
    assert fronts.cycle(a=500, b=500) == {"a": 40_000, "b": 40_000}
    assert fronts.cycle(a=500, b=500) == {"a": 40_000, "b": 40_000}
    fronts.book = RateBook(80, 1_000)
    assert fronts.cycle(a=500) == {"a": 40_000}
    assert fronts.cycle(a=500) == {"a": 80_000}


def test_a_clock_that_goes_back_makes_nobody_immortal() -> None:
    fronts = Fronts(80)
    fronts.cycle(a=500, b=500)
    fronts.now_ms -= 3_600_000
    for _ in range(limits.RATE_SILENT_PERIODS + 3):
        found = fronts.cycle(a=500)
    assert found == {"a": 80_000}


@given(
    st.integers(1, 1_000),
    st.lists(st.lists(st.integers(0, 2_000), min_size=3, max_size=3), min_size=1, max_size=12),
)
def test_the_sum_is_the_limit_once_load_is_steady_and_over_it_by_floors_only(
    limit: int, cycles: list[list[int]]
) -> None:
    fronts = Fronts(limit)
    floor = max(1, limit * MILLI // 8)  # of the first, while it is one of one; later they are less
    for arrivals in cycles:
        found = fronts.cycle(**dict(zip("abc", arrivals, strict=True)))
        assert fronts.book.leased(ACCOUNT) <= limit * MILLI + floor
        assert min(found.values()) > 0
    for _ in range(4):
        found = fronts.cycle(**dict(zip("abc", cycles[-1], strict=True)))
    total = sum(found.values())
    assert limit * MILLI - 3 <= total <= limit * MILLI
    wanted = [count * MILLI for count in cycles[-1]]
    for mine, want in zip(found.values(), wanted, strict=True):
        assert mine >= min(want, limit * MILLI // 3) - 1  # nobody has less than an equal part


def test_a_bucket_holds_a_second_and_fills_at_its_rate() -> None:
    bucket = Bucket(10 * MILLI, 0.0)
    assert bucket.wait_s(10, 0.0) == 0
    bucket.take(10)
    assert bucket.wait_s(1, 0.0) == pytest.approx(0.1)
    assert bucket.wait_s(1, 0.1) == 0
    bucket.take(1)
    assert bucket.wait_s(5, 0.1) == pytest.approx(0.5)
    assert bucket.wait_s(10, 100.0) == 0
    bucket.take(10)
    assert bucket.wait_s(1, 100.0) > 0


def test_a_batch_larger_than_a_bucket_passes_when_it_is_full_and_is_paid_back() -> None:
    bucket = Bucket(10 * MILLI, 0.0)
    assert bucket.wait_s(100, 0.0) == 0
    bucket.take(100)
    assert bucket.wait_s(1, 9.0) == pytest.approx(0.1)
    assert bucket.wait_s(1, 9.1) == 0
    assert bucket.wait_s(100, 9.1) == pytest.approx(0.9)


def test_a_rate_below_one_a_second_lets_one_pass_now_and_then() -> None:
    bucket = Bucket(250, 0.0)
    assert bucket.wait_s(1, 0.0) == 0
    bucket.take(1)
    assert bucket.wait_s(1, 0.0) == pytest.approx(4.0)
    bucket.set_rate(1_000, 2.0)
    assert bucket.wait_s(1, 2.0) == pytest.approx(0.5)


def test_a_lowered_rate_takes_what_was_saved_up() -> None:
    bucket = Bucket(100 * MILLI, 0.0)
    bucket.set_rate(MILLI, 0.0)
    bucket.take(1)
    assert bucket.wait_s(1, 0.0) == pytest.approx(1.0)
