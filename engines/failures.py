"""Errors of steps and of instances: how they are recorded and raised again.

An error is recorded as kind, name, text and `data`, and what `run` gets is always made from that
record, live and at replay alike, so that a replayed branch takes the same `except`. An error
whose name is that of a built-in exception comes back as a subclass of both `StepFailed` and it,
so `except ValueError` works; objects and tracebacks of the original do not survive.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from ..runtime.codec import decode_json, encode_json
from ..runtime.errors import AuthorError, CallerError, ToqueError
from ..runtime.guarded import attribute, bounded, called, is_a, kind_of, plain, shown, text_of
from ..runtime.limits import (
    ERROR_DATA_BYTES_MAX,
    ERROR_MESSAGE_CHARS_MAX,
    ERROR_NAME_CHARS_MAX,
    ERROR_PLACE_CHARS_MAX,
    ERROR_PLACES_MAX,
)
from .raised_at import places_of

FAILED, NON_RETRYABLE, TIMED_OUT, EVENT_TIMED_OUT, INTERRUPTED = range(5)
OUT_OF_TIME, MISMATCHED, NO_DELAY = range(5, 8)
CHILD_FAILED, NOT_STARTED, ID_TAKEN, NO_WORKFLOW, TOO_MANY_CHILDREN = range(8, 13)
EMPTY, STARVED = range(13, 15)


class RecordedError(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An error as the journal keeps it.

    Attributes:
        kind: one of the constants above.
        name: the exception's class name (or the name given to `NonRetryableError`).
        message: its text, bounded.
        data: JSON of its `data`; empty: none.
        at: where user code raised it; see `raised_at`.
    """

    kind: int
    name: str
    message: str
    data: bytes = b""
    at: tuple[str, ...] = ()


class StepFailed(AuthorError):
    """A step failed for good; raised in `run` where the step is awaited.

    Attributes:
        name: the original exception's class name.
        message: its text.
        data: the details that it carried, as plain data. A body may raise `StepFailed(text, data)`
            itself, to be tried again.
        at: where it was raised, oldest call first, for example
            `("orders.py:41 in Orders.run.<locals>.charge",)`.
    """

    code = "step.failed"
    number = 10310
    kind = FAILED

    def __init__(
        self, message: str = "", data: dict[str, Any] | None = None, name: str | None = None
    ) -> None:
        # not cooperative: built-ins next in line (OSError, UnicodeError) want other arguments
        Exception.__init__(self, message)
        self.message = message
        self.data = data or {}
        self.remote = False
        self.name: str = name or type(self).__name__
        self.at: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name == "at":  # of a class of an author's that does not call this `__init__`
            return ()
        return type(self).__name__ if name == "name" else super().__getattr__(name)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return exception_of, (record_of(self),)


class NonRetryableError(AuthorError):
    """Raise it in a step's body to fail the step at once, whatever retries are left.

    Args:
        message: what went wrong.
        name: shown as the error's name in place of `NonRetryableError`.
        data: details as JSON-like data; `run`, the API and clients get them as `error.data`.
    """

    code = "step.non_retryable"
    number = 10311

    def __init__(
        self,
        message: str = "",
        name: str | dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(name, dict):  # (message, data), as errors are made off the wire
            name, data = None, name
        super().__init__(message, data)
        self.name: str = name or type(self).__name__

    def __getattr__(self, name: str) -> Any:
        return type(self).__name__ if name == "name" else super().__getattr__(name)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.message, self.name, self.data)


class NonRetryableStepFailed(StepFailed, NonRetryableError):
    """What `run` gets of a `NonRetryableError`."""

    code = "step.failed_non_retryable"
    number = 10312
    kind = NON_RETRYABLE


class StepTimeout(StepFailed, TimeoutError):
    """The last attempt of a step took longer than its `timeout`."""

    code = "step.timeout"
    number = 10313
    kind = TIMED_OUT


class StepDeadline(StepTimeout):
    """A step, with all its attempts and the waits between them, took longer than its `deadline`."""

    code = "step.deadline"
    number = 10330
    kind = OUT_OF_TIME


class RetryDelayFailed(StepFailed):
    """The function in the place of `delay` raised, took too long, or gave no duration.

    `data["error"]` holds name and message of the failure that it was asked about.
    """

    code = "step.retry_delay_failed"
    number = 10331
    kind = NO_DELAY


