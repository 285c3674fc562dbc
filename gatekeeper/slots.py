"""The lease ledger of an account: who may hold how many slots. Pure.

A *lease* is absolute and versioned: a target that its holder obeys. Beside it stands the *ledger
entry*, an upper bound of what the holder may hold at this instant. Guaranteed:

* Slots are given, and an entry raised for that, only if the sum of all entries stays within the
  limit (and the sum of a workflow's entries within that workflow's limit). A holder that reports
  more than its entry is believed, whatever the sum: until it says less nobody gets those slots.
* An entry is lowered only when its holder has confirmed the newest version: then it holds at
  most `max(holding, target)` of what it reported.
* A stale request, a duplicate, a lost answer and a holder that falls silent change nothing or
  keep an entry too high; never too low.

A request changes its own holder's lease only, computed from the last reported demand of all. If
that has nothing new, its answer may wait, and the lease is reviewed meanwhile (`held_calls`): who
must give slots up hears of it between two of its calls, and confirms at the next. Then there is
room, and a newcomer whose call waits has it at once: within little more than a cycle. One whose
call does not wait has it within three. Too little room is divided as well, not had by the first.

What a holder wants is what it can keep busy for a period: of short instances a slot serves many,
and one that is leased to each of them would idle. While some wait, slots are kept for what others
expect, up to a part of all (SLOTS_KEPT_PART): who gets a few instances now and then finds a slot
at once, where handing it back and asking again would take cycles each time.

Demand is not durable: after a restart the book knows what everyone may hold, and learns within a
cycle what everyone wants.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ..runtime import limits
from .fairness import Claim, Member, divide, split
from .messages import CycleReply, CycleRequest


@dataclass(frozen=True)
class GatekeeperFaults:
    """Deliberate faults, to prove that the checkers find them. All off in earnest."""

    grant_outside_ledger: bool = False
    """Raise targets as if there were room, and write no entry."""


class Holder:
    """A SousChef's lease, entry and last report.

    Attributes:
        version, target: the newest lease.
        ledger: upper bound of what it may hold.
        incarnation, seq: of the newest request taken.
        left: it has given its lease back and is silent.
        awakened, fresh, oldest_fresh_ms, holding: as last reported.
        seen_ms: when; of one that was not heard of, since when that is known.
        heard: it was heard of since this book was opened.
        counts: whether its demand counts (it was heard of lately).
        wanted, asks: what the division takes it to want, and how much of that is awakened.
        needs: slots that it can keep busy, as last reported; kept: more, for what it expects.
    """

    __slots__ = (
        "asks",
        "awakened",
        "counts",
        "fresh",
        "heard",
        "holding",
        "incarnation",
        "kept",
        "ledger",
        "left",
        "needs",
        "oldest_fresh_ms",
        "seen_ms",
        "seq",
        "souschef",
        "target",
        "version",
        "wanted",
        "workflow",
    )

    def __init__(self, souschef: str) -> None:
        self.souschef = souschef
        self.workflow = souschef.rsplit("/", 1)[0]
        self.version = self.target = self.ledger = 0
        self.incarnation = self.seq = 0
        self.left = True
        self.awakened = self.fresh = self.oldest_fresh_ms = self.holding = 0
        self.seen_ms: int | None = None
        self.heard = False
        self.counts = False
        self.wanted = self.asks = 0
        self.needs = self.kept = 0

    def durable(self) -> tuple[int, int, int, bool]:
        """What must be on disk before an answer leaves."""
        return self.version, self.target, self.ledger, self.left


class Workflow:
    """A workflow's holders, their sums, and its settings (`running_max` 0: no limit).

    `share` is what the last division between workflows gave it, `due` how many of the free slots;
    `seen_ms` is when one of its holders was heard last.
    """

    __slots__ = (
        "asks",
        "due",
        "holders",
        "ledger",
        "running_max",
        "seen_ms",
        "share",
        "wanted",
        "weight",
    )

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        self.wanted = self.asks = self.ledger = self.share = self.due = self.seen_ms = 0
        self.weight = 1
        self.running_max = 0

    def cap(self, limit: int) -> int:
        """How many slots it may have at most."""
        return min(limit, self.running_max) if self.running_max else limit

    @property
    def usable(self) -> int:
        """How many slots it wants and may have."""
        return self.cap(self.wanted)


@dataclass(frozen=True)
class Outcome:
    """What a request leads to.

    Attributes:
        reply: the answer; it may leave once the changes are durable.
        changed: the holder, if its row must be written.
        forgotten: SousChefs whose rows go.
        is_stale: the request was not newer than the newest one taken.
    """

    reply: CycleReply
    changed: Holder | None
    forgotten: list[str]
    is_stale: bool = False


class LeaseBook:
    """All leases of an account.

    Args:
        limit: how many instances may run.
        faults: deliberate faults for checkers.
        calls_per_second: C: how many calls it may get, those of front ends included.
    """

    def __init__(
        self,
        limit: int,
        faults: GatekeeperFaults | None = None,
        calls_per_second: int = limits.GATEKEEPER_CALLS_PER_SECOND_MAX,
    ) -> None:
        self.limit = limit
        self.calls_of_front_ends = calls_per_second // limits.FRONT_END_CALLS_PART
        self.calls_of_holders = max(1, calls_per_second - self.calls_of_front_ends)
        self.faults = faults or GatekeeperFaults()
        self.holders: dict[str, Holder] = {}
        self.workflows: dict[str, Workflow] = {}
        self.ledger = 0
        self.wanted = 0
        self.active = 0
        self.unmet = 0
        self.kept = 0
        self.raised = 0
        self._level = self._due_level = inf
        self._divided: tuple[int, int, int] | None = None
        self._swept_ms: int | None = None

    # --- opening and settings ---------------------------------------------------------------

    def load(
        self,
        souschef: str,
        version: int,
        target: int,
        ledger: int,
        incarnation: int,
        seq: int,
        left: bool,
    ) -> None:
        """Take a row of the durable ledger in."""
        assert min(version, target, ledger) >= 0, (souschef, version, target, ledger)
        assert self.faults.grant_outside_ledger or target <= ledger, (souschef, target, ledger)
        assert not left or ledger == 0, (souschef, ledger)
        holder = self._open(souschef)
        self._take_out(holder)
        holder.version, holder.target, holder.ledger = version, target, ledger
        holder.incarnation, holder.seq, holder.left = incarnation, seq, left
        self._put_in(holder)

    def set_workflow(self, workflow: str, weight: int, running_max: int) -> None:
        """Set a workflow's weight and limit; `workflow` is `account/workflow uuid`."""
        entry = self.workflows.setdefault(workflow, Workflow())
        for holder in entry.holders.values():
            self._take_out(holder)
        entry.weight = weight
        entry.running_max = running_max
        for holder in entry.holders.values():
            self._put_in(holder)
        self._forget_plain(workflow)

    def _open(self, souschef: str) -> Holder:
        holder = self.holders.get(souschef)
        if holder is None:
            holder = self.holders[souschef] = Holder(souschef)
            workflow = self.workflows.setdefault(holder.workflow, Workflow())
            workflow.holders[souschef] = holder
        return holder

    # --- sums -------------------------------------------------------------------------------

    def _take_out(self, holder: Holder) -> None:
        workflow = self.workflows[holder.workflow]
        self.ledger -= holder.ledger
        workflow.ledger -= holder.ledger
        self.wanted -= workflow.usable
        workflow.wanted -= holder.wanted
        self.wanted += workflow.usable
        workflow.asks -= holder.asks
        self.kept -= holder.kept
        self.active -= not holder.left
        self.unmet -= self._is_unmet(holder, workflow)

    def _put_in(self, holder: Holder) -> None:
        workflow = self.workflows[holder.workflow]
        if holder.counts:
            holder.wanted = holder.needs + holder.kept
            holder.asks = holder.awakened
        else:
            holder.wanted = holder.ledger
            holder.asks = 0
        self.ledger += holder.ledger
        workflow.ledger += holder.ledger
        self.wanted -= workflow.usable
        workflow.wanted += holder.wanted
        self.wanted += workflow.usable
        workflow.asks += holder.asks
        self.kept += holder.kept
        self.active += not holder.left
        self.unmet += self._is_unmet(holder, workflow)

    def _is_unmet(self, holder: Holder, workflow: Workflow) -> bool:
        """Whether it waits for others' slots (not for its workflow's own limit)."""
        return holder.counts and not workflow.running_max and holder.needs > holder.target

    def queued(self, workflow: str, now_ms: int) -> int | None:
        """How many instances of `account/workflow uuid` wait for a slot, as last reported.

        None: a holder has not reported since this book was opened, and still may.
        """
        entry = self.workflows.get(workflow)
        if entry is None:
            return 0
        silence_ms = limits.LEASE_SILENT_PERIODS * self.period_ms
        queued = 0
        for holder in entry.holders.values():
            since_ms = now_ms if holder.seen_ms is None else holder.seen_ms
            if not (holder.heard or holder.left) and now_ms - since_ms <= silence_ms:
                return None
            queued += holder.awakened + holder.fresh
        return queued

    @property
    def period_ms(self) -> int:
        """How long a cycle takes, so that calls per second stay under their bound."""
        stretched = limits.CYCLE_PERIOD_MS * self.active // self.calls_of_holders
        return max(limits.CYCLE_PERIOD_MS, stretched)

    @property
    def room_for_holders(self) -> int:
        """How many more holders there may be before the cycle is stretched."""
        return max(0, self.calls_of_holders - self.active)

    # --- the cycle --------------------------------------------------------------------------

    def on_request(self, request: CycleRequest, now_ms: int) -> Outcome:
        """A SousChef's call: note its report, answer with its lease."""
        forgotten = self._sweep(now_ms)
        known = request.souschef in self.holders
        holder = self._open(request.souschef)
        order = (request.incarnation, request.seq)
        if known and order <= (holder.incarnation, holder.seq):
            return Outcome(self._reply(holder), None, forgotten, is_stale=True)
        before = holder.durable() if known else None
        self._take_out(holder)
        holder.incarnation, holder.seq = order
        bound = self._bound(holder, request)
        holder.left = request.leaving and bound == 0
        holder.awakened, holder.fresh = request.awakened, request.fresh
        holder.oldest_fresh_ms = request.oldest_fresh_ms
        holder.holding = request.holding
        holder.seen_ms = now_ms
        holder.heard = True
        holder.counts = True
        have = request.holding + request.awakened + request.fresh
        holder.needs = have if request.needs < 0 else min(have, request.needs)
        holder.kept = 0 if request.leaving else self._keep(request.expects - holder.needs)
        holder.ledger = bound
        self.workflows[holder.workflow].seen_ms = now_ms
        self._put_in(holder)
        target, fair = (0, 0) if request.leaving else self._target(holder, now_ms)
        if request.may_wait and not _matters(holder.target, target, fair):
            target = holder.target  # what there is to tell is left to a review
        self._lease(holder, target)
        changed = holder if holder.durable() != before else None
        return Outcome(self._reply(holder), changed, forgotten)

    def review(self, souschef: str, now_ms: int, is_last: bool) -> Outcome:
        """What its last report leads to, now that others have reported.

        A lease that is lowered is told: the sooner, the more of its slots are free at its next
        call. One that is raised by little is left until the last moment: the rest may follow.
        """
        holder = self.holders[souschef]
        before = holder.durable()
        target, fair = self._target(holder, now_ms)
        if is_last or target < holder.target or _matters(holder.target, target, fair):
            self._lease(holder, target)
        changed = holder if holder.durable() != before else None
        return Outcome(self._reply(holder), changed, [])

    def _bound(self, holder: Holder, request: CycleRequest) -> int:
        """How many slots the holder may hold at this instant, its newest lease left aside."""
        reported = max(request.holding, request.target)
        if request.lease_version < holder.version:
            return max(holder.ledger, request.holding)
        known = request.lease_version == holder.version
        # It may obey less than it was given (it gave slots back). A lease that this book does not
        # know is taken on the holder's word. Either way the next version counts on from there.
        holder.version, holder.target = request.lease_version, request.target
        return reported if known else max(holder.ledger, reported)

    def _keep(self, expected: int) -> int:
        """How many slots to keep for what a holder expects, while others wait."""
        if not self.unmet:
            return 0
        return max(0, min(expected, self.limit // limits.SLOTS_KEPT_PART - self.kept))

    def _lease(self, holder: Holder, target: int) -> None:
        """Give the holder a lease: a new version if the target differs."""
        previous = holder.ledger
        self._take_out(holder)
        if target != holder.target:
            holder.version += 1
            self.raised += max(0, target - holder.target)
            holder.target = target
        if not self.faults.grant_outside_ledger:
            holder.ledger = max(target, previous)
        self._put_in(holder)
        assert holder.ledger <= previous or self.ledger <= self.limit, (
            f"{holder.souschef}: raised from {previous} to {holder.ledger}, "
            f"{self.ledger} of {self.limit} in all"
        )

    def _target(self, holder: Holder, now_ms: int) -> tuple[int, int]:
        """The holder's fair share, spare slots included: as far as there is room, and all of it."""
        workflow = self.workflows[holder.workflow]
        fair = self._fair_share(holder, workflow, now_ms) + self._headroom(holder)
        if self.faults.grant_outside_ledger:
            return holder.wanted, holder.wanted
        room = self.limit - self.ledger
        if self.wanted > self.limit:
            room = int(min(room, max(workflow.due, self._due_level)))
        room = min(room, workflow.cap(self.limit) - workflow.ledger)
        return max(0, min(fair, holder.ledger + room)), fair

    def _fair_share(self, holder: Holder, workflow: Workflow, now_ms: int) -> int:
        cap = workflow.cap(self.limit)
        share = min(workflow.wanted, cap)
        turn = now_ms // max(limits.SHARE_ROTATION_MS, 5 * self.period_ms)
        if self.wanted > self.limit:
            self._divide(turn, now_ms)
            level = share if self._level == inf else int(self._level * workflow.weight)
            share = min(share, max(workflow.share, level))
        if workflow.wanted <= share:
            return holder.wanted
        members = list(workflow.holders.values())
        parts = split(share, [_member(member) for member in members], turn)
        return parts[members.index(holder)]

    def _divide(self, turn: int, now_ms: int) -> None:
        """Divide all slots between workflows, and the free ones between those who are to have more.

        Else who calls first would have all that is free, and the last nothing until others have
        given up more.

        That costs a little for each workflow, so if there are many it is done anew only after
        SHARES_KEPT_MS. Who asks in between gets what it was given, or as much as those have who
        got less than they want.
        """
        if self._divided is not None and len(self.workflows) > limits.SHARES_KEPT_FROM:
            at_ms, limit, turned = self._divided
            age_ms = now_ms - at_ms
            if (limit, turned) == (self.limit, turn) and 0 <= age_ms < limits.SHARES_KEPT_MS:
                return
        self._divided = (now_ms, self.limit, turn)
        busy = [entry for entry in self.workflows.values() if entry.wanted]
        n = len(busy)
        claims = [
            Claim(entry.usable, entry.weight, (0 if entry.asks else 1, (place - turn) % n))
            for place, entry in enumerate(busy)
        ]
        self._level = inf
        for entry in self.workflows.values():
            entry.share = entry.due = 0
        for entry, share in zip(busy, divide(self.limit, claims), strict=True):
            entry.share = share
            if share < entry.usable:
                self._level = min(self._level, share / entry.weight)
        self._due_level = inf
        since_ms = now_ms - 2 * self.period_ms
        short = [entry for entry in busy if entry.share > entry.ledger and entry.seen_ms > since_ms]
        lacks = [
            Claim(entry.share - entry.ledger, entry.weight, (entry.ledger, place))
            for place, entry in enumerate(short)
        ]
        for entry, lack, due in zip(
            short, lacks, divide(max(0, self.limit - self.ledger), lacks), strict=True
        ):
            entry.due = due
            if due < lack.wanted:
                self._due_level = min(self._due_level, due)

    def _headroom(self, holder: Holder) -> int:
        """Spare slots for expected arrivals: none while anybody's demand is unmet."""
        others_unmet = self.unmet - self._is_unmet(holder, self.workflows[holder.workflow])
        free = self.limit - self.wanted
        if others_unmet or free <= 0:
            return 0
        return free // (2 * max(1, self.active))

    def _reply(self, holder: Holder) -> CycleReply:
        return CycleReply(holder.version, holder.target, self.period_ms)

    # --- the silent -------------------------------------------------------------------------

    def _sweep(self, now_ms: int) -> list[str]:
        """Once a period: stop counting the demand of the silent, forget who left long ago."""
        if self._swept_ms is not None and 0 <= now_ms - self._swept_ms < self.period_ms:
            return []
        self._swept_ms = now_ms
        silence_ms = limits.LEASE_SILENT_PERIODS * self.period_ms
        forgotten = []
        for holder in self.holders.values():
            if holder.seen_ms is None:
                holder.seen_ms = now_ms
            age_ms = now_ms - holder.seen_ms
            if holder.counts and age_ms > silence_ms:
                self._take_out(holder)
                holder.counts = False
                self._put_in(holder)
            if holder.left and age_ms > limits.LEASE_FORGET_MS:
                forgotten.append(holder.souschef)
        for souschef in forgotten:
            self._forget(souschef)
        return forgotten

    def _forget(self, souschef: str) -> None:
        holder = self.holders.pop(souschef)
        assert holder.ledger == 0, (souschef, holder.ledger)
        self._take_out(holder)
        workflow = self.workflows[holder.workflow]
        del workflow.holders[souschef]
        self._forget_plain(holder.workflow)

    def _forget_plain(self, workflow: str) -> None:
        """Forget a workflow of which nothing needs to be known; it may be deleted."""
        entry = self.workflows[workflow]
        if not entry.holders and entry.weight == 1 and not entry.running_max:
            del self.workflows[workflow]


def _matters(held: int, target: int, fair: int) -> bool:
    """Whether a raise is to be told at once: the first slots, or at least half of what is due."""
    return target > held and (held == 0 or 2 * (target - held) >= fair - held)


def _member(holder: Holder) -> Member:
    """The holder as the division sees it; of the silent only what they may hold."""
    if holder.counts:
        return Member(holder.holding, holder.awakened, holder.fresh, holder.oldest_fresh_ms)
    return Member(holder.ledger, 0, 0, 0)
