"""The Gatekeeper: the account's entity that leases slots to SousChefs.

A thin shell over `slots`: it loads the ledger, hands requests in, and writes the one row that a
request changed. Its answer leaves when that row is durable (the host's output gate), so the
table is always at least as cautious as any lease that somebody has heard of. All its work is
answering calls, of which there is at most one per SousChef and period; an answer with nothing new
may wait for news (`held_calls`).

Front ends call too, once a period: for rates (`rates`) and queue room (`room`). What they tell of
creates decides over how many SousChefs a workflow is spread (`spread`); the Account is told
through the outbox, in the commit that decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import msgspec

from ..runtime import limits
from ..runtime.entity import Context, DurableObject
from ..runtime.errors import EntityReset, InvalidArgument, SystemFault
from ..runtime.ids import OLD_SOUSCHEF, EntityRef, old_key
from ..runtime.tables import Table, every_row
from .handover import Frozen, PlaneBook, plane_table
from .held_calls import Answer, HeldCalls
from .messages import (
    ACCOUNT_KIND,
    GATEKEEPER_KIND,
    CycleReply,
    CycleRequest,
    GatekeeperStatistics,
    RateReply,
    RateRequest,
)
from .planes import Plane, requires
from .rates import MILLI, RateBook
from .room import RoomBook
from .slots import GatekeeperFaults, Holder, LeaseBook, Outcome
from .spread import Spread, SpreadRules

LEASES = Table(
    "gatekeeper_leases",
    (
        ("entity", "TEXT"),
        ("souschef", "TEXT"),
        ("version", "INTEGER"),
        ("target", "INTEGER"),
        ("ledger", "INTEGER"),
        ("incarnation", "INTEGER"),
        ("seq", "INTEGER"),
        ("gone", "INTEGER"),
    ),
    key_size=2,
)
LIMITS = Table(
    "gatekeeper_limits",
    (
        ("entity", "TEXT"),
        ("workflow", "TEXT"),
        ("weight", "INTEGER"),
        ("running_max", "INTEGER"),
    ),
    key_size=2,
)
RATES = Table(
    "gatekeeper_rates",
    (("entity", "TEXT"), ("workflow", "TEXT"), ("creates_per_second", "INTEGER")),
    key_size=2,
)
QUEUES = Table(
    "gatekeeper_queues",
    (("entity", "TEXT"), ("workflow", "TEXT"), ("queued_max", "INTEGER")),
    key_size=2,
)
SPREADS = Table(
    "gatekeeper_spreads",
    (("entity", "TEXT"), ("workflow", "TEXT"), ("souschefs", "INTEGER"), ("fixed", "INTEGER")),
    key_size=2,
)
GATEKEEPER_PLANES = plane_table("gatekeeper_planes")
ACCOUNT_ROW = ""
"""The row of LIMITS that holds the account's own limit."""

_RATE_WINDOW_MS = 10_000
_OLD_WORKFLOW = OLD_SOUSCHEF.split("/", 1)[0]
"""In place of a workflow's uuid: all that AccountOld's lease is for."""


@dataclass(frozen=True)
class GatekeeperEnv:
    """What the wiring gives a Gatekeeper.

    Attributes:
        running_max: the limit of an account that has set none.
        faults: deliberate faults for checkers.
        creates_per_second: of an account, and of a workflow, that has set none.
        calls_per_second: C: how many calls an account's Gatekeeper may get.
        spread: how a workflow's SousChefs follow its load.
    """

    running_max: int = limits.RUNNING_PER_ACCOUNT_DEFAULT
    faults: GatekeeperFaults = field(default_factory=GatekeeperFaults)
    creates_per_second: tuple[int, int] = (
        limits.CREATES_PER_SECOND_MAX,
        limits.CREATES_PER_SECOND_MAX,
    )
    calls_per_second: int = limits.GATEKEEPER_CALLS_PER_SECOND_MAX
    spread: SpreadRules = field(default_factory=SpreadRules)


