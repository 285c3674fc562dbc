"""Rates of creates: how an account's and its workflows' rates are leased to front ends. Pure.

Once a second a front end reports what arrived and gets a rate for the account and for each
workflow it had arrivals of; it lets creates pass from buckets that fill at these rates and hold
one second of them. Rates are in thousandths of a create per second, so that small ones divide.

* A rate is divided max-min over the arrivals that front ends last reported; each is taken to want
  a floor at least, so that one without arrivals can begin; what nobody wants is spread evenly. A
  front end alone has all.
* A lease is raised only as far as others have been lowered, but for the floor. So over a second
  or two after load has moved, and for a front end that joins, the sum may exceed the limit by
  that floor; else it does not.
* A front end that falls silent keeps its lease (it can't hear of another one), and it counts for
  RATE_SILENT_PERIODS; after that it is taken for dead, and others get its share. Copies of what it
  said before change nothing any more.

Nothing is durable: after a restart the book takes the first reports' word for what is held, and
gives no more than that until it has heard of everybody. Who holds nothing and is the first to
report gets all, as it would if it were alone: until the others have reported, for a period, the sum
may exceed the limit by what they hold.
"""

from __future__ import annotations

from ..runtime import limits
from .fairness import Claim, divide
from .messages import RateReply, RateRequest

ACCOUNT = ""
"""The key of the account's own rate; others are workflow uuids."""
MILLI = 1_000
_EXACT = 1e-9  # what sums of floats may be off
_GONE_REMEMBERED_MAX = 1_000
_FLOOR_PARTS = 8
"""The floor of each of n front ends is an n-th of this part of the rate."""


class _Front:
    """What a front end last reported of one rate, and what it was given."""

    __slots__ = ("arrivals", "lease", "seen_ms", "seq")

    def __init__(self, lease: int) -> None:
        self.arrivals = 0
        self.lease = lease
        self.seen_ms = 0
        self.seq = 0


class RateBook:
    """The rates of an account.

    Args:
        account: creates per second of the account, if none was set.
        workflow: likewise of each workflow.
    """

    def __init__(self, account: int, workflow: int) -> None:
        self._defaults = (account, workflow)
        self._set: dict[str, int] = {}
        self._fronts: dict[str, dict[str, _Front]] = {}
        self._gone: dict[str, int] = {}
        self._swept_ms: int | None = None

    def limit(self, key: str) -> int:
        """Creates per second of the account (`ACCOUNT`) or a workflow."""
        return self._set.get(key, self._defaults[key != ACCOUNT])

    def set_limit(self, key: str, creates_per_second: int | None) -> None:
        """Set a rate; None: the default. Front ends learn it with their next report."""
        if creates_per_second is None:
            self._set.pop(key, None)
        else:
            self._set[key] = creates_per_second

    @property
    def front_ends(self) -> int:
        """How many have reported lately."""
        return len(self._fronts.get(ACCOUNT, ()))

    def arrivals(self, key: str) -> int:
        """What arrives at all front ends, as last reported, in thousandths per second."""
        return sum(front.arrivals for front in self._fronts.get(key, {}).values())

    def leased(self, key: str) -> int:
        """The sum of what is leased of a rate, in thousandths."""
        return sum(front.lease for front in self._fronts.get(key, {}).values())

    def on_report(self, request: RateRequest, period_ms: int, now_ms: int) -> RateReply:
        """A front end's report: note it, and answer with its leases.

        Without any if it is a late copy of what one said that is taken for dead.
        """
        self._sweep(period_ms, now_ms)
        if self._is_from_the_dead(request, period_ms, now_ms):
            return RateReply(request.seq, {}, {}, period_ms)
        arrivals = {ACCOUNT: sum(request.arrivals.values()), **request.arrivals}
        leases = {}
        for key, arrived in arrivals.items():
            fronts = self._fronts.setdefault(key, {})
            front = fronts.get(request.front_end)
            held = 0
            if front is None:
                held = request.held.get(key, 0)
                front = fronts[request.front_end] = _Front(held)
            if request.seq > front.seq:  # an older one changes nothing
                front.seq = request.seq
                front.arrivals = arrived
                front.seen_ms = now_ms
                lease = self._lease(key, fronts, front)
                # Others that this book does not know yet may hold the rest.
                front.lease = min(lease, held) if held else lease
            leases[key] = front.lease
        return RateReply(request.seq, leases, {}, period_ms)

    def _is_from_the_dead(self, request: RateRequest, period_ms: int, now_ms: int) -> bool:
        front = self._fronts.get(ACCOUNT, {}).get(request.front_end)
        if front is None:
            return request.seq <= self._gone.get(request.front_end, 0)
        is_silent = now_ms - front.seen_ms > limits.RATE_SILENT_PERIODS * period_ms
        return is_silent and request.seq <= front.seq

    def _lease(self, key: str, fronts: dict[str, _Front], mine: _Front) -> int:
        limit = self.limit(key) * MILLI
        n = len(fronts)
        if n == 1:
            return limit
        floor = max(1, limit // (_FLOOR_PARTS * n))
        claims = [
            Claim(min(limit, max(front.arrivals, floor)), 1, (place,))
            for place, front in enumerate(fronts.values())
        ]
        shares = divide(limit, claims)
        place = next(place for place, front in enumerate(fronts.values()) if front is mine)
        share = shares[place] + (limit - sum(shares)) // n
        room = limit - sum(front.lease for front in fronts.values() if front is not mine)
        return max(floor, min(share, room))

    def _sweep(self, period_ms: int, now_ms: int) -> None:
        """Once a period, forget the silent."""
        if self._swept_ms is not None and 0 <= now_ms - self._swept_ms < period_ms:
            return
        self._swept_ms = now_ms
        silence_ms = limits.RATE_SILENT_PERIODS * period_ms
        for key, fronts in list(self._fronts.items()):
            for front_end, front in list(fronts.items()):
                if front.seen_ms > now_ms:  # the clock went back
                    front.seen_ms = now_ms
                if now_ms - front.seen_ms > silence_ms:
                    del fronts[front_end]
                    if key == ACCOUNT:
                        self._gone[front_end] = front.seq
            if not fronts:
                del self._fronts[key]
        while len(self._gone) > _GONE_REMEMBERED_MAX:
            del self._gone[next(iter(self._gone))]


class Bucket:
    """Lets creates pass at a rate, with a burst of one second of it.

    More at once than it holds passes when it is full, and is paid back: so a batch is never too
    large for a small rate. Times are seconds of any clock that does not go back.

    Args:
        rate: thousandths of a create per second.
        now: when it is full.
    """

    __slots__ = ("_at", "_left", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._left = self.size
        self._at = now

    @property
    def size(self) -> float:
        """How many creates it holds."""
        return max(1.0, self.rate / MILLI)

    def set_rate(self, rate: int, now: float) -> None:
        """Fill at another rate from now on."""
        self._fill(now)
        self.rate = rate
        self._left = min(self._left, self.size)

    def wait_s(self, count: int, now: float) -> float:
        """How long until `count` may pass; 0: now."""
        self._fill(now)
        missing = min(float(count), self.size) - self._left
        if missing < _EXACT:
            return 0.0
        return missing * MILLI / self.rate if self.rate else 1.0

    def take(self, count: int) -> None:
        """Let `count` pass."""
        self._left -= count

    def _fill(self, now: float) -> None:
        self._left = min(self.size, self._left + max(0.0, now - self._at) * self.rate / MILLI)
        self._at = max(self._at, now)
