"""Queue room: never more than the limit in all, the last place is given, the silent and the new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toque.gatekeeper.messages import RateRequest
from toque.gatekeeper.room import RoomBook
from toque.runtime import limits

W = "workflow"
PERIOD = 1_000


class Queue:
    """A workflow's queue, its front ends, and SousChefs that report what is queued, late."""

    def __init__(self, limit: int) -> None:
        self.book = RoomBook()
        self.book.set_limit(W, limit)
        self.now_ms = 1_000_000
        self.room: dict[str, int] = {}
        self.admitted: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self.seq = 0
        self.queued = 0
        self.reported: int | None = 0

    def create(self, front: str, count: int) -> int:
        """How many of so many creates pass."""
        passed = min(count, self.room.get(front, count))
        if front in self.room:
            self.room[front] -= passed
        self.arrived[front] = self.arrived.get(front, 0) + count
        self.admitted[front] = self.admitted.get(front, 0) + passed
        self.queued += passed
        return passed

    def report(self, front: str, lost: bool = False) -> RateRequest:
        """The front end's report, and what it makes of the answer."""
        self.seq += 1
        arrived, admitted = self.arrived.pop(front, 0), self.admitted.pop(front, 0)
        held = {W: self.room[front]} if front in self.room else {}
        request = RateRequest(front, self.seq, {W: arrived * 1000}, {}, {W: admitted}, held)
        found = self.book.on_report(request, W, self.reported, PERIOD, self.now_ms)
        if found is not None and not lost:
            self.room[front] = found
        return request

    def cycle(self, **creates: int) -> dict[str, int]:
        """Creates come, front ends report, and SousChefs do."""
        passed = {front: self.create(front, count) for front, count in creates.items()}
        for front in creates:
            self.report(front)
        self.now_ms += PERIOD
        self.reported = self.queued
        return passed


def test_one_front_end_fills_a_queue_to_the_last_place_and_not_further() -> None:
    queue = Queue(1_000)
    for _ in range(40):
        queue.report("a")
        queue.cycle(a=90)
    assert queue.queued == 1_000
    assert queue.cycle(a=5) == {"a": 0}
    queue.queued -= 7
    assert sum(queue.cycle(a=50)["a"] for _ in range(20)) == 7


def test_several_share_what_is_free_and_the_last_place_goes_to_who_asks() -> None:
    queue = Queue(300)
    for front in "abc":
        queue.report(front)
    for _ in range(12):
        queue.cycle(a=80, b=80, c=0)
    assert queue.queued == 300


def test_a_clock_that_goes_back_forgets_neither_room_nor_what_was_let_in() -> None:
    queue = Queue(100)
    queue.report("a")
    queue.report("b")
    assert queue.room == {"a": 50, "b": 25}
    assert queue.create("a", 50) == 50
    queue.report("a")
    queue.now_ms -= 5_000
    for _ in range(5):
        queue.report("b")
        queue.report("a")
        queue.now_ms -= 1
    assert queue.queued + sum(queue.room.values()) <= 100
    queue.reported = queue.queued
    queue.now_ms += limits.ROOM_SETTLE_PERIODS * PERIOD + 1
    queue.report("a")
    assert queue.room["a"] > 0, "what was let in counts for ever"


def test_many_workflows_that_come_and_go_forget_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKFLOWS_PER_ACCOUNT_MAX", 2)
    queue = Queue(100)
    queue.report("a")
    for number in range(20):
        request = RateRequest("c", number + 1, {}, {}, {}, {})
        queue.book.on_report(request, f"gone-{number}", 0, PERIOD, queue.now_ms)
    queue.report("b")
    assert queue.room == {"a": 50, "b": 25}


def test_what_was_let_in_counts_until_it_is_reported() -> None:
    queue = Queue(100)
    queue.report("a")
    assert queue.create("a", 60) == 50
    queue.report("a")  # SousChefs still say 0
    assert queue.room["a"] == 50, "as much as came: it gets all that is left"
    assert queue.create("a", 40) == 40
    queue.report("a")
    assert queue.room["a"] == 10


def test_a_batch_that_fits_when_all_is_free_is_let_in_when_it_comes_again() -> None:
    queue = Queue(120)
    assert queue.cycle(a=1) == {"a": 1}
    assert queue.room["a"] < 100
    queue.arrived["a"] = 100  # a batch, refused as a whole
    queue.now_ms += limits.ROOM_SETTLE_PERIODS * PERIOD + 1
    for _ in range(4):  # some seconds later
        queue.report("a")
    assert queue.room["a"] == 100
    assert queue.create("a", 100) == 100


def test_who_begins_finds_room_at_once() -> None:
    queue = Queue(1_000)
    for front in "abcdef":
        queue.report(front)
        assert queue.room[front] > 10


def test_a_lost_answer_and_a_repeated_report_give_nothing_twice() -> None:
    queue = Queue(100)
    request = queue.report("a", lost=True)
    again = queue.book.on_report(request, W, 0, PERIOD, queue.now_ms)
    assert again == 50
    queue.report("b")
    assert queue.room["b"] == 25  # the first may have heard of its fifty


def test_while_souschefs_have_not_reported_everybody_keeps_what_it_has() -> None:
    queue = Queue(100)
    queue.report("a")
    queue.create("a", 10)
    queue.reported = None
    queue.report("a")
    assert queue.room["a"] == 40
    queue.report("b")
    assert "b" not in queue.room  # not known: it may begin
    queue.reported = 95
    queue.report("a")
    assert queue.room["a"] == 0


def test_the_dead_hold_nothing_and_no_clock_makes_them_immortal() -> None:
    for step_ms in (0, -3_600_000):
        queue = Queue(100)
        queue.report("a")
        queue.now_ms += step_ms
        queue.report("b")
        assert queue.room["b"] == 25
        queue.now_ms += (limits.RATE_SILENT_PERIODS + 1) * PERIOD
        queue.report("b")
        assert queue.room["b"] == 50


@given(
    st.integers(1, 400),
    st.lists(st.lists(st.integers(0, 150), min_size=3, max_size=3), min_size=1, max_size=15),
)
def test_never_more_than_the_limit(limit: int, rounds: list[list[int]]) -> None:
    queue = Queue(limit)
    for front in "abc":
        queue.report(front)
    for creates in rounds:
        queue.cycle(**dict(zip("abc", creates, strict=True)))
        assert queue.queued <= limit
    for _ in range(40):
        queue.cycle(a=50, b=3, c=0)
    assert queue.queued == limit
