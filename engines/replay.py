"""The deterministic core of a live instance: what happened comes in, what to do comes out.

`Execution` runs `run` on a `WorkflowLoop`, gives it recorded outcomes in their recorded order
(release one, run until all tasks are blocked, release the next), and past the end of the record
new outcomes one at a time, each recorded first. Nothing here waits, writes or reads a clock: the
caller (`Engine`) passes `now_ms`, then takes what is `dirty` (records to write), `starts` (bodies
to start once those are durable), `stops` (bodies to cancel), `consumed` (events to delete) and
`outcome`.

Outcomes arise only while the instance holds its slot, so recorded order is delivered order.
An event goes to the oldest live wait; of things that are due, the earliest comes first.

Why a new step may not appear while recorded outcomes are left: a step that begins is written in
the same commit as the outcome that led to it. So if a later outcome is on disk, the step is too,
and one that is not there means that `run` took another way: `NonDeterminism`, without re-running
anything. Likewise a record that nothing asked for when the record's end is reached.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn

from ..runtime.blobs import BlobStore
from ..runtime.limits import (
    RECORDS_PER_INSTANCE_MAX,
    STEPS_PER_INSTANCE_MAX,
    WAITERS_PER_INSTANCE_MAX,
)
from .agenda import Inbox, Match
from .attempts import INTERRUPTION, Attempts
from .calls import ContinueAsNew, StepCall, refuse_misuse
from .claims import Claim, Deadline
from .claims import shown as _shown
from .failures import (
    FAILED,
    LimitExceeded,
    RecordedError,
    StepMisuse,
    exception_of,
    record_of,
    text_of,
)
from .journal import (
    CANCEL,
    CANCELLED,
    DO,
    DONE,
    PENDING,
    RUNNING,
    SLEEP,
    TIMER,
    WAIT,
    Journal,
    Pause,
    Record,
)
from .journal import FAILED as ENDED_BADLY
from .logs import Whose
from .loop import DurableTimer, WorkflowLoop, WorkflowTask
from .outcomes import (
    diverged,
    followed,
    no_event,
    returned,
    undecodable,
    unfit_event,
)
from .run_port import Outcome
from .step import BodyCall, StepFunction

_log = logging.getLogger("toque.workflow")

_ABANDONED = RecordedError(FAILED, "CancelledError", "the workflow stopped waiting for it")


class Execution(Attempts):
    """See the module's description.

    Args:
        journal: what is recorded so far.
        hash_base: see `WorkflowLoop`.
        workflow: named in messages.
        payload_of: gives a buffered event's payload by its number.
        pauses: those that are over.
        returns: what `run`'s result must fit.
        forked: the instance was restarted from a step: results of steps that began before it and
            ended after are kept, and what `run` gave up after it is taken up again.
        rebuilding: only what is recorded is given to `run`, and nothing new begins: what is
            wanted are the `handlers`.
        cancel: the instance is to be cancelled, or has been.

    Attributes:
        holding: a pause is wanted: bodies in flight may end, nothing else happens or begins.
    """

    def __init__(
        self,
        journal: Journal,
        hash_base: int,
        workflow: str,
        payload_of: Callable[[int], bytes],
        pauses: Iterable[Pause] = (),
        returns: Any = Any,
        forked: bool = False,
        rebuilding: bool = False,
        cancel: bool = False,
    ) -> None:
        super().__init__()
        self.journal = journal
        self.loop = WorkflowLoop(hash_base, self._timer_started)  # type: ignore[abstract]
        self.outcome: Outcome | None = None
        self.consumed: list[int] = []
        self.holding = False
        self._pauses = list(pauses)
        self.calls: dict[int, StepCall[Any]] = {}
        self.declared: list[StepFunction[Any]] = []
        self.blobs: BlobStore | None = None
        self._forked = forked
        self._rebuilding = rebuilding
        self._wants_cancel = cancel
        self.cancelled = False
        self._others_told = False
        self.handlers: dict[int, Claim] = {}
        self._workflow = workflow
        self._returns = returns
        self._payload_of = payload_of
        self._steps = sum(record.kind in (DO, WAIT) for record in journal.records)
        self._inbox = Inbox()
        self._queue = journal.delivered()[::-1]  # the next is the last
        self._claimed: dict[str, Claim | DurableTimer] | None = {} if journal.records else None
        self.loop.is_replaying = bool(journal.records)
        self._cut_off: list[Claim] = []
        self._main: WorkflowTask | None = None
        self.whose = Whose()

    # --- events in --------------------------------------------------------------------------

    def begin(
        self, coro: Coroutine[Any, Any, Any], started_ms: int, now_ms: int, most: int = -1
    ) -> bool:
        """Run `run` from its start: through the record if there is one, then on.

        False: `most` outcomes were replayed and more are left; `replay` goes on. Until it has
        given True nothing else may be asked of this object than `buffer_event` and `close`.
        """
        self.loop.now_ms = started_ms
        self.now_ms = now_ms
        self._main = self.loop.start_main(coro)
        self._main.add_done_callback(self._main_done)
        self._run()
        return self.replay(now_ms, most)

    def replay(self, now_ms: int, most: int = -1) -> bool:
        """Replay at most so many outcomes more; True: all is replayed, and `run` goes on."""
        self.now_ms = now_ms
        if not self._replay(most):
            return False
        if self._wants_cancel:
            self.cancel(now_ms)
        elif not self._rebuilding:
            self.tick(now_ms)
        return True

    def tick(self, now_ms: int) -> None:
        """Deliver what is due and what has come."""
        self.now_ms = now_ms
        while self.outcome is None and not self.holding and (self._due or self._inbox):
            if not self._deliver_earliest():
                return

    def cancel(self, now_ms: int) -> None:
        """Cancel `run`, once; see `shield`."""
        self.now_ms = now_ms
        if not self.cancelled and self.outcome is None and not self._rebuilding:
            record = self.journal.new(CANCEL, "!cancel", "cancel", now_ms)
            self._add(record)
            record.end(now_ms, DONE)
            self.journal.last_order = record.order = self.journal.last_order + 1
            self._cancel_run(record)
        self.tick(now_ms)

    def _cancel_run(self, record: Record) -> None:
        self.loop.now_ms = record.ended_ms or self.now_ms
        self.cancelled = True
        assert self._main is not None
        self.loop.cancel_tasks([self._main])
        self._run()

    def pause(self, now_ms: int) -> None:
        """Hold still from here on."""
        self.now_ms = now_ms
        self.holding = True

    def resume(self, now_ms: int, from_ms: int) -> None:
        """A pause that was asked for then is taken back: all timers move."""
        pause = Pause(self.journal.last_order, from_ms, max(0, now_ms - from_ms))
        self.holding = False
        for record in self.journal.records:
            if record.shift(pause):
                self.dirty[record.ordinal] = record
        self._shift_timers(pause)
        self.tick(now_ms)

    def _shift_up_to(self, order: int | None) -> None:
        """In a replay: the pauses before that outcome; None: all that are left."""
        while self._pauses and (order is None or self._pauses[0].order < order):
            self._shift_timers(self._pauses.pop(0))

    def _shift_timers(self, pause: Pause) -> None:
        next_order = self._queue[-1].order if self._queue else 0
        by_ident = self.journal.by_ident
        ahead = [
            timer
            for ident, timer in (self._claimed or {}).items()
            if ident in by_ident and next_order and by_ident[ident].order >= next_order
        ]
        self._due.shift(pause, ahead)  # of those that replay has still to fire, too

    def buffer_event(self, seq: int, event_type: str, at_ms: int) -> None:
        """An event has come; `tick` delivers it."""
        self._inbox.put(seq, event_type, at_ms)

    def fail(self, error: RecordedError) -> None:
        """End the instance with an error that `run` can't catch."""
        if self.outcome is None or self.outcome.error is None:
            self.outcome = Outcome(None, error)
        self.loop.stopping = True

    def close(self) -> None:
        """Drop `run` and its tasks."""
        self.loop.close()

    # --- state for the caller ---------------------------------------------------------------

    def next_due_ms(self) -> int:
        """When something is due next; 0: nothing is timed."""
        return self._due.next_ms()

    def awaited_types(self) -> tuple[str, ...]:
        """Types of events that are waited for."""
        return self._inbox.awaited_types()

    # --- what `step` calls, inside `run` ----------------------------------------------------

    def claim_do(self, name: str, body: BodyCall) -> Claim:
        """A body to run, or its recorded outcome to give."""
        claim, is_new = self._claim(DO, name)
        body.blobs = self.blobs
        claim.decode = body.decode
        claim.body = body
        claim.context = contextvars.copy_context()
        record = claim.record
        if body.undo is not None:
            self.handlers[record.ordinal] = claim
            if is_new:
                record.undo = body.undo.config
        if is_new:
            record.config = body.config
            if body.config.deadline_ms:
                record.deadline_ms = self.loop.now_ms + body.config.deadline_ms
            if self.holding:
                record.due_ms = self.loop.now_ms
                self._due.put(record.due_ms, claim)
            else:
                self._open_attempt(claim)
        elif record.state == RUNNING:
            self._cut_off.append(claim)
        elif record.state == PENDING:
            if record.due_ms:
                self._due.put(record.due_ms, claim)
            else:
                self._cut_off.append(claim)
        if record.deadline_ms and not record.is_over:
            self._due.put(record.deadline_ms, Deadline(claim))
        return claim

    def claim_sleep(self, name: str, for_ms: int | None, until_ms: int | None) -> Claim:
        """A sleep to sit out. Its end is fixed when it begins."""
        claim, is_new = self._claim(SLEEP, name)
        record = claim.record
        if is_new:
            now_ms = self.loop.now_ms
            record.due_ms = until_ms if until_ms is not None else now_ms + (for_ms or 0)
        if record.state == PENDING:
            self._due.put(record.due_ms, claim)
        return claim

    def claim_wait(
        self, name: str, event_type: str, timeout_ms: int, decode: Callable[[Record], Any]
    ) -> Claim:
        """An event to wait for. `decode` raises if its payload does not fit."""
        claim, is_new = self._claim(WAIT, name)
        claim.decode = decode
        record = claim.record
        if is_new:
            record.event_type = event_type
            record.due_ms = self.loop.now_ms + timeout_ms
        if record.state == PENDING:
            self._due.put(record.due_ms, claim)
            self._inbox.wait(claim)
            if self._inbox.waiting > WAITERS_PER_INSTANCE_MAX:
                self._over_limit(f"{WAITERS_PER_INSTANCE_MAX} waits for events at a time")
        return claim

    def continue_as_new(self, params: bytes) -> NoReturn:
        """End this run and let another follow it."""
        refuse_misuse("continue_as_new", self.loop, self.outcome is not None)
        if asyncio.current_task(self.loop) is not self._main:
            raise StepMisuse(
                "step.continue_as_new was called by a task that run() had started. Call it in "
                "run() itself, after the tasks that still matter."
            )
        raise ContinueAsNew(params)

    def abandon(self, claim: Claim) -> None:
        """`run` was cancelled where it awaited the claim, and gives it up."""
        record = claim.record
        if record.is_over or self.outcome is not None or self.loop.is_closed():
            return
        self._stop_body(claim, self.loop.now_ms, _ABANDONED)
        record.end(self.loop.now_ms, CANCELLED)
        self.dirty[record.ordinal] = record
        if record.kind == WAIT:
            self._inbox.give_up(claim)

    def _claim(self, kind: str, name: str) -> tuple[Claim, bool]:
        loop = self.loop
        refuse_misuse(name, loop, self.outcome is not None)
        task = asyncio.current_task(loop)
        assert isinstance(task, WorkflowTask)
        if self.cancelled and not task.shields:
            raise asyncio.CancelledError(f"the instance is cancelled; {name!r} is not done")
        lineage = task.lineage
        use = f"{kind}!{name}"
        ident = f"{lineage.path}!{use}:{lineage.nth(use)}"
        record = self.journal.by_ident.get(ident)
        is_new = record is None
        if record is None:
            record = self.journal.new(kind, ident, name, loop.now_ms)
            if self._queue:
                self._diverged(f"run() came to the new {_shown(record)}", reversed(self._queue))
            if self._queue or self._rebuilding or self._is_over_limit(record):
                record.end(loop.now_ms, CANCELLED)  # in memory only: it is never done
                return Claim(record, loop.create_future()), False
            self._add(record)
        claim = Claim(record, loop.create_future())
        if self._claimed is not None:
            self._claimed[ident] = claim
        return claim, is_new

    def _add(self, record: Record) -> None:
        self.journal.apply(record)
        self.dirty[record.ordinal] = record
        self._steps += record.kind in (DO, WAIT)

    def _is_over_limit(self, record: Record) -> bool:
        """Whether a new record is one too many; the instance ends then."""
        if record.kind in (DO, WAIT) and self._steps >= STEPS_PER_INSTANCE_MAX:
            self._over_limit(f"{STEPS_PER_INSTANCE_MAX} steps")
            return True
        if record.ordinal > RECORDS_PER_INSTANCE_MAX:
            self._over_limit(f"{RECORDS_PER_INSTANCE_MAX} steps, sleeps, waits and timers in all")
            return True
        return False

    def _over_limit(self, what: str) -> None:
        self.fail(record_of(LimitExceeded(f"an instance of {self._workflow} may make {what}.")))

    # --- replay -----------------------------------------------------------------------------

    def _replay(self, most: int) -> bool:
        claimed = self._claimed
        if claimed is None:
            self._shift_up_to(None)
            return True
        while self._queue and self.outcome is None:
            if not most:
                return False
            most -= 1
            self._shift_up_to(self._queue[-1].order)
            record = self._queue.pop()
            if record.kind == CANCEL:
                self._cancel_run(record)
                continue
            claim = claimed.get(record.ident)
            if claim is None or _is_given_up(claim):
                self._diverged("run() waits", [record])
                return True
            self._release(claim, record)
        self._shift_up_to(None)
        if not self._rebuilding and (self.outcome is None or self.outcome.error is None):
            self._reach_end(claimed)
        return True

    def _reach_end(self, claimed: dict[str, Claim | DurableTimer]) -> None:
        """The record is used up: whatever is in it must have been asked for."""
        for record in self.journal.records:
            if record.ident not in claimed and record.kind != CANCEL:
                self._diverged("run() took another way", [record])
                return
        for claim in claimed.values():
            if (
                isinstance(claim, Claim)
                and claim.record.state == CANCELLED
                and not claim.future.done()
            ):
                if not self._forked:
                    self._diverged("run() still waits where it had given up", [claim.record])
                    return
                self._take_up_again(claim)
        self._claimed = None
        self.loop.is_replaying = False
        for claim in self._cut_off:
            if self.outcome is not None:
                break
            record = claim.record
            if record.state == RUNNING:
                self._interrupt(claim)
            elif record.state == PENDING and not record.due_ms:
                self._find_delay(claim, record.error or INTERRUPTION)
        self._cut_off.clear()
        if self._forked:
            self._give_kept_results([c for c in claimed.values() if isinstance(c, Claim)])

    def _take_up_again(self, claim: Claim) -> None:
        record = claim.record
        record.state, record.ended_ms = PENDING, None
        record.due_ms = record.due_ms or self.now_ms
        self.dirty[record.ordinal] = record
        self._due.put(record.due_ms, claim)
        if record.kind == WAIT:
            self._inbox.wait(claim)

    def _give_kept_results(self, claims: list[Claim]) -> None:
        kept = [c for c in claims if c.record.is_over and not c.record.order]
        for claim in sorted(kept, key=lambda c: (c.record.ended_ms or 0, c.record.ordinal)):
            if self.outcome is None and not claim.future.done():
                record = claim.record
                self.journal.last_order = record.order = self.journal.last_order + 1
                self.dirty[record.ordinal] = record
                self._release(claim, record)

    def _diverged(self, found: str, recorded: Iterable[Record]) -> None:
        """Park the instance. Nothing of this turn is written or started."""
        asked = [
            _shown(claim.record)
            for claim in (self._claimed or {}).values()
            if isinstance(claim, Claim) and not claim.future.done()
        ]
        self.dirty.clear()
        self.starts.clear()
        next_up = next((_shown(record) for record in recorded), "its end")
        self.fail(diverged(self._workflow, found, asked, next_up))

    # --- delivery ---------------------------------------------------------------------------

    def _deliver_earliest(self) -> bool:
        due_ms = self.next_due_ms()
        match = self._inbox.earliest() if self._inbox else None
        if match is not None and (not due_ms or match.ready_ms <= due_ms or due_ms > self.now_ms):
            self._take_event(match)
            return True
        if not due_ms or due_ms > self.now_ms:
            return False
        item = self._due.pop()
        if isinstance(item, DurableTimer):
            self._fire(item)
        elif isinstance(item, Deadline):
            self._out_of_time(item.claim)
        elif item.record.kind == DO:
            self._open_attempt(item)
        elif item.record.kind == SLEEP:
            self._end(item, DONE)
        else:
            record = item.record
            self._inbox.give_up(item)
            record.error = no_event(record)
            self._end(item, ENDED_BADLY)
        return True

    def _take_event(self, match: Match) -> None:
        claim = match.claim
        record = claim.record
        self._inbox.take(match)
        record.result = self._payload_of(match.seq)
        record.event_at_ms = match.at_ms
        record.event_seq = match.seq
        self.consumed.append(match.seq)
        try:
            if claim.decode is not None:
                claim.decode(record)
        except Exception as error:
            record.error = unfit_event(record, self._workflow, error)
        self._end(claim, DONE if record.error is None else ENDED_BADLY)

    def _fire(self, timer: DurableTimer) -> None:
        record = self.journal.new(TIMER, timer.ident, "timer", self.now_ms)
        if self._is_over_limit(record):
            return
        self._add(record)
        record.due_ms = timer.due_ms
        record.end(self.now_ms, DONE)
        self.journal.last_order = record.order = self.journal.last_order + 1
        self._release(timer, record)

    def _end(self, claim: Claim, state: int) -> None:
        record = claim.record
        record.end(self.now_ms, state)
        self.journal.last_order = record.order = self.journal.last_order + 1
        self.dirty[record.ordinal] = record
        self._release(claim, record)

    def _release(self, claim: Claim | DurableTimer, record: Record) -> None:
        """Give one outcome to `run`, and let it run until it is blocked."""
        self.loop.now_ms = record.ended_ms or self.now_ms
        if isinstance(claim, DurableTimer):
            claim.fire()
        else:
            if record.error is not None:
                claim.future.set_exception(exception_of(record.error))
            else:
                try:
                    value = claim.decode(record) if claim.decode else None
                except Exception as error:
                    expected = claim.body.shape.returns if claim.body else Any
                    self.fail(undecodable(record, expected, self._workflow, error))
                    return
                claim.future.set_result(value)
        self._run()

    def _run(self) -> None:
        self.loop.run_until_blocked()
        failure = self.loop.failure
        if failure is not None and self.outcome is None:
            self.outcome = Outcome(None, record_of(failure))

    def _main_done(self, main: asyncio.Task[Any]) -> None:
        others = self.loop.open_tasks() if self.cancelled and self.outcome is None else ()
        if others:  # as `asyncio.run` does: cancelled, and waited for
            if not self._others_told:
                self._others_told = True
                self.loop.cancel_tasks(others)
            others[0].add_done_callback(lambda _: self._main_done(main))
            return
        self.loop.stopping = True
        error: BaseException | None
        if main.cancelled():
            error = asyncio.CancelledError("run() was cancelled from within")
        else:
            error = main.exception()
        if self._queue:
            how = f" with {type(error).__name__}: {text_of(error)}" if error else ""
            self._diverged(f"run() ended{how}", reversed(self._queue))
        elif self.outcome is not None:
            return
        elif error is not None:
            after = followed(error, self.calls.values())
            self.outcome = after or Outcome(None, record_of(error))
            if after is None and not self.cancelled:
                _log.info("%s (%s) ended with an error", self._workflow, self.whose, exc_info=error)
        else:
            self.outcome = returned(
                main.result(), self._workflow, self._returns, self.calls.values(), self.declared
            )

    # --- small parts ------------------------------------------------------------------------

    def _timer_started(self, timer: DurableTimer) -> None:
        if timer.due_ms <= self.loop.now_ms:
            self.loop.ready.append(timer)  # due at once at each replay too: no record needed
            return
        if self._claimed is not None:
            self._claimed[timer.ident] = timer
            if timer.ident in self.journal.by_ident:
                return
        self._due.put(timer.due_ms, timer)


def _is_given_up(claim: Claim | DurableTimer) -> bool:
    return claim.is_cancelled if isinstance(claim, DurableTimer) else claim.future.done()
