"""The attempts of steps: how they begin, end, fail, wait and run out of time.

The part of `replay.Execution` that knows about bodies. It starts none: what is to start stands in
`starts`, what is to stop in `stops`, and both wait until the caller has written what is `dirty`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..runtime.limits import STEP_INTERRUPTIONS_MAX, STEP_RETRY_DELAY_DEFAULT_MS
from .agenda import Agenda
from .claims import Claim
from .failures import FAILED, INTERRUPTED, TIMED_OUT, RecordedError
from .journal import DONE, PENDING, RUNNING, START, Record
from .journal import FAILED as ENDED_BADLY
from .outcomes import cut_off, interrupted, out_of_time
from .run_port import Outcome

INTERRUPTION = interrupted("the process ended meanwhile")


class Attempts(ABC):
    """See the module's description.

    Attributes:
        outcome: how `run` ended, if it has.
        dirty: records to be written, by ordinal.
        starts, stops: attempts to start, ordinals of records whose bodies are to stop.
        in_flight: ordinals of records with something under way.
        births: children that are being made, by ordinal; their Engine sees to it.
        now_ms: the time of the event that is handled.
        interruption: the error of attempts that the end of the process has cut off.
    """

    outcome: Outcome | None
    interruption = INTERRUPTION

    def __init__(self) -> None:
        self.dirty: dict[int, Record] = {}
        self.starts: list[tuple[Claim, int]] = []
        self.stops: list[int] = []
        self.in_flight: set[int] = set()
        self.births: dict[int, Claim] = {}
        self.now_ms = 0
        self._due = Agenda()

    @abstractmethod
    def tick(self, now_ms: int) -> None:
        """Deliver what is due and what has come."""

    @abstractmethod
    def fail(self, error: RecordedError) -> None:
        """End the instance with an error that `run` can't catch."""

    @abstractmethod
    def _end(self, claim: Claim, state: int) -> None:
        """The record is over; give its outcome to `run`."""

    def body_done(
        self,
        claim: Claim,
        attempt: int,
        error: RecordedError | None,
        result: bytes | None,
        now_ms: int,
        fenced: bool = True,
        stream: str = "",
    ) -> bool:
        """An attempt has ended. False: it is not the current one any more, nothing changed."""
        record = claim.record
        if self.outcome is not None or record.is_over:
            return False
        if fenced and (record.attempt != attempt or record.state != RUNNING):
            return False
        self.now_ms = now_ms
        self.in_flight.discard(record.ordinal)
        if error is not None and error.kind == INTERRUPTED:
            self._interrupt(claim)
            self.tick(now_ms)
            return True
        record.close_attempt(now_ms, error)
        if error is None:
            record.result, record.stream = result, stream
            self._end(claim, DONE)
        else:
            record.failures += 1
            if error.kind in (FAILED, TIMED_OUT) and record.failures <= record.config.limit:
                record.state = PENDING
                self.dirty[record.ordinal] = record
                self._find_delay(claim, error)
            else:
                record.error = error
                self._end(claim, ENDED_BADLY)
        self.tick(now_ms)
        return True

    def delay_told(
        self, claim: Claim, attempt: int, told_ms: int, problem: RecordedError | None, now_ms: int
    ) -> bool:
        """A delay function has answered, or failed. False: nobody asks any more."""
        record = claim.record
        if self.outcome is not None or record.state != PENDING or record.attempt != attempt:
            return False
        self.now_ms = now_ms
        self.in_flight.discard(record.ordinal)
        record.error = problem
        if problem is None:
            record.delay_ms = told_ms
            self.dirty[record.ordinal] = record
            self._retry_after(claim, told_ms)
        else:
            self._end(claim, ENDED_BADLY)
        self.tick(now_ms)
        return True

    def _interrupt(self, claim: Claim) -> None:
        """The process ended during an attempt: counted apart from failures, repeated at once."""
        record = claim.record
        record.interruptions += 1
        record.close_attempt(self.now_ms, self.interruption)
        if record.kind == START or (  # which takes effect once, however often it is asked for
            record.config.limit and record.interruptions <= STEP_INTERRUPTIONS_MAX
        ):
            self._open_attempt(claim)
            return
        record.error = cut_off(record)
        self._end(claim, ENDED_BADLY)

    def refuse_result(self, claim: Claim, error: RecordedError, now_ms: int) -> None:
        """The current attempt's result can't be recorded: the step and the instance fail."""
        record = claim.record
        self.now_ms = now_ms
        self.in_flight.discard(record.ordinal)
        record.close_attempt(now_ms, error)
        record.error = error
        record.end(now_ms, ENDED_BADLY)
        self.dirty[record.ordinal] = record
        self.fail(error)

    def _find_delay(self, claim: Claim, error: RecordedError) -> None:
        """An attempt has failed and may be repeated: when?"""
        record = claim.record
        if record.config.delay_ms is not None:
            self._retry_after(claim, 0)
        elif claim.body is None or claim.body.delay is None:  # the code has changed
            self._retry_after(claim, STEP_RETRY_DELAY_DEFAULT_MS)
        else:
            record.error = error
            self.in_flight.add(record.ordinal)
            self.starts.append((claim, record.attempt))

    def _retry_after(self, claim: Claim, told_ms: int) -> None:
        record = claim.record
        record.due_ms = self.now_ms + record.config.delay_after_ms(record.failures, told_ms)
        if record.deadline_ms and record.due_ms >= record.deadline_ms:
            self._out_of_time(claim)  # no use in waiting
        else:
            self._due.put(record.due_ms, claim)

    def _out_of_time(self, claim: Claim) -> None:
        record = claim.record
        error = out_of_time(record)
        self._stop_body(claim, self.now_ms, error)
        record.error = error
        self._end(claim, ENDED_BADLY)

    def _stop_body(self, claim: Claim, now_ms: int, error: RecordedError) -> None:
        """Whatever of the step is under way is not wanted any more."""
        record = claim.record
        if record.state == RUNNING:
            record.close_attempt(now_ms, error)
        if record.ordinal in self.in_flight:
            self.in_flight.discard(record.ordinal)
            self.stops.append(record.ordinal)

    def _open_attempt(self, claim: Claim) -> None:
        record = claim.record
        record.open_attempt(self.now_ms)
        self.dirty[record.ordinal] = record
        self.in_flight.add(record.ordinal)
        if record.kind == START:
            self.births[record.ordinal] = claim
        else:
            self.starts.append((claim, record.attempt))
