"""The SousChef: queue, slots and liveness of a random part of one workflow's instances.

A thin shell over `roster`. Its key is `account/workflow uuid/number`; it lives on a control shard.

* A report is confirmed when all it led to is durable. Slots that are free are granted in the
  same commit, and the grants leave after it, one message per data shard and turn of the loop. A
  grant without an answer is sent again until there is one.
* While it has work it calls the Gatekeeper once per period: never twice in one, never twice at
  the same time; at once if it was silent, or as soon as `pacing` lets it. With nothing left it
  lingers, gives its lease back and falls silent.
* It asks Engines that ought to have woken or reported how they stand.

All of it goes on after a restart of the shard, from the rows: `resume_keys` names it while it
has any, and so does a durable alarm that it moves rarely.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import msgspec

from ..engines.ports import (
    ENGINE_SHARD_KIND,
    SOUSCHEF_KIND,
    Grant,
    StatusReport,
    souschef_ref,
)
from ..gatekeeper.messages import GATEKEEPER_KIND, CycleReply, CycleRequest
from ..runtime import limits
from ..runtime.entity import AlarmInfo, Context, DurableObject
from ..runtime.errors import EntityReset, SystemFault
from ..runtime.ids import EntityRef
from ..runtime.store import Store
from ..runtime.tables import Table
from .demand import Demand
from .env import SousChefEnv, Totals
from .lateness import Lateness, LatenessStatistics
from .roster import Roster
from .rows import HELD, ORDER, PARKED, STATE, UNDONE

_CALLS_RESERVED = 1_000
"""Numbers of calls are reserved in blocks, so that a call needs no write of its own."""

_log = logging.getLogger("toque.souschef")


class _Line:
    """Grants to one data shard: those that wait to be sent, and how many are on their way."""

    __slots__ = ("flying", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Grant] = deque()
        self.flying = 0


class SousChefStatistics(msgspec.Struct, frozen=True):
    """How a SousChef does.

    Attributes:
        awakened, fresh: how many are queued, by kind.
        oldest_queued_ms: for how long the oldest of them has been.
        holding, target: slots in use or granted; slots it may use.
        waiting, paused: instances without a slot.
        ended: instances that ended, by status.
        grants, refusals: slots given to instances; of those, not taken.
        calls, calls_failed: to the Gatekeeper.
        pokes: instances asked how they stand.
        lateness: of instances that woke by their timers.
    """

    awakened: int
    fresh: int
    oldest_queued_ms: int
    holding: int
    target: int
    waiting: int
    paused: int
    ended: dict[str, int]
    grants: int
    refusals: int
    calls: int
    calls_failed: int
    pokes: int
    lateness: LatenessStatistics


class QueuePlace(msgspec.Struct, frozen=True):
    """Where an instance stands with its SousChef.

    Attributes:
        souschef: the SousChef's key.
        state: `queued`, `granted` (a slot is its own or on its way), `elsewhere` (it does not
            queue here, or its report is on its way).
        lane: `awakened` or `new`.
        position: 1: it is the next of its lane; None: unknown, or more than QUEUE_POSITION_MAX.
        queued: how many queue here in all.
        holding, target: slots in use or granted here; slots that may be used here.
    """

    souschef: str
    state: str
    lane: str
    position: int | None
    queued: int
    holding: int
    target: int


class SousChef(DurableObject):
    """See the module."""

    KIND = SOUSCHEF_KIND
    TABLES: ClassVar[tuple[Table, ...]] = (STATE, HELD, PARKED, ORDER)

    def __init__(self, ctx: Context, env: SousChefEnv) -> None:
        super().__init__(ctx, env)
        self._env = env
        self._key = ctx.ref.key
        self._gatekeeper = EntityRef(GATEKEEPER_KIND, self._key.split("/", 1)[0])
        self._loop = asyncio.get_running_loop()
        self._roster = Roster(ctx, self._key, ctx.clock.now_ms())
        self._roster.lateness = Lateness(env.totals.late_ms)
        self._demand = Demand(self._loop.time())
        self._closed = False
        self._active = False
        self._flushing = False
        self._alarm_ms = ctx.alarm_due_ms()
        self._calling = self._in_line = False
        self._call_seq = self._calls_end = self._roster.calls_reserved
        self._period_s = limits.CYCLE_PERIOD_MS / 1000
        self._next_call_s = self._loop.time()
        self._idle_since_s: float | None = None
        self._calls = self._calls_failed = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._lines: dict[str, _Line] = {}
        if self._roster.live or self._roster.leased:
            # It may have called just before it was reset or its shard restarted: a whole period
            # passes first, and a random part of another so that not all call at once.
            self._next_call_s += self._period_s * (1 + ctx.entropy.random())
            self._loop.call_soon(self._run, self._resume)

    # --- handlers ---------------------------------------------------------------------------

    def report(self, reports: list[StatusReport]) -> bool:
        """Engines say how they stand; repeating it is harmless.

        Gives whether nobody waits for a slot here, so that ends may come together.

        Raises:
            EntityReset: an earlier event failed and this activation ends; say it again.
        """
        with self._event():
            self._roster.on_reports(reports, self.ctx.clock.now_ms())
            self._arm_alarm()  # with the rows: whatever fails next, it will be active again
        self._after_event()
        return not self._roster.queued

    def statistics(self) -> SousChefStatistics:
        """How it does just now."""
        roster = self._roster
        firsts = [entry for entry in (roster.awakened.first(), roster.fresh.first()) if entry]
        oldest_ms = min((entry.at_ms for entry in firsts), default=None)
        now_ms = self.ctx.clock.now_ms()
        return SousChefStatistics(
            awakened=roster.awakened.count,
            fresh=roster.fresh.count,
            oldest_queued_ms=0 if oldest_ms is None else max(0, now_ms - oldest_ms),
            holding=roster.holding,
            target=roster.target,
            waiting=roster.waiting,
            paused=roster.paused,
            ended=dict(roster.ended),
            grants=roster.grants,
            refusals=roster.refusals,
            calls=self._calls,
            calls_failed=self._calls_failed,
            pokes=roster.pokes,
            lateness=roster.lateness.statistics(),
        )

    def count_into(self, totals: Totals) -> None:
        """Add what this activation has done."""
        totals.grants += self._roster.grants
        totals.refusals += self._roster.refusals
        totals.pokes += self._roster.pokes
        totals.calls += self._calls
        totals.calls_failed += self._calls_failed

    def place_of(self, key: str) -> QueuePlace:
        """Where an instance stands."""
        roster = self._roster
        state, lane, position = roster.place_of(key)
        return QueuePlace(
            self._key, state, lane, position, roster.queued, roster.holding, roster.target
        )

    # --- life -------------------------------------------------------------------------------

    @classmethod
    def resume_keys(cls, store: Store) -> Iterable[str]:
        """The SousChefs of this shard that have instances, or a lease to give back."""
        keys = (row[0] for row in store.query_now(UNDONE))
        return [key for key in keys if souschef_ref(key).kind == cls.KIND]

    def on_resume(self) -> None:
        """Nothing to do: each activation takes up what the rows say (see the constructor)."""

    def _resume(self) -> None:
        self._roster.repeat_grants()
        self._after_event()

    def alarm(self, info: AlarmInfo) -> None:
        """Look for whom to ask. That this runs at all makes sure that the SousChef is active."""
        with self._event():
            self._alarm_ms = None
            self._look()
            self._arm_alarm()

    def on_evict(self) -> None:
        """Stop all timers."""
        if not self._closed:
            self.count_into(self._env.totals)
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()

    @contextlib.contextmanager
    def _event(self) -> Iterator[None]:
        """Handle an event that is a call. If it fails, the rows are right and memory is not.

        Raises:
            EntityReset: an earlier one failed and this activation ends; say it again.
        """
        if self._closed:
            raise EntityReset(f"{self.ctx.ref} is being reset.")
        try:
            yield
        except Exception:
            self._stop()
            raise

    def _run(self, work: Callable[..., None], *args: Any) -> None:
        """Handle an event that is no call. If it fails, the rows are right and memory is not."""
        if self._closed:
            return
        try:
            work(*args)
        except Exception as error:
            if not isinstance(error, SystemFault):
                _log.exception("%s is reset: an event failed", self.ctx.ref)
            self._stop()

    def _then(self, future: asyncio.Future[Any], work: Callable[..., None], *args: Any) -> None:
        """Run `work(*args, result)` when a call is answered; the result is None if it failed."""

        def done(answered: asyncio.Future[Any]) -> None:
            failed = answered.cancelled() or answered.exception() is not None
            self._run(work, *args, None if failed else answered.result())

        future.add_done_callback(done)

    def _stop(self) -> None:
        """Do no more; the next event finds a new activation, which reads the rows."""
        self.on_evict()
        self.ctx.may_evict()
        self.ctx.evict()

    # --- after each event -------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._roster.holding > 0 or self._roster.queued > 0

    def _after_event(self) -> None:
        """Have this turn's grants sent at its end, and the timers stand as they must."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._run, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._note_demand()
        for shard, grants in self._roster.take_grants().items():
            line = self._lines.get(shard)
            if line is None:
                line = self._lines[shard] = _Line()
            line.waiting.extend(grants)
            self._send_grants(shard, line)
        if self._busy:
            self._idle_since_s = None
        active = self._busy or self._roster.leased
        if active:
            self._arm_call()
            self._arm("look", limits.POKE_EVERY_MS / 1000, self._look)
        if active != self._active:
            self._active = active
            if active:
                self.ctx.keep_active()
            else:
                self._arm("rest", self._next_call_s - self._loop.time(), self._rest)
        self._arm_alarm()

    def _note_demand(self) -> None:
        roster = self._roster
        self._demand.note(roster.holding, roster.arrived, roster.released, self._loop.time())

    def _rest(self) -> None:
        """The period of the last call is over: another activation may call as it likes."""
        if not self._active:
            self.ctx.may_evict()

    def _arm(self, name: str, delay_s: float, work: Callable[[], None]) -> None:
        """Run `work` once after a delay, unless it is due already."""
        if name in self._timers:
            return

        def go() -> None:
            del self._timers[name]
            self._run(work)

        self._timers[name] = self._loop.call_later(delay_s, go)

    def _arm_alarm(self) -> None:
        """Keep the durable alarm no later than it must be; moving it back is left to its firing."""
        due_ms = self._alarm_due_ms()
        if due_ms is None:
            return
        if self._alarm_ms is None or due_ms + limits.POKE_EVERY_MS < self._alarm_ms:
            self._alarm_ms = due_ms
            self.ctx.set_alarm(due_ms)

    def _alarm_due_ms(self) -> int | None:
        """When it must look at the latest."""
        roster = self._roster
        due_ms: int | None = None
        if roster.next_wake_ms is not None:
            due_ms = roster.next_wake_ms + limits.POKE_AFTER_MS
        if self._busy or roster.leased:
            guard_ms = self.ctx.clock.now_ms() + limits.SOUSCHEF_ALARM_MS
            due_ms = guard_ms if due_ms is None else min(due_ms, guard_ms)
        return due_ms

    # --- grants -----------------------------------------------------------------------------

    def _send_grants(self, shard: str, line: _Line) -> None:
        """As many as may be on their way: a shard that gets thousands at once answers too late."""
        while line.waiting and line.flying < limits.GRANTS_IN_FLIGHT_MAX:
            most = min(len(line.waiting), limits.GRANTS_PER_CALL_MAX)
            grants = [line.waiting.popleft() for _ in range(most)]
            line.flying += most
            future = self.ctx.call(
                EntityRef(ENGINE_SHARD_KIND, shard),
                "grant_many",
                self._key,
                self._env.epoch(),
                grants,
                timeout_ms=limits.CONTROL_CALL_TIMEOUT_MS,
            )
            self._then(future, self._on_line_answered, shard, line, grants)

    def _on_line_answered(
        self, shard: str, line: _Line, grants: list[Grant], accepted: list[bool] | None
    ) -> None:
        line.flying -= len(grants)
        if line.waiting:
            self._send_grants(shard, line)
        elif not line.flying:
            self._lines.pop(shard, None)
        self._on_grants_answered(grants, accepted)

    def _on_grants_answered(self, grants: list[Grant], accepted: list[bool] | None) -> None:
        if accepted is None or len(accepted) != len(grants):
            self._roster.on_grant_failed(grants)
            self._arm("grants", limits.REPORT_RETRY_MS / 1000, self._repeat_grants)
            return
        self._roster.on_grant_answer(grants, accepted, self.ctx.clock.now_ms())
        self._after_event()

    def _repeat_grants(self) -> None:
        if self._roster.repeat_grants():
            self._after_event()

    # --- the cycle --------------------------------------------------------------------------

    def _arm_call(self) -> None:
        if not self._calling and not self._in_line:
            delay_s = max(0.0, self._next_call_s - self._loop.time())
            self._arm("call", delay_s, self._line_up)

    def _line_up(self) -> None:
        """The call is due: it is made when it is this SousChef's turn."""
        if self._env.pacer is None:
            self._call_gatekeeper()
            return
        self._in_line = True
        account = self._gatekeeper.key
        self._env.pacer.when_free(account, lambda: self._run(self._call_gatekeeper))

    def _call_gatekeeper(self) -> None:
        """The one call of this period: the report for the lease."""
        self._in_line = False
        roster = self._roster
        now_s = self._loop.time()
        if not self._busy and self._idle_since_s is None:
            self._idle_since_s = now_s
        linger_s = max(self._env.linger_ms / 1000, 2 * self._period_s)
        idle_since_s = None if self._busy else self._idle_since_s
        leaving = idle_since_s is not None and now_s - idle_since_s >= linger_s
        if leaving:
            roster.give_back()
        else:
            roster.set_leased(True)
        if self._call_seq >= self._calls_end:
            self._call_seq = roster.reserve_calls(_CALLS_RESERVED) - 1
            self._calls_end = self._call_seq + _CALLS_RESERVED
        self._call_seq += 1
        request = self._request(leaving)
        self._calling = True
        self._calls += 1
        self.ctx.when_durable(self._on_call_sent)
        future = self.ctx.call(
            self._gatekeeper, "cycle", request, timeout_ms=limits.CONTROL_CALL_TIMEOUT_MS
        )
        self._then(future, self._on_lease, request)

    def _request(self, leaving: bool) -> CycleRequest:
        roster = self._roster
        awakened, fresh = roster.awakened.first(), roster.fresh.first()
        self._note_demand()
        wanted = self._demand.ask(roster.queued, self._period_s, self._loop.time())
        return CycleRequest(
            souschef=self._key,
            incarnation=self._env.epoch(),
            seq=self._call_seq,
            awakened=roster.awakened.count,
            fresh=roster.fresh.count,
            oldest_awakened_ms=awakened.at_ms if awakened else 0,
            oldest_fresh_ms=fresh.at_ms if fresh else 0,
            holding=roster.holding,
            lease_version=roster.lease_version,
            target=roster.target,
            leaving=leaving,
            needs=0 if leaving else wanted.needs,
            expects=0 if leaving else wanted.expects,
            may_wait=not leaving,
        )

    def _on_call_sent(self) -> None:
        """The call leaves only now that its commit is durable: the period counts from here."""
        stretch = 1 + limits.CYCLE_JITTER_PERCENT / 100 * self.ctx.entropy.random()
        self._next_call_s = self._loop.time() + self._period_s * stretch

    def _on_lease(self, request: CycleRequest, answer: Any) -> None:
        self._calling = False
        if answer is None:
            self._calls_failed += 1
            self._after_event()
            return
        reply = msgspec.convert(answer, CycleReply)
        self._next_call_s += reply.period_ms / 1000 - self._period_s
        self._period_s = reply.period_ms / 1000
        self._roster.on_lease(reply.lease_version, reply.target, self.ctx.clock.now_ms())
        if request.leaving and reply.lease_version == request.lease_version:
            # Taken back: no newer lease was on its way. Otherwise the next call says it again.
            self._roster.set_leased(False)
        self._after_event()

    # --- liveness ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask those who ought to have woken or reported how they stand."""
        for shard, asked in self._roster.due_pokes(self.ctx.clock.now_ms()).items():
            future = self.ctx.call(
                EntityRef(ENGINE_SHARD_KIND, shard),
                "poke_many",
                self._key,
                self._env.epoch(),
                [key for key, _ in asked],
                timeout_ms=limits.CONTROL_CALL_TIMEOUT_MS,
            )
            self._then(future, self._on_poked, asked)
        self._after_event()

    def _on_poked(self, asked: list[tuple[str, str]], missing: list[str] | None) -> None:
        if missing:
            gone = [(key, run_id) for key, run_id in asked if key in missing]
            self._roster.on_missing(gone, self.ctx.clock.now_ms())
            self._after_event()
