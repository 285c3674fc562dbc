"""Rollback: what steps did is undone, the newest first, when their workflow has failed.

`Unwinding` takes the place of `replay.Execution` in a run whose instance is `rollingBack`. What it
undoes stands in the journal: steps that began with a rollback and had an attempt, whatever came
of it. How stands in `run`, which is executed once more for it: finished steps answer from their
records, all others do nothing, and every step leaves its handler. One handler runs at a time,
with retries and a timeout of its own, and is recorded like a step, so that a crash in between
repeats none that is done. The first that fails for good, or is not there any more, ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from ..runtime.guarded import called
from ..runtime.limits import STEP_INTERRUPTIONS_MAX
from .attempts import Attempts
from .claims import Claim, Deadline
from .failures import INTERRUPTED, NON_RETRYABLE, RecordedError, exception_of
from .journal import CANCELLED, DO, DONE, PENDING, RUNNING, UNDO, Journal, Record
from .journal import FAILED as ENDED_BADLY
from .outcomes import cut_off, undecodable
from .run_port import Outcome

_UNDO = "!undo:"
_CUT_OFF = RecordedError(INTERRUPTED, "StepInterrupted", "the process ended meanwhile")
_STOPPED = RecordedError(INTERRUPTED, "CancelledError", "the workflow had failed")


def is_undone(record: Record) -> bool:
    """Whether a step takes part in a rollback."""
    return record.kind == DO and record.undo is not None and record.attempt > 0


def undone_ordinals(records: Iterable[Record]) -> set[int]:
    """Ordinals of the steps whose rollback has begun, whatever came of it."""
    return {int(r.ident.removeprefix(_UNDO)) for r in records if r.kind == UNDO and r.attempt}


class Unwinding(Attempts):
    """See the module's description.

    Args:
        journal: what is recorded so far.
        handlers: claims of steps with a rollback, by their ordinals.
        why: the error that handlers get.
    """

    def __init__(self, journal: Journal, handlers: Mapping[int, Claim], why: RecordedError) -> None:
        super().__init__()
        self.journal = journal
        self.outcome: Outcome | None = None
        self.consumed: list[int] = []
        self._handlers = handlers
        self._why = why
        self._todo = deque(record for record in reversed(journal.records) if is_undone(record))

    def begin(self, now_ms: int) -> None:
        """Go on from the record."""
        self.now_ms = now_ms
        for record in self.journal.records:
            if record.kind == DO and record.state == RUNNING:
                record.close_attempt(now_ms, _STOPPED)
                record.end(now_ms, CANCELLED)
                self.dirty[record.ordinal] = record
        self._next()
        self.tick(now_ms)

    def tick(self, now_ms: int) -> None:
        """Begin the next attempt, if it is due; end what is out of time."""
        self.now_ms = now_ms
        while self.outcome is None and 0 < self._due.next_ms() <= now_ms:
            item = self._due.pop()
            if isinstance(item, Deadline):
                self._out_of_time(item.claim)
            else:
                assert isinstance(item, Claim)
                self._open_attempt(item)

    def fail(self, error: RecordedError) -> None:
        """No more is undone."""
        self.outcome = Outcome(None, error)

    def next_due_ms(self) -> int:
        """When the next attempt is due; 0: none waits."""
        return self._due.next_ms()

    def awaited_types(self) -> tuple[str, ...]:
        """Events are not waited for."""
        return ()

    def buffer_event(self, seq: int, event_type: str, at_ms: int) -> None:
        """Nobody will take it."""

    def close(self) -> None:
        """Nothing runs here."""

    # --- inside -----------------------------------------------------------------------------

    def _next(self) -> None:
        while self._todo:
            step = self._todo[0]
            record = self.journal.by_ident.get(f"{_UNDO}{step.ordinal}")
            if record is not None and record.state == DONE:
                self._todo.popleft()
                continue
            claim = self._claim(step, record)
            if claim is not None:
                self._go_on(claim)
            return
        self.outcome = Outcome(None, None)

    def _claim(self, step: Record, record: Record | None) -> Claim | None:
        handler = self._handlers.get(step.ordinal)
        undo = None if handler is None or handler.body is None else handler.body.undo
        if handler is None or handler.body is None or undo is None:
            self.fail(
                RecordedError(
                    NON_RETRYABLE,
                    "RollbackMissing",
                    f"step {step.public_name!r} began with a rollback, and run() does not come to "
                    "it any more or gives it none.",
                )
            )
            return None
        unfit, output = called(handler.body.decode, step) if step.state == DONE else (None, None)
        if unfit is not None:
            self.fail(undecodable(step, handler.body.shape.returns, "the workflow", unfit))
            return None
        if record is None:
            record = self.journal.new(UNDO, f"{_UNDO}{step.ordinal}", step.name, self.now_ms)
            record.count = step.count
            record.config = step.undo or record.config
            if record.config.deadline_ms:
                record.deadline_ms = self.now_ms + record.config.deadline_ms
            self.journal.apply(record)
        given = {"error": exception_of(self._why), "output": output}
        claim = Claim(record, None)
        claim.body = undo.with_args(tuple(given[name] for name in undo.shape.needs))
        claim.context = handler.context
        return claim

    def _go_on(self, claim: Claim) -> None:
        record = claim.record
        if record.deadline_ms:
            self._due.put(record.deadline_ms, Deadline(claim))
            if record.deadline_ms <= self.now_ms:
                return  # `tick` ends it
        if record.state == RUNNING:  # a crash cut it off
            record.interruptions += 1
            record.close_attempt(self.now_ms, _CUT_OFF)
            if not record.config.limit or record.interruptions > STEP_INTERRUPTIONS_MAX:
                record.error = cut_off(record)
                self._end(claim, ENDED_BADLY)
                return
        if record.state == PENDING and record.due_ms:
            self._due.put(record.due_ms, claim)
        else:
            self._open_attempt(claim)

    def _end(self, claim: Claim, state: int) -> None:
        record = claim.record
        record.end(self.now_ms, state)
        self.dirty[record.ordinal] = record
        if state == DONE:
            self._next()
        else:
            assert record.error is not None
            self.fail(record.error)
