"""The bodies of one execution that are in flight: started, timed, stopped.

Belongs to one `Execution` and ends with it. A body that is stopped or timed out is forgotten at
once, before it has really ended; what it gives later is dropped here (and would be refused by the
attempt's number).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ..runtime.codec import encode_json
from ..runtime.guarded import bounded, called, kind_of, log, text_of
from ..runtime.limits import DELAY_FUNCTION_MAX_MS, RETRY_DELAY_MAX_MS
from .body_call import StepContext
from .claims import Claim, current_body
from .durations import duration_ms
from .failures import (
    NO_DELAY,
    NON_RETRYABLE,
    TIMED_OUT,
    RecordedError,
    exception_of,
    record_of,
)
from .journal import PENDING, RUNNING, UNDO
from .logs import Whose
from .ray_options import shown
from .run_port import Body, BodyRunner, Noted, Who
from .streams import drained
from .tracing import Finish, around_of, begin_attempt

_log = logging.getLogger("toque.workflow")

Told = Callable[[Claim, int, int, RecordedError | None], None]
"""`(claim, attempt, delay_ms, problem)`: a delay function has answered, or failed."""
Ended = Callable[[Claim, int, RecordedError | None, Any], None]
"""`(claim, attempt, error, value)`: an attempt has ended."""


def _nobody(claim: Claim, number: int, *how: Any) -> None:
    """Hears of attempts of a run that is over."""


class _Attempt:
    __slots__ = ("body", "finish", "number", "resources", "timer")

    def __init__(self, number: int) -> None:
        self.number = number
        self.resources: dict[str, Any] | None = None
        self.body: Body | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.finish: Finish | None = None


class Bodies:
    """See the module's description.

    Args:
        loop: the event loop of their timeouts.
        runner: where they run.
        ended: told of each attempt's end.
        told: told of the wait after a failed attempt, where a function gives it.
        whose: the instance, as `Who` has it and as traces show it.
        unfenced: a deliberate fault: tell of attempts that were given up, too.
    """

    __slots__ = (
        "_closed",
        "_ended",
        "_in_flight",
        "_key",
        "_loop",
        "_runner",
        "_tag",
        "_told",
        "_unfenced",
        "_whose",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        runner: BodyRunner,
        ended: Ended,
        told: Told,
        whose: tuple[bytes, str, Whose],
        *,
        unfenced: bool,
    ) -> None:
        self._loop = loop
        self._runner = runner
        self._unfenced = unfenced
        self._ended = ended
        self._told = told
        self._tag, self._key, self._whose = whose
        self._in_flight: dict[int, _Attempt] = {}
        self._closed = False

    def start(self, starts: list[tuple[Claim, int]]) -> None:
        """These attempts are durable: run their bodies, or ask how long to wait after them."""
        for claim, number in starts:
            record = claim.record
            if self._closed or record.attempt != number:
                continue  # given up before the commit
            try:
                if record.state == RUNNING:
                    self._begin(claim, number)
                else:
                    self._ask_delay(claim, number)
            except BaseException as fault:
                self.stop(record.ordinal)
                attempt = self._in_flight[record.ordinal] = _Attempt(number)
                told = self._unrecorded(claim, number, "can't begin", fault)
                end = partial(self._end, claim, number, attempt, told, None)
                attempt.timer = self._loop.call_later(0, end)

    def _begin(self, claim: Claim, number: int) -> None:
        """Run the body of an attempt."""
        record = claim.record
        body, context = claim.body, claim.context
        assert body is not None
        assert context is not None
        kwargs = dict(zip(body.shape.needs, body.args, strict=True)) if body.args else {}
        if body.shape.takes_ctx:
            kwargs["ctx"] = StepContext(record.name, record.count, number, record.config)
        context = context.copy()
        name = record.public_name
        context.run(current_body.set, name)
        attempt = _Attempt(number)
        attempt.finish = begin_attempt(self._whose, name, number, context)
        self._in_flight[record.ordinal] = attempt
        who = Who(self._tag, self._key, name, number)
        done = partial(self._done, claim, number)
        if body.ray_options is None:
            fn, is_async, is_kept = body.fn, body.shape.is_async, record.kind != UNDO
            if not is_async:
                fn = drained(fn, False, body.blobs, is_kept=is_kept)
            attempt.body = self._runner.run_body(
                fn, kwargs, is_async, context, done, who, (body.blobs, is_kept)
            )
        else:
            attempt.resources = body.ray_options
            around = around_of(context)
            attempt.body = self._runner.run_elsewhere(
                body.fn, kwargs, body.ray_options, done, who, body.blobs, around
            )
        attempt.timer = self._loop.call_later(
            record.config.timeout_ms / 1_000, self._time_out, claim, number
        )

    def _ask_delay(self, claim: Claim, number: int) -> None:
        """An attempt has failed: ask the step's delay function how long to wait."""
        record, body, context = claim.record, claim.body, claim.context
        error = record.error
        if record.state != PENDING or error is None:
            return
        assert body is not None
        assert context is not None
        delay = body.delay
        assert delay is not None
        ctx = StepContext(record.name, record.count, number, record.config)
        failure = exception_of(error)
        context = context.copy()
        context.run(current_body.set, record.public_name)
        asked = self._in_flight[record.ordinal] = _Attempt(number)
        asked.body = self._runner.run_body(
            lambda: delay(ctx, failure),
            {},
            inspect.iscoroutinefunction(delay),
            context,
            partial(self._delay_told, claim, asked, error),
            Who(self._tag, self._key, record.public_name),
        )
        asked.timer = self._loop.call_later(
            DELAY_FUNCTION_MAX_MS / 1_000, self._delay_told, claim, asked, error, None, None, True
        )

    def _delay_told(
        self,
        claim: Claim,
        asked: _Attempt,
        error: RecordedError,
        problem: BaseException | None,
        value: Any,
        is_late: bool = False,
    ) -> None:
        record = claim.record
        if self._in_flight.get(record.ordinal) is not asked:
            return
        self.stop(record.ordinal)
        why = ""
        told_ms = 0
        if is_late:
            why = f"took longer than {DELAY_FUNCTION_MAX_MS} ms"
        elif problem is not None:
            why = f"raised {kind_of(problem)}: {text_of(problem)}"
        else:
            unfit, ms = called(_delay_of, value)
            told_ms = ms or 0
            if unfit is not None:
                why = f"gave no duration: {text_of(unfit)}"
        failed = None
        if why:
            text = (
                f"the delay function of step {record.public_name!r} {why}; it was asked after "
                f"{error.name}: {error.message}"
            )
            data = encode_json({"error": {"name": error.name, "message": error.message}})
            failed = RecordedError(NO_DELAY, "RetryDelayFailed", bounded(text), data)
        self._told(claim, asked.number, told_ms, failed)

    def tasks(self) -> dict[int, str]:
        """The bodies that run as tasks, or are to, with their resources, by ordinal."""
        return {
            ordinal: shown(attempt.resources) + _note_of(attempt.body)
            for ordinal, attempt in self._in_flight.items()
            if attempt.resources is not None
        }

    def stop(self, ordinal: int) -> None:
        """Cancel the body of a record, if it has one in flight."""
        attempt = self._in_flight.pop(ordinal, None)
        if attempt is not None:
            if attempt.timer is not None:
                attempt.timer.cancel()
            if attempt.body is not None:
                attempt.body.cancel()
            self._finish(attempt.finish, None, "cancelled")

    def close(self) -> None:
        """Cancel all bodies and start no more."""
        self._closed = True
        for ordinal in list(self._in_flight):
            self.stop(ordinal)
        self._ended = self._told = _nobody  # a cycle less: memory is free without a collection

    def _done(self, claim: Claim, number: int, error: BaseException | None, value: Any) -> None:
        ordinal = claim.record.ordinal
        attempt = self._in_flight.get(ordinal)
        if attempt is not None and attempt.number == number:
            del self._in_flight[ordinal]
            if attempt.timer is not None:
                attempt.timer.cancel()
        elif not self._unfenced:
            return
        failure = None
        if error is not None:
            fault, failure = called(record_of, error)
            if fault is not None:
                failure = self._unrecorded(claim, number, "can't be recorded", fault)
            name = claim.record.public_name
            what = "attempt %d of step %r of %s failed"
            log(_log, logging.INFO, what, number, name, self._key, error=error)
        self._end(claim, number, attempt, failure, value)

    def _end(
        self,
        claim: Claim,
        number: int,
        attempt: _Attempt | None,
        failure: RecordedError | None,
        value: Any,
    ) -> None:
        if attempt is not None:
            self._in_flight.pop(claim.record.ordinal, None)
            if attempt.finish is not None:
                how = "completed" if failure is None else "errored"
                self._finish(attempt.finish, failure, how)
        if not self._closed:
            self._ended(claim, number, failure, value)

    def _finish(self, finish: Finish | None, failure: RecordedError | None, how: str) -> None:
        """Tell the tracer. What it raises is its own affair, and no attempt's."""
        if finish is not None:
            fault, _ = called(finish, failure, how)
            if fault is not None:
                log(
                    _log,
                    logging.ERROR,
                    "the tracer of attempts of %s raised",
                    self._key,
                    error=fault,
                )

    def _unrecorded(
        self, claim: Claim, number: int, what: str, fault: BaseException
    ) -> RecordedError:
        """The last resort: whatever failed, the attempt ends, and its step says so."""
        name = claim.record.public_name
        text = f"attempt {number} of step {name!r} {what}: {kind_of(fault)}: {text_of(fault)}"
        log(_log, logging.ERROR, "%s of %s", text, self._key, error=fault)
        return RecordedError(NON_RETRYABLE, "AttemptFailed", bounded(text))

    def _time_out(self, claim: Claim, number: int) -> None:
        record = claim.record
        attempt = self._in_flight.get(record.ordinal)
        if attempt is None or attempt.number != number:
            return
        finish, attempt.finish = attempt.finish, None
        self.stop(record.ordinal)
        text = (
            f"attempt {number} of step {record.public_name!r} took longer than "
            f"{record.config.timeout_ms} ms"
        )
        failure = RecordedError(TIMED_OUT, "StepTimeout", text)
        self._finish(finish, failure, "timed_out")
        self._ended(claim, number, failure, None)


def _note_of(body: Body | None) -> str:
    note = body.note() if isinstance(body, Noted) else ""
    return f"; {note}" if note else ""


def _delay_of(value: Any) -> int:
    return duration_ms(value, "what it gave", max_ms=RETRY_DELAY_MAX_MS)
