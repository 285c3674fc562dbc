"""A workflow with a long queue beside some that get a few instances a second.

A model of SousChefs, exact in time: an instance holds its slot for so long, and each SousChef
reports once a period.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count

import pytest

from toque.gatekeeper.messages import CycleRequest
from toque.gatekeeper.slots import LeaseBook
from toque.runtime.entropy import SeededEntropy
from toque.souschef.demand import Demand

QUIET = 9
START_S = 15.0
"""From here on things are steady: whoever comes has its share within three cycles."""


class Chef:
    """A workflow's one SousChef."""

    def __init__(self, name: str, queued: int = 0) -> None:
        self.name = name
        self.queue = deque([0.0] * queued)
        self.running = self.target = self.version = self.seq = self.arrived = self.ended = 0
        self.demand = Demand(0.0)
        self.waits: list[float] = []


class Kitchen:
    """All of them, and time."""

    def __init__(self, limit: int, hold_s: float, rate: float) -> None:
        self.book = LeaseBook(limit)
        self.hold_s = hold_s
        self.rate = rate
        self.random = SeededEntropy(1)
        self.loud = Chef("a/loud/0", 40_000)
        self.quiet = [Chef(f"a/quiet{n}/0") for n in range(QUIET)]
        self.events: list[tuple[float, int, str, Chef]] = []
        self.order = count()
        self.busy_s = 0.0
        for chef in (self.loud, *self.quiet):
            self.at(self.random.random(), "cycle", chef)
        for chef in self.quiet:
            self.at(5 + self.random.random(), "create", chef)

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
            while chef.queue and chef.running < chef.target:
                came_s = chef.queue.popleft()
                if came_s > START_S:
                    chef.waits.append(now_s - came_s)
                chef.running += 1
                self.at(now_s + self.hold_s, "end", chef)
            chef.demand.note(chef.running, chef.arrived, chef.ended, now_s)

    def create(self, chef: Chef, now_s: float) -> None:
        chef.queue.append(now_s)
        chef.arrived += 1
        self.at(now_s + 2 * self.random.random() / self.rate, "create", chef)

    def end(self, chef: Chef, now_s: float) -> None:
        chef.running -= 1
        chef.ended += 1

    def cycle(self, chef: Chef, now_s: float) -> None:
        chef.seq += 1
        queued = len(chef.queue)
        request = CycleRequest(
            chef.name, 1, chef.seq, 0, queued, 0, 0, chef.running, chef.version, chef.target, False,
            *chef.demand.ask(queued, 1.0, now_s),
        )  # fmt: skip
        reply = self.book.on_request(request, int(now_s * 1000)).reply
        chef.version, chef.target = reply.lease_version, reply.target
        self.at(now_s + 1 + self.random.random() / 100, "cycle", chef)


@pytest.mark.parametrize(
    ("hold_s", "rate", "used"), [(0.05, 10, 0.8), (0.05, 2, 0.7), (0.2, 3, 0.7)]
)
def test_the_quiet_hardly_wait_and_the_loud_one_has_the_rest(
    hold_s: float, rate: float, used: float
) -> None:
    kitchen = Kitchen(40, hold_s, rate)
    kitchen.play(45)
    waits = sorted(wait for chef in kitchen.quiet for wait in chef.waits)
    assert waits[int(len(waits) * 0.99)] < 1.5
    assert waits[len(waits) // 2] < 0.1
    assert kitchen.loud.queue
    assert kitchen.busy_s / (45 - START_S) / 40 > used
    for chef in kitchen.quiet:  # all that came has begun
        assert len(chef.queue) <= 0.05 * chef.arrived + 2