class EventTimeout(StepFailed, TimeoutError):
    """No event came in time for a `step.wait_for_event`."""

    code = "step.event_timeout"
    number = 10314
    kind = EVENT_TIMED_OUT


class StepInterrupted(StepFailed):
    """Attempts were cut off by crashes, too often or with no retry allowed."""

    code = "step.interrupted"
    number = 10315
    kind = INTERRUPTED


class StepMisuse(AuthorError):
    """`step` was used where or how it can't be. Never retried."""

    code = "step.misuse"
    number = 10316


class NonDeterminism(AuthorError):
    """`run` does not repeat what the journal says that it did."""

    code = "instance.non_determinism"
    number = 10317


class PayloadMismatch(StepFailed):
    """Params, or an event's payload, do not fit the type that the workflow expects."""

    code = "payload.mismatch"
    number = 10332
    kind = MISMATCHED


class ChildFailed(StepFailed):
    """A child ended otherwise than `complete`: errored, terminated, cancelled or deleted.

    `data` holds the child's `workflow`, `id` and `status` (`deleted` too), and its own `error` with
    `name`, `message` and `data`, if it has one.
    """

    code = "child.failed"
    number = 10360
    kind = CHILD_FAILED


class ChildNotStarted(StepFailed):
    """A child was refused for good, and there is none.

    `data` holds `workflow`, `id`, and the `code` of the refusal.
    """

    code = "child.not_started"
    number = 10361
    kind = NOT_STARTED


class ChildIdTaken(ChildNotStarted):
    """The id that the child was to have is in use by another instance."""

    code = "child.id_taken"
    number = 10362
    kind = ID_TAKEN


class ChildWorkflowNotFound(ChildNotStarted):
    """The account has no workflow of the name that the child was to be of."""

    code = "child.workflow_not_found"
    number = 10363
    kind = NO_WORKFLOW


class TooManyChildren(ChildNotStarted):
    """The instance has as many children as it may, or children start children too deep."""

    code = "child.too_many"
    number = 10364
    kind = TOO_MANY_CHILDREN


class JoinEmpty(StepFailed):
    """A join has no children to wait for."""

    code = "join.empty"
    number = 10365
    kind = EMPTY


class JoinStarved(StepFailed):
    """So many children of a join have failed that it can't be fulfilled.

    `data` holds `failures`, their number, and the first of them as `failed`.
    """

    code = "join.starved"
    number = 10366
    kind = STARVED


class ResultMismatch(AuthorError):
    """A step's result does not fit the return annotation of its body."""

    code = "step.result_mismatch"
    number = 10320


class WorkflowStuck(AuthorError):
    """`run` waits for something that nothing can bring about."""

    code = "instance.stuck"
    number = 10318


class ResourcesUnavailable(NonRetryableError):
    """A step asks for resources, and there is no Ray here that could give them."""

    code = "step.resources_unavailable"
    number = 10322


class BodyNotSent(NonRetryableError):
    """A step's body can't be sent to where its resources are."""

    code = "step.body_not_sent"
    number = 10323


class InstanceCrashed(AuthorError):
    """`run` itself ends or blocks the process it runs in, each time."""

    code = "instance.crashed"
    number = 10321


class LimitExceeded(AuthorError):
    """An instance grew past a bound."""

    code = "instance.limit_exceeded"
    number = 10319


class EventsBufferFull(CallerError):
    """The instance has too many events that it has not waited for yet."""

    code = "instance.events_full"
    number = 10408
    status = 429
    overloaded = True


class StepUndone(CallerError):
    """A restart would keep the result of a step that a rollback has undone."""

    code = "step.undone"
    number = 10421


class StepNotFound(CallerError):
    """The instance has no such step."""

    code = "step.not_found"
    number = 10420
    status = 404


_BY_KIND: dict[int, type[StepFailed]] = {
    NON_RETRYABLE: NonRetryableStepFailed,
    TIMED_OUT: StepTimeout,
    EVENT_TIMED_OUT: EventTimeout,
    INTERRUPTED: StepInterrupted,
    OUT_OF_TIME: StepDeadline,
    MISMATCHED: PayloadMismatch,
    NO_DELAY: RetryDelayFailed,
    CHILD_FAILED: ChildFailed,
    NOT_STARTED: ChildNotStarted,
    ID_TAKEN: ChildIdTaken,
    NO_WORKFLOW: ChildWorkflowNotFound,
    TOO_MANY_CHILDREN: TooManyChildren,
    EMPTY: JoinEmpty,
    STARVED: JoinStarved,
}
_UNRAISABLE_IN_COROUTINES = (StopIteration, StopAsyncIteration, BaseExceptionGroup)


