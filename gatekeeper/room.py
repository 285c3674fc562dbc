"""Queue room: how many more instances of each workflow front ends may let in. Pure.

A workflow may have so many instances queued, and a create is refused before it is acknowledged.
With its report of arrivals a front end tells what it let in since the last one and what it has
left; it gets a number that it may let in from then on. Guaranteed, as long as front ends report:

* What SousChefs report as queued, what was let in lately (SousChefs may not have told of it yet)
  and what front ends may still let in together never exceed the limit by a new lease.
* The last free place is given to somebody who asks for it.
* Nobody gets more than half of what is free, so that one who begins finds room at once, or as much
  as has lately come to him in a period: a batch is let in whole or not at all, and if it fits when
  all is free it must be let in when it comes again.

What was let in lately counts although it may run already: so just below the limit some are
refused that would have fitted, for a few periods. A front end that falls silent keeps what it has;
after RATE_SILENT_PERIODS it is taken for dead. Nothing is durable: a new book gives nobody more
than it has until all SousChefs with a lease have reported, or could have.
"""

from __future__ import annotations

from collections import deque

from ..runtime import limits
from .fairness import Claim, divide
from .messages import RateRequest

_BURST_REPORTS = 8
"""For so many reports it is known how many came at once: who was refused comes again."""


class _Front:
    """What a front end may let in, how many came in a period, lately at most, and when it was heard
    of."""

    __slots__ = ("arrived", "burst", "burst_seq", "given", "room", "seen_ms", "seq")

    def __init__(self, seq: int) -> None:
        self.arrived = 0
        self.burst = self.burst_seq = 0
        self.given: int | None = None
        self.room = 0
        self.seen_ms = 0
        self.seq = seq

    def came(self, count: int) -> None:
        """So many in the period that its newest report tells of."""
        self.arrived = count
        if count >= self.burst or self.seq > self.burst_seq + _BURST_REPORTS:
            self.burst, self.burst_seq = count, self.seq


class _Queue:
    """A workflow's front ends, and what was let in lately, by the time of the report."""

    __slots__ = ("fronts", "lately", "on_the_way")

    def __init__(self) -> None:
        self.fronts: dict[str, _Front] = {}
        self.lately: deque[tuple[int, int]] = deque()
        self.on_the_way = 0

    def let_in(self, count: int, now_ms: int) -> None:
        if count:
            self.lately.append((now_ms, count))
            self.on_the_way += count

    def settle(self, before_ms: int, now_ms: int) -> None:
        """Forget what SousChefs have told of by now."""
        if self.lately and self.lately[-1][0] > now_ms:  # the clock went back
            self.lately = deque((min(at_ms, now_ms), count) for at_ms, count in self.lately)
        while self.lately and self.lately[0][0] <= before_ms:
            self.on_the_way -= self.lately.popleft()[1]

    def bury(self, silence_ms: int, now_ms: int) -> None:
        """Forget front ends that are dead."""
        for name, front in list(self.fronts.items()):
            front.seen_ms = min(front.seen_ms, now_ms)  # the clock went back
            if now_ms - front.seen_ms > silence_ms:
                del self.fronts[name]


class RoomBook:
    """The queue room of an account's workflows."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._set: dict[str, int] = {}

    def limit(self, uuid: str) -> int:
        """How many instances of a workflow may be queued."""
        return self._set.get(uuid, limits.QUEUED_PER_WORKFLOW_MAX)

    def set_limit(self, uuid: str, queued_max: int | None) -> None:
        """Set it; None: the default."""
        if queued_max is None:
            self._set.pop(uuid, None)
        else:
            self._set[uuid] = queued_max

    def on_report(
        self, request: RateRequest, uuid: str, queued: int | None, period_ms: int, now_ms: int
    ) -> int | None:
        """A front end's report of one workflow: how many it may let in from now on.

        Args:
            request: its report.
            uuid: the workflow's.
            queued: as SousChefs have reported; None: that is not known yet.
            period_ms: how often they and front ends report.
            now_ms: the time.

        Returns:
            None: it keeps what it has.
        """
        queue = self._queues.get(uuid)
        if queue is None:
            if len(self._queues) >= 2 * limits.WORKFLOWS_PER_ACCOUNT_MAX:
                self._forget_quiet(period_ms, now_ms)
            queue = self._queues[uuid] = _Queue()
        queue.bury(limits.RATE_SILENT_PERIODS * period_ms, now_ms)
        queue.settle(now_ms - limits.ROOM_SETTLE_PERIODS * period_ms, now_ms)
        front = queue.fronts.setdefault(request.front_end, _Front(request.seq - 1))
        if request.seq <= front.seq:
            return front.given
        front.seq, front.seen_ms = request.seq, now_ms
        front.came(-(-request.arrivals.get(uuid, 0) * period_ms // 1_000_000))
        queue.let_in(request.admitted.get(uuid, 0), now_ms)
        left = request.room.get(uuid, 0)
        if queued is None:
            front.room, front.given = left, None
            return None
        front.room = left
        front.given = self._room(uuid, queue, front, queued)
        front.room = max(front.given, left)  # the answer may be lost
        return front.given

    def _forget_quiet(self, period_ms: int, now_ms: int) -> None:
        """Forget workflows of which nobody tells any more: most of them are gone."""
        for uuid, queue in list(self._queues.items()):
            queue.bury(limits.RATE_SILENT_PERIODS * period_ms, now_ms)
            queue.settle(now_ms - limits.ROOM_SETTLE_PERIODS * period_ms, now_ms)
            if not queue.fronts and not queue.lately:
                del self._queues[uuid]

    def _room(self, uuid: str, queue: _Queue, mine: _Front, queued: int) -> int:
        free = self.limit(uuid) - queued - queue.on_the_way
        others = sum(front.room for front in queue.fronts.values() if front is not mine)
        if free - others <= 0:
            return 0
        half = -(-(free - others) // 2)
        n = len(queue.fronts)
        claims = [
            Claim(min(free, 2 * front.arrived), 1, (place,))
            for place, front in enumerate(queue.fronts.values())
        ]
        shares = divide(free, claims)
        place = next(place for place, front in enumerate(queue.fronts.values()) if front is mine)
        share = shares[place] + (free - sum(shares)) // n
        return min(share, max(half, min(free - others, mine.burst)))
