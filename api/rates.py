"""Rates of creates and queue room at a front end, as Gatekeepers lease them.

A create passes, or is refused as `RateLimited` or `QueueFull`, before anything of it is sent.
Buckets fill at the leased rates; queue room is a number that each create lowers by one. While
creates of an account come, this front end calls its Gatekeeper once a second (`gatekeeper.rates`,
`gatekeeper.room`); after a few seconds without any it stops and forgets. If no answer comes, the
last rates and the rest of the room hold.

Accounts and workflows without a limit of rates have no buckets; queue room is theirs too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from typing import NamedTuple

from ..gatekeeper.messages import GATEKEEPER_KIND, RateReply, RateRequest
from ..gatekeeper.rates import ACCOUNT, MILLI, Bucket
from ..gatekeeper.refusals import QueueFull, RateLimited
from ..runtime import limits
from ..runtime.entropy import Entropy
from ..runtime.errors import SystemFault
from ..runtime.ids import EntityRef
from .calls import Caller

_FIRST_PART = 8
"""A front end that can't get its first rates begins with this part of the limits."""


class CreateLimits(NamedTuple):
    """Creates per second of an account and of one of its workflows; how many of it may queue."""

    account: int
    workflow: int
    queued: int = limits.QUEUED_PER_WORKFLOW_MAX

    @property
    def without_rates(self) -> bool:
        """Whether there is no limit on creates per second."""
        return min(self.account, self.workflow) >= limits.CREATES_PER_SECOND_MAX


class _Rates:
    """What this front end knows of one account. Keys are workflow uuids, and `ACCOUNT`.

    Attributes:
        buckets: of rates.
        room: how many more creates may pass; without those of which that is not known.
        arrived, admitted: creates that came, and that passed, since the last report was made.
        idle: for how many periods none have come.
        answered: there was an answer, or it was waited for long enough.
    """

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.room: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self.admitted: Counter[str] = Counter()
        self.idle: dict[str, int] = {}
        self.answered = asyncio.Event()

    def bucket(self, uuid: str, most: CreateLimits, now: float) -> Bucket:
        """A workflow's bucket; a new one has that part of its limit that the account's has."""
        bucket = self.buckets.get(uuid)
        if bucket is None:
            part = min(1.0, self.buckets[ACCOUNT].rate / (most.account * MILLI))
            rate = max(1, round(most.workflow * MILLI * part))
            bucket = self.buckets[uuid] = Bucket(rate, now)
        return bucket

    def report(self, front_end: str, seq: int, elapsed_s: float) -> RateRequest:
        """What to tell the Gatekeeper; what has long been quiet is forgotten."""
        arrived, self.arrived = self.arrived, {}
        admitted, self.admitted = self.admitted, Counter()
        for uuid in dict.fromkeys((*self.idle, *arrived)):  # in the same order in each process
            self.idle[uuid] = 0 if uuid in arrived else self.idle[uuid] + 1
            if self.idle[uuid] > limits.RATE_IDLE_PERIODS:
                self._forget(uuid)
            else:
                arrived.setdefault(uuid, 0)
        return RateRequest(
            front_end,
            seq,
            {uuid: round(count * MILLI / elapsed_s) for uuid, count in arrived.items()},
            {uuid: bucket.rate for uuid, bucket in self.buckets.items()},
            dict(admitted),
            {uuid: self.room[uuid] for uuid in arrived if uuid in self.room},
        )

    def _forget(self, uuid: str) -> None:
        del self.idle[uuid]
        self.buckets.pop(uuid, None)
        if self.room.get(uuid, 0) >= limits.ROOM_REMEMBERED_BELOW:
            del self.room[uuid]  # a queue that was nearly full is known to be, when creates return

    def apply(self, reply: RateReply, now: float) -> None:
        """Take the leases; what passed since the report was made was let in from them."""
        for uuid, rate in reply.leases.items():
            bucket = self.buckets.get(uuid)
            if bucket is None:
                self.buckets[uuid] = Bucket(rate, now)
            else:
                bucket.set_rate(rate, now)
        for uuid, room in reply.room.items():
            self.room[uuid] = max(0, room - self.admitted[uuid])
        self.answered.set()