def cancelled_error(error: RecordedError | None = None) -> RecordedError:
    """Of an instance that was cancelled; `error` is what its cleanup ended with."""
    text = "the instance was cancelled"
    if error is not None and error.name != "CancelledError":
        text = bounded(f"{text}; its cleanup failed: {error.name}: {error.message}")
    return RecordedError(NON_RETRYABLE, "Cancelled", text)


def is_retryable(error: BaseException) -> bool:
    """Whether another attempt may follow that error of a body."""
    return not is_a(error, (NonRetryableError, StepMisuse))


def record_of(error: BaseException) -> RecordedError:
    """The record of any exception, whatever its class makes of itself. It never raises."""
    if is_a(error, StepFailed):
        # of a class and its base, the class has the greater kind
        kind = max((kind for kind, cls in _BY_KIND.items() if is_a(error, cls)), default=FAILED)
    else:
        kind = FAILED if is_retryable(error) else NON_RETRYABLE
    data = _data_of(error) if is_a(error, ToqueError) else b""
    _, at = called(places_of, error, _at_of(error))
    return RecordedError(kind, _name_of(error), _message_of(error), data, at or ())


def _at_of(error: BaseException) -> tuple[str, ...]:
    """Where the step failed whose error this is: `run` has raised it once more."""
    at = attribute(error, "at") if is_a(error, StepFailed) else ()
    if type(at) is not tuple or not all(type(line) is str for line in at):
        return ()  # a class of an author's, who may set what he likes
    return tuple(bounded(line, ERROR_PLACE_CHARS_MAX) for line in at[-ERROR_PLACES_MAX:])


def _name_of(error: BaseException) -> str:
    name = None
    if is_a(error, (StepFailed, NonRetryableError)):
        name = plain(attribute(error, "name"))
    return bounded(name or kind_of(error), ERROR_NAME_CHARS_MAX)


def _message_of(error: BaseException) -> str:
    if not is_a(error, StepFailed):
        return text_of(error)
    failed, given = called(getattr, error, "message")
    if failed is not None:
        return text_of(error)
    text = plain(given)
    return bounded(shown(given, ERROR_MESSAGE_CHARS_MAX) if text is None else text)


def _data_of(error: BaseException) -> bytes:
    """The error's details as JSON. What can't be kept is said in their place."""
    what = f"the data of this {kind_of(error)}"
    unfit, raw = called(_encoded_data, error, what)
    if raw is None:  # an author's `__str__` or `model_dump` may raise anything
        return encode_json({"lost": bounded(text_of(unfit) if unfit else "", 500)})
    if len(raw) > ERROR_DATA_BYTES_MAX:
        told = f"{what} takes {len(raw)} bytes as JSON; {ERROR_DATA_BYTES_MAX} are kept at most"
        return encode_json({"lost": told})
    return raw


def _encoded_data(error: BaseException, what: str) -> bytes:
    data = getattr(error, "data", None)
    return encode_json(data, what) if data else b""


def data_of(record: RecordedError) -> Any:
    """The details of a recorded error; None: it has none."""
    return decode_json(record.data) if record.data else None


def exception_of(record: RecordedError) -> StepFailed:
    """The exception that a record is raised as."""
    cls = _BY_KIND.get(record.kind) or _failed_like(record.name)
    error = cls(record.message, data_of(record), record.name)
    error.at = record.at
    return error


@lru_cache(maxsize=256)
def _failed_like(name: str) -> type[StepFailed]:
    builtin = getattr(builtins, name, None)
    if (
        not isinstance(builtin, type)
        or not issubclass(builtin, Exception)
        or builtin is Exception
        or issubclass(builtin, _UNRAISABLE_IN_COROUTINES)
    ):
        return StepFailed
    made = type(name, (StepFailed, builtin), {"__module__": __name__, "__doc__": builtin.__doc__})
    try:
        made("probe", None, name)
    except TypeError:
        return StepFailed
    return made