class Gatekeeper(DurableObject):
    """Leases the slots of one account; its key is the account's id."""

    KIND = GATEKEEPER_KIND
    TABLES = (LEASES, LIMITS, RATES, QUEUES, SPREADS, GATEKEEPER_PLANES)

    def __init__(self, ctx: Context, env: GatekeeperEnv | None) -> None:
        super().__init__(ctx, env)
        self._env = env or GatekeeperEnv()
        self._planes = PlaneBook(ctx, GATEKEEPER_PLANES)
        self._calls = 0
        self._recent: deque[tuple[int, int]] = deque()
        self._book = self._load()
        self._held = HeldCalls(asyncio.get_running_loop(), self._review)
        self._rates = RateBook(*self._env.creates_per_second)
        self._room = RoomBook()
        self._spreads: dict[str, Spread] = {}
        self._fixed: set[str] = set()
        own = (ctx.ref.key,)
        for _, workflow, rate in every_row(ctx, RATES, own):
            self._rates.set_limit(workflow, rate)
        for _, workflow, queued_max in every_row(ctx, QUEUES, own):
            self._room.set_limit(workflow, queued_max)
        for _, workflow, souschefs, fixed in every_row(ctx, SPREADS, own):
            self._spreads[workflow] = Spread(self._env.spread, souschefs)
            if fixed:
                self._fixed.add(workflow)

    def _load(self) -> LeaseBook:
        book = LeaseBook(self._env.running_max, self._env.faults, self._env.calls_per_second)
        key = self.ctx.ref.key
        for _, workflow, weight, running_max in every_row(self.ctx, LIMITS, (key,)):
            if workflow == ACCOUNT_ROW:
                book.limit = running_max
            else:
                book.set_workflow(workflow, weight, running_max)
        leases = every_row(self.ctx, LEASES, (key,))
        for _, souschef, version, target, ledger, incarnation, seq, gone in leases:
            book.load(souschef, version, target, ledger, incarnation, seq, bool(gone))
        return book

    # --- handlers ---------------------------------------------------------------------------

    @requires("v2")
    def cycle(self, request: CycleRequest) -> CycleReply | Answer:
        """A SousChef's one call per period: its report for its lease.

        Raises:
            InvalidArgument: the report can't be true, or is another account's.
        """
        account, souschef = self.ctx.ref.key, request.souschef
        if not souschef.startswith(f"{account}/"):
            raise InvalidArgument(f"{souschef!r:.80} is no SousChef of {account!r}.")
        counts = (
            request.awakened, request.fresh, request.holding, request.target, request.expects,
        )  # fmt: skip
        if min(counts) < 0 or min(request.incarnation, request.seq, request.lease_version) < 0:
            raise InvalidArgument(f"a report of {souschef!r:.80} holds negative numbers.")
        now_ms = self.ctx.clock.now_ms()
        self._count_call(now_ms)
        outcome = self._book.on_request(request, now_ms)
        self._keep(outcome)
        reply = outcome.reply
        if outcome.is_stale:  # a call that came twice has one answer
            return self._held.waiting(souschef) or reply
        self._held.answer(souschef, reply)  # to a call that it has given up
        is_news = reply.lease_version != request.lease_version
        waits = request.may_wait and not (request.leaving or is_news)
        answer = self._held.hold(souschef, reply.period_ms) if waits else reply
        self._held.look_soon()
        return answer

    def _keep(self, outcome: Outcome) -> None:
        """Have the table hold what is about to be told."""
        try:
            if outcome.changed is not None:
                self._write(outcome.changed)
            for souschef in outcome.forgotten:
                self.ctx.delete(LEASES, (self.ctx.ref.key, souschef))
        except SystemFault as error:
            self._reload(error)  # the store took no row: what it does not hold is not so
            raise

    def _reload(self, error: SystemFault) -> None:
        """Forget what the table does not hold. No answer may follow from that."""
        self._book = self._load()
        self._held.refuse(error)

    def _review(self, souschefs: list[str], is_last: bool) -> None:
        """Look whether there is news for those whose answers wait."""
        now_ms = self.ctx.clock.now_ms()
        for souschef in souschefs:
            outcome = self._book.review(souschef, now_ms, is_last)
            try:
                self._keep(outcome)
            except SystemFault:
                return  # all have heard of it
            if is_last or outcome.changed is not None:
                self._held.answer(souschef, outcome.reply)

    def on_evict(self) -> None:
        """Let nobody wait for an answer."""
        self._held.close()

    @requires("v2")
    def lease_rates(self, request: RateRequest) -> RateReply:
        """A front end's one call per period: what arrived there for its rates.

        Raises:
            InvalidArgument: the report can't be true.
        """
        arrivals = request.arrivals
        counts = (*arrivals.values(), *request.admitted.values(), *request.room.values())
        if len(arrivals) > limits.WORKFLOWS_PER_ACCOUNT_MAX or min(counts, default=0) < 0:
            raise InvalidArgument(f"a report of front end {request.front_end!r:.80} can't be true.")
        now_ms = self.ctx.clock.now_ms()
        self._count_call(now_ms)
        stretched = limits.CYCLE_PERIOD_MS * self._rates.front_ends
        period_ms = max(self._book.period_ms, stretched // max(1, self._book.calls_of_front_ends))
        reply = self._rates.on_report(request, period_ms, now_ms)
        if not reply.leases:
            return reply
        account = self.ctx.ref.key
        room = {}
        for uuid in arrivals:
            queued = self._book.queued(f"{account}/{uuid}", now_ms)
            found = self._room.on_report(request, uuid, queued, period_ms, now_ms)
            if found is not None:
                room[uuid] = found
            if uuid not in self._fixed:
                self._look_at_spread(uuid, queued or 0, now_ms)
        return msgspec.structs.replace(reply, room=room)

    def _look_at_spread(self, uuid: str, queued: int, now_ms: int) -> None:
        """Have the workflow's SousChefs follow its load."""
        spread = self._spreads.get(uuid)
        if spread is None:
            if len(self._spreads) >= 2 * limits.WORKFLOWS_PER_ACCOUNT_MAX:
                self._forget_spreads()
            spread = self._spreads[uuid] = Spread(self._env.spread, self._env.spread.least)
        rate = min(self._rates.arrivals(uuid), self._rates.limit(uuid) * MILLI)
        if spread.look(rate, queued, self._book.room_for_holders, now_ms):
            account = self.ctx.ref.key
            self.ctx.put(SPREADS, (account, uuid, spread.souschefs, 0))
            self.ctx.tell(EntityRef(ACCOUNT_KIND, account), "spread", uuid, spread.souschefs)

    def _forget_spreads(self) -> None:
        """Forget of which workflows nothing special is known: most of them are deleted."""
        least = self._env.spread.least
        kept = {uuid: each for uuid, each in self._spreads.items() if each.souschefs != least}
        self._spreads = kept

    def set_spread(self, workflow_uuid: str, souschefs: int | None) -> None:
        """Leave the number of a workflow's SousChefs as it was set; None: it is automatic again."""
        key = (self.ctx.ref.key, workflow_uuid)
        self._fixed.discard(workflow_uuid)
        self._spreads.pop(workflow_uuid, None)
        if souschefs is None:
            self.ctx.delete(SPREADS, key)
        else:
            self.ctx.put(SPREADS, (*key, souschefs, 1))
            self._fixed.add(workflow_uuid)

    def set_queue(self, workflow_uuid: str, queued_max: int | None) -> None:
        """Set how many instances of a workflow may be queued; None: the default again."""
        key = (self.ctx.ref.key, workflow_uuid)
        if queued_max is None:
            self.ctx.delete(QUEUES, key)
        else:
            self.ctx.put(QUEUES, (*key, queued_max))
        self._room.set_limit(workflow_uuid, queued_max)

    def set_rate(self, workflow_uuid: str, creates_per_second: int | None) -> None:
        """Set how many creates a second a workflow may have (the account: an empty uuid).

        None: the default again.
        """
        key = (self.ctx.ref.key, workflow_uuid)
        if creates_per_second is None:
            self.ctx.delete(RATES, key)
        elif 1 <= creates_per_second <= limits.CREATES_PER_SECOND_MAX:
            self.ctx.put(RATES, (*key, creates_per_second))
        else:
            raise InvalidArgument(
                f"creates_per_second must be 1 to {limits.CREATES_PER_SECOND_MAX}, "
                f"not {creates_per_second}."
            )
        self._rates.set_limit(workflow_uuid, creates_per_second)

    def set_limit(self, running_max: int) -> None:
        """Set how many instances of the account may run; holders learn it at their next call."""
        if running_max < 0:
            raise InvalidArgument(f"running_max must be at least 0, not {running_max}.")
        if running_max != self._book.limit:
            self.ctx.put(LIMITS, (self.ctx.ref.key, ACCOUNT_ROW, 1, running_max))
            self._book.limit = running_max
            self._held.look_soon()

    def set_workflow(self, workflow_uuid: str, weight: int, running_max: int) -> None:
        """Set a workflow's weight (1: as all others) and limit (0: only the account's)."""
        if not workflow_uuid or not 1 <= weight <= limits.WORKFLOW_WEIGHT_MAX or running_max < 0:
            raise InvalidArgument(
                f"a weight is 1 to {limits.WORKFLOW_WEIGHT_MAX} and a limit at least 0, "
                f"not {weight} and {running_max}."
            )
        account = self.ctx.ref.key
        workflow = f"{account}/{workflow_uuid}"
        if weight == 1 and running_max == 0:
            self.ctx.delete(LIMITS, (account, workflow))
        else:
            self.ctx.put(LIMITS, (account, workflow, weight, running_max))
        self._book.set_workflow(workflow, weight, running_max)
        self._held.look_soon()

    def statistics(self) -> GatekeeperStatistics:
        """How it does just now."""
        book = self._book
        now_ms = self.ctx.clock.now_ms()
        recent = sum(n for second, n in self._recent if now_ms - second * 1000 <= _RATE_WINDOW_MS)
        return GatekeeperStatistics(
            running_max=book.limit,
            ledger=book.ledger,
            wanted=book.wanted,
            holders=len(book.holders),
            active=book.active,
            calls=self._calls,
            calls_per_second=recent * 1000 / _RATE_WINDOW_MS,
            slots_raised=book.raised,
            period_ms=book.period_ms,
        )

    # --- the cut-over -----------------------------------------------------------------------

    @property
    def plane(self) -> Plane:
        """Where the account is, as this entity knows; see `planes.requires`."""
        return self._planes.state.plane

    def set_plane(self, plane: str) -> None:
        """The Account tells that it was made on V1. It may be late."""
        if plane == "v1" and not self._planes.state.migration_id and not self._book.holders:
            self._planes.write(plane="v1")

    def adopt(self, migration_id: str, frozen: Frozen) -> None:
        """Take the account over: what runs on V1 is the first lease, before any other.

        Raises:
            StaleMigration: another migration has the account, or this one was given up.
        """
        if self._planes.is_adopted_by(migration_id, may_be_new=not self._book.holders):
            return
        self.set_limit(frozen.running_max)
        self.set_workflow(_OLD_WORKFLOW, frozen.workflows, 0)
        chef, held = old_key(self.ctx.ref.key), frozen.holding
        target = held if frozen.target < 0 else min(held, frozen.target)
        self._book.load(chef, frozen.lease_version, target, held, 0, 0, left=False)
        self._write(self._book.holders[chef])
        self._planes.write(plane="v2", migration_id=migration_id, from_v1=True)

    def abandon(self, migration_id: str) -> None:
        """The migration was given up: AccountOld leases its own slots again."""
        if self._planes.state.migration_id != migration_id:
            self._planes.give_up(migration_id)
            return
        account = self.ctx.ref.key
        self.ctx.delete(LEASES, (account, old_key(account)))
        self.ctx.delete(LIMITS, (account, f"{account}/{_OLD_WORKFLOW}"))
        self._planes.give_up(migration_id, plane="v1", migration_id="", from_v1=False)
        self._reload(EntityReset(f"account {account!r} is on control plane v1 again."))

    # --- inside -----------------------------------------------------------------------------

    def _write(self, holder: Holder) -> None:
        self.ctx.put(
            LEASES,
            (
                self.ctx.ref.key,
                holder.souschef,
                holder.version,
                holder.target,
                holder.ledger,
                holder.incarnation,
                holder.seq,
                int(holder.left),
            ),
        )

    def _count_call(self, now_ms: int) -> None:
        self._calls += 1
        second = now_ms // 1000
        recent = self._recent
        if recent and recent[-1][0] == second:
            recent[-1] = (second, recent[-1][1] + 1)
        else:
            recent.append((second, 1))
            while len(recent) > _RATE_WINDOW_MS // 1000 + 1:
                recent.popleft()