class CreateRates:
    """The rates and the queue room of all accounts at this front end.

    Args:
        caller: for calls to Gatekeepers.
        entropy: names this front end.
    """

    def __init__(self, caller: Caller, entropy: Entropy) -> None:
        self._caller = caller
        self._front_end = entropy.new_id()
        self._rates: dict[str, _Rates] = {}
        self._seqs = itertools.count(
            1
        )  # it grows over all: a Gatekeeper outlives what is forgotten
        self._tasks: set[asyncio.Task[None]] = set()

    async def admit(self, account: str, uuid: str, most: CreateLimits, count: int) -> None:
        """Let creates pass, all or none.

        Args:
            account, uuid: whose, and of which workflow.
            most: their limits.
            count: how many.

        Raises:
            RateLimited: they are too many just now.
            QueueFull: too many instances of the workflow are queued.
        """
        rates = self._rates.get(account) or self._begin(account)
        rates.arrived[uuid] = rates.arrived.get(uuid, 0) + count
        if not rates.answered.is_set():
            await self._first_rates(rates, most)
        buckets = () if most.without_rates else _checked(rates, uuid, most, count)
        room = rates.room.get(uuid)
        if room is not None:
            if room < count:
                raise QueueFull(
                    f"{most.queued} instances of this workflow may be queued, and {room} more fit "
                    "just now; try again when some of them have begun.",
                    {"limit": most.queued, "room": room},
                )
            rates.room[uuid] = room - count
        rates.admitted[uuid] += count
        for bucket in buckets:
            bucket.take(count)

    async def close(self) -> None:
        """End the calls."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, account: str) -> _Rates:
        rates = self._rates[account] = _Rates()
        task = asyncio.get_running_loop().create_task(self._cycle(account, rates))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return rates

    async def _first_rates(self, rates: _Rates, most: CreateLimits) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.RATE_LEASE_MS / 1000):
                await rates.answered.wait()
        if ACCOUNT not in rates.buckets:
            now = asyncio.get_running_loop().time()
            rates.buckets[ACCOUNT] = Bucket(max(1, most.account * MILLI // _FIRST_PART), now)
        rates.answered.set()

    async def _cycle(self, account: str, rates: _Rates) -> None:
        """One call a period, until no creates have come for a few."""
        loop = asyncio.get_running_loop()
        quiet = 0
        elapsed_s = 1.0
        try:
            while quiet <= limits.RATE_IDLE_PERIODS:
                quiet = 0 if rates.arrived else quiet + 1
                asked_at = loop.time()
                request = rates.report(self._front_end, next(self._seqs), elapsed_s)
                pause_s = limits.CYCLE_PERIOD_MS / 1000
                try:
                    reply: RateReply = await self._caller.call(
                        RateReply,
                        self._caller.deadline(limits.RATE_LEASE_MS),
                        EntityRef(GATEKEEPER_KIND, account),
                        "lease_rates",
                        request,
                        attempt_ms=limits.RATE_LEASE_MS,
                    )
                except SystemFault:
                    rates.admitted.update(request.admitted)  # told again: twice is on the safe side
                else:
                    rates.apply(reply, loop.time())
                    pause_s = reply.period_ms / 1000
                await asyncio.sleep(max(0.0, asked_at + pause_s - loop.time()))
                elapsed_s = max(0.001, loop.time() - asked_at)
        finally:
            if self._rates.get(account) is rates:
                del self._rates[account]


def _checked(rates: _Rates, uuid: str, most: CreateLimits, count: int) -> tuple[Bucket, Bucket]:
    """The buckets of the account and the workflow, which hold enough, or `RateLimited`."""
    now = asyncio.get_running_loop().time()
    of_account, of_workflow = rates.buckets[ACCOUNT], rates.bucket(uuid, most, now)
    for whose, bucket, limit in (
        ("workflow", of_workflow, most.workflow),
        ("account", of_account, most.account),
    ):
        if bucket.rate > limit * MILLI:  # it was lowered, and the Gatekeeper was not asked yet
            bucket.set_rate(limit * MILLI, now)
        wait_s = bucket.wait_s(count, now)
        if wait_s > 0:
            raise RateLimited(
                f"this {whose} takes {limit} creates a second; "
                f"try again in {max(0.1, wait_s):.1f} s.",
                {"of": whose, "limit": limit, "retry_after_ms": max(1, round(wait_s * 1000))},
            )
    return of_account, of_workflow
