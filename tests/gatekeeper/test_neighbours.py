"""A workflow with a long queue beside some that get a few instances a second.

A model of SousChefs, exact in time: an instance holds its slot for so long, and each SousChef
reports once a period. An answer with nothing new is held, as `held_calls` does.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count

import pytest

from toque.gatekeeper.messages import CycleReply, CycleRequest
from toque.gatekeeper.slots import LeaseBook
from toque.loadtest.shares import Use, sample_error, share_error
from toque.runtime import limits
from toque.runtime.entropy import SeededEntropy
from toque.souschef.demand import Demand

QUIET = 9
COME_S = 5.0
"""The quiet ones begin, all within a tenth of a second."""
START_S = 15.0
"""From here on things are steady: whoever comes has its share within three cycles."""


class Chef:
    """A workflow's one SousChef."""

    def __init__(self, name: str, queued: int = 0) -> None:
        self.name = name
        self.queue = deque([0.0] * queued)
        self.running = self.target = self.version = self.seq = self.arrived = self.ended = 0
        self.calls_next_s = 0.0
        self.demand = Demand(0.0)
        self.waits: list[tuple[float, float]] = []
        """When it came, and how long it waited."""


class Kitchen:
    """All of them, and time."""

    def __init__(self, limit: int, hold_s: float, rate: float, seed: int = 1) -> None:
        self.book = LeaseBook(limit)
        self.hold_s = hold_s
        self.rate = rate
        self.random = SeededEntropy(seed)
        self.loud = Chef("a/loud/0", 40_000)
        self.quiet = [Chef(f"a/quiet{n}/0") for n in range(QUIET)]
        self.events: list[tuple[float, int, str, Chef]] = []
        self.order = count()
        self.busy_s = 0.0
        self.held: dict[str, Chef] = {}
        self.looks = False
        self.errors: list[float | None] = []
        self.at(self.random.random(), "cycle", self.loud)
        for chef in self.quiet:
            self.at(COME_S + self.random.random() / 10, "create", chef)
        for second in range(int(START_S), 100):
            self.at(second, "sample", self.loud)

    def at(self, time_s: float, what: str, chef: Chef) -> None:
        heappush(self.events, (time_s, next(self.order), what, chef))

    def play(self, until_s: float) -> None:
        """Let time pass."""
        now_s = 0.0
        while now_s < until_s:
            at_s, _, what, chef = heappop(self.events)
            if now_s > START_S:
                running = self.loud.running + sum(each.running for each in self.quiet)
                self.busy_s += (at_s - now_s) * running
            now_s = at_s
            getattr(self, what)(chef, now_s)
            self.start(chef, now_s)

    def start(self, chef: Chef, now_s: float) -> None:
        while chef.queue and chef.running < chef.target:
            came_s = chef.queue.popleft()
            chef.waits.append((came_s, now_s - came_s))
            chef.running += 1
            self.at(now_s + self.hold_s, "end", chef)
        chef.demand.note(chef.running, chef.arrived, chef.ended, now_s)

    def create(self, chef: Chef, now_s: float) -> None:
        chef.queue.append(now_s)
        chef.arrived += 1
        if not chef.seq:
            self.at(now_s, "cycle", chef)
        self.at(now_s + 2 * self.random.random() / self.rate, "create", chef)

    def end(self, chef: Chef, now_s: float) -> None:
        chef.running -= 1
        chef.ended += 1

    def cycle(self, chef: Chef, now_s: float) -> None:
        chef.seq += 1
        chef.calls_next_s = now_s + 1 + self.random.random() / 100
        queued = len(chef.queue)
        request = CycleRequest(
            chef.name, 1, chef.seq, 0, queued, 0, 0, chef.running, chef.version, chef.target, False,
            *chef.demand.ask(queued, 1.0, now_s), may_wait=True,
        )  # fmt: skip
        reply = self.book.on_request(request, int(now_s * 1000)).reply
        if reply.lease_version == chef.version:
            self.held[chef.name] = chef
            self.at(now_s + limits.CYCLE_HELD_PERCENT / 100, "last", chef)
        else:
            self.answer(chef, reply, now_s)
        if not self.looks:
            self.looks = True
            self.at(now_s + limits.REVIEW_AFTER_MS / 1000, "look", chef)

    def look(self, _: Chef, now_s: float) -> None:
        self.looks = False
        for chef in list(self.held.values()):
            reply = self.book.review(chef.name, int(now_s * 1000), False).reply
            if reply.lease_version != chef.version:
                self.answer(chef, reply, now_s)

    def last(self, chef: Chef, now_s: float) -> None:
        if chef.name in self.held and now_s > chef.calls_next_s - 0.5:
            self.answer(chef, self.book.review(chef.name, int(now_s * 1000), True).reply, now_s)

    def answer(self, chef: Chef, reply: CycleReply, now_s: float) -> None:
        self.held.pop(chef.name, None)
        chef.version, chef.target = reply.lease_version, reply.target
        self.at(chef.calls_next_s, "cycle", chef)
        self.start(chef, now_s)

    def sample(self, _: Chef, _now_s: float) -> None:
        uses = {each.name: Use(each.running, len(each.queue)) for each in (self.loud, *self.quiet)}
        self.errors.append(sample_error(self.book.limit, uses))


def waits_of(kitchen: Kitchen, since_s: float) -> list[float]:
    return sorted(
        waited for chef in kitchen.quiet for came_s, waited in chef.waits if came_s >= since_s
    )


@pytest.mark.parametrize(
    ("hold_s", "rate", "used"), [(0.05, 10, 0.8), (0.05, 2, 0.7), (0.2, 3, 0.7)]
)
def test_the_quiet_hardly_wait_and_the_loud_one_has_the_rest(
    hold_s: float, rate: float, used: float
) -> None:
    kitchen = Kitchen(40, hold_s, rate)
    kitchen.play(45)
    waits = waits_of(kitchen, START_S)
    assert waits[int(len(waits) * 0.99)] < 1.5
    assert waits[len(waits) // 2] < 0.1
    assert kitchen.loud.queue
    assert kitchen.busy_s / (45 - START_S) / 40 > used
    for chef in kitchen.quiet:  # all that came has begun
        assert len(chef.queue) <= 0.05 * chef.arrived + 2


@pytest.mark.parametrize("seed", range(8))
def test_newcomers_begin_within_a_cycle_and_a_half(seed: int) -> None:
    """Whenever they come in the cycle of the loud one: it hears of them before its next call."""
    kitchen = Kitchen(40, 0.06, 10, seed)
    kitchen.play(COME_S + 20)
    waits = waits_of(kitchen, COME_S)
    assert waits[int(len(waits) * 0.99)] < 1.5
    assert waits[-1] < 2.5


def test_slots_that_idle_are_those_of_the_quiet_between_two_instances() -> None:
    """Each of the nine keeps three quarters of a slot busy, so that 2.25 of the 40 slots idle.

    They come in no order. Who gets more in one second than its slot serves has a second one, for
    some cycles.
    """
    kitchen = Kitchen(40, 0.075, 10)
    kitchen.play(75)
    error = share_error(kitchen.errors)
    assert error is not None
    assert 0.05 < error < 0.14
