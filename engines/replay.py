"""The deterministic core of a live instance: what happened comes in, what to do comes out.

`Execution` runs `run` on a `WorkflowLoop`, gives it recorded outcomes in their recorded order
(release one, run until all tasks are blocked, release the next), and past the end of the record
new outcomes one at a time, each recorded first. Nothing here waits, writes or reads a clock: the
caller (`Engine`) passes `now_ms`, then takes what is `dirty` (records to write), `starts` (bodies
to start once those are durable), `stops` (bodies to cancel), `consumed` (events to delete) and
`outcome`.

Outcomes arise only while the instance holds its slot, so recorded order is delivered order.
An event goes to the oldest live wait; of things that are due, the earliest comes first.

When the record's end is reached, a record that nothing asked for means that `run` took another
way; what else does, see `claiming`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import msgspec

from ..runtime.guarded import called, kind_of, log, text_of
from .agenda import Match
from .attempts import INTERRUPTION
from .child_calls import take_child_end
from .claiming import Claiming
from .claims import Claim, Deadline
from .failures import RecordedError, exception_of, record_of
from .journal import (
    AWAITS,
    CANCEL,
    CANCELLED,
    CHILD,
    DO,
    DONE,
    PENDING,
    RUNNING,
    SLEEP,
    START,
    TIMER,
    Pause,
    Record,
)
from .journal import FAILED as ENDED_BADLY
from .loop import DurableTimer
from .outcomes import followed, no_event, returned, undecodable, unfit_event
from .run_port import Outcome

_log = logging.getLogger("toque.workflow")


class Execution(Claiming):
    """See the module's description. Arguments and attributes are those of `Claiming`."""

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
        if self.holding:
            for deadline in self._deadlines_in_flight():
                if self.outcome is None and deadline.claim.record.deadline_ms <= now_ms:
                    self._out_of_time(deadline.claim)
            return
        due, inbox = self._due, self._inbox
        while self.outcome is None and (due.heap or inbox.events):
            if not self._deliver_earliest():
                return

    def made(
        self, now_ms: int, ordinal: int, attempt: int, error: list[Any] | None, result: bytes
    ) -> None:
        """The Engine has asked for a child: it is there, or was refused; `error` as a record."""
        claim = self.births.get(ordinal)
        failed = None if error is None else RecordedError(*error)
        if claim is None or claim.record.child is None:
            self.tick(now_ms)
            return
        if failed is None:  # it is never asked for again
            claim.record.child = msgspec.structs.replace(claim.record.child, params=b"")
        if not self.body_done(claim, attempt, failed, None if failed else result, now_ms):
            self.tick(now_ms)
        if claim.record.is_over:
            self.births.pop(ordinal, None)

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
            if record.shift(pause, in_flight=record.ordinal in self.in_flight):
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

    def close(self) -> None:
        """Drop `run` and its tasks, and what would keep this alive until the next collection."""
        self.loop.close()
        self._main = None
        self.handlers = {}

    # --- state for the caller ---------------------------------------------------------------

    def next_due_ms(self) -> int:
        """When something is due next; 0: nothing is timed."""
        if self.holding and self.in_flight:
            nearest = next(iter(self._deadlines_in_flight()), None)
            return 0 if nearest is None else nearest.claim.record.deadline_ms
        return self._due.next_ms()

    def _deadlines_in_flight(self) -> list[Deadline]:
        return [d for d in self._due.deadlines() if d.claim.record.ordinal in self.in_flight]

    def awaited_types(self) -> tuple[str, ...]:
        """Types of events that are waited for."""
        return self._inbox.awaited_types()

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
            claimed[record.ident] = None  # freed slice by slice, not all at once in the end
        self._shift_up_to(None)
        if not self._rebuilding and (self.outcome is None or self.outcome.error is None):
            self._reach_end(claimed)
        return True

    def _reach_end(self, claimed: dict[str, Claim | DurableTimer | None]) -> None:
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
        if record.kind in AWAITS:
            self._inbox.wait(claim)

    def _give_kept_results(self, claims: list[Claim]) -> None:
        kept = [c for c in claims if c.record.is_over and not c.record.order]
        for claim in sorted(kept, key=lambda c: (c.record.ended_ms or 0, c.record.ordinal)):
            if self.outcome is None and not claim.future.done():
                record = claim.record
                self.journal.last_order = record.order = self.journal.last_order + 1
                self.dirty[record.ordinal] = record
                self._release(claim, record)

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
        elif item.record.kind in (DO, START):
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
        record.event_at_ms = match.at_ms
        record.event_seq = match.seq
        self.consumed.append(match.seq)
        payload = self._payload_of(match.seq)
        if record.kind == CHILD:
            take_child_end(record, payload, claim.decode)
            self._end(claim, DONE if record.error is None else ENDED_BADLY)
            return
        record.result = payload
        error, _ = called(claim.decode, record) if claim.decode else (None, None)
        if error is not None:
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
        if self.ending is not None:
            self.ending(record)
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
                except BaseException as error:  # an author's type may raise anything
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
            how = f" with {kind_of(error)}: {text_of(error)}" if error else ""
            self._diverged(f"run() ended{how}", reversed(self._queue))
            return
        if self.outcome is not None:
            return
        never = self._never_begun()
        after = followed(error, self._next_params, never)
        if after is not None:
            self.outcome = after
        elif error is not None:
            self.outcome = Outcome(None, record_of(error))
            if not self.cancelled:
                what = "%s (%s) ended with an error"
                log(_log, logging.WARNING, what, self._workflow, self.whose, error=error)
        else:
            self.outcome = returned(
                main.result(), self._workflow, self._returns, never, self.declared
            )

    def _never_begun(self) -> list[str]:
        """Names of steps that were called and have not begun.

        Those that were called since the newest outcome are among them though a task awaits them:
        bodies are started once `run` is blocked, and now it never is. What is only in the record,
        and was not asked for in this replay, is for `_reach_end` to tell.
        """
        newest, claimed = self.journal.last_order, self._claimed
        return [call.name for call in self.calls.values()] + [
            record.name
            for record in self.journal.records
            if record.kind == DO
            and record.after == newest
            and not record.is_over
            and (claimed is None or record.ident in claimed)
        ]


def _is_given_up(claim: Claim | DurableTimer) -> bool:
    return claim.is_cancelled if isinstance(claim, DurableTimer) else claim.future.done()
