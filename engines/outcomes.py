"""How steps and runs end that toque itself ends: the outcome of `run`, and errors that name both.

Pure functions; the texts name workflow, step and type, and say what is right.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..runtime.codec import decode_json_as, encode_json, type_name
from ..runtime.errors import ToqueError, UnencodableValue
from ..runtime.guarded import bounded, called, is_a, is_vast, kind_of, text_of
from .calls import ContinueAsNew, never_awaited
from .claims import shown
from .failures import (
    EVENT_TIMED_OUT,
    INTERRUPTED,
    MISMATCHED,
    OUT_OF_TIME,
    NonDeterminism,
    RecordedError,
    ResultMismatch,
    record_of,
)
from .journal import Record
from .run_port import Outcome

if TYPE_CHECKING:
    from .declared import StepFunction

_log = logging.getLogger("toque.engines")


def returned(
    value: Any,
    workflow: str,
    returns: Any,
    never: Collection[str],
    declared: Collection[StepFunction[Any]],
) -> Outcome:
    """The outcome of a `run` that returned.

    Args:
        value: what it returned.
        workflow: named in messages.
        returns: what the value must fit.
        never: names of steps that were called, and had not begun when it returned.
        declared: all declared steps.
    """
    what = f"the result of {workflow}"
    try:
        for name in never:
            raise never_awaited(name)
        output = encode_json(value, what)
        if returns is not Any:
            _check_fits(output, returns, what)
    except BaseException as unfit:
        return Outcome(None, record_unfit(unfit, what))
    for step in declared:
        if not step.was_run:
            _log.warning("%s never ran its declared step %r", workflow, step.name)
    return Outcome(output, None)


def followed(
    error: BaseException | None, params: bytes | None, never: Collection[str]
) -> Outcome | None:
    """The outcome of a `run` that ended by `step.continue_as_new`; None: it ended otherwise.

    `params` are what it was last called with, if it was: a `run` that caught that and returned
    has ended by it too.
    """
    if error is None and params is None:
        return None
    if error is not None and is_vast(error):
        return None
    if is_a(error, BaseExceptionGroup):  # out of a TaskGroup's block
        found, others = BaseExceptionGroup.split(cast(Any, error), ContinueAsNew)
        if found is None or others is not None:
            return None
        error = found
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
    if is_a(error, ContinueAsNew):
        params = cast(ContinueAsNew, error).params
    elif error is not None or params is None:
        return None
    for name in never:
        return Outcome(None, record_of(never_awaited(name)))
    return Outcome(None, None, params)


def _check_fits(output: bytes, expected: Any, what: str) -> None:
    error, _ = called(decode_json_as, output, expected)
    if error is not None:
        raise ResultMismatch(
            f"{what} does not fit the return annotation of run(), {type_name(expected)}: "
            f"{text_of(error)}"
        ) from None


def record_unfit(unfit: BaseException, what: str) -> RecordedError:
    """The record of why a value can't be encoded; `what` names it."""
    if is_a(unfit, ToqueError):
        return record_of(unfit)
    text = f"{what} can't be written as JSON: {kind_of(unfit)}: {text_of(unfit)}"
    return record_of(UnencodableValue(text))


def undecodable(
    record: Record, expected: Any, workflow: str, error: BaseException
) -> RecordedError:
    """A recorded result does not fit the return annotation of its body."""
    why = "its output is sensitive" if record.config.sensitive else text_of(error)
    return record_of(
        ResultMismatch(
            f"the result of {shown(record)} of {workflow} does not fit the return annotation of "
            f"its body, {type_name(expected)}: {why}"
        )
    )


def unfit_event(record: Record, workflow: str, error: BaseException) -> RecordedError:
    """An event's payload does not fit the type that the wait names."""
    text = (
        f"the event of type {record.event_type!r} that {shown(record)} of {workflow} got does "
        f"not fit its payload_type: {text_of(error)}"
    )
    return RecordedError(MISMATCHED, "PayloadMismatch", bounded(text))


def out_of_time(record: Record) -> RecordedError:
    """A step's whole-step deadline has passed, or would before its next attempt."""
    failures = (a.error for a in reversed(record.attempts) if a.error is not None)
    newest = next((error for error in failures if error.kind != INTERRUPTED), None)
    last = f"; its last error was {newest.name}: {newest.message}" if newest else ""
    text = (
        f"step {record.public_name!r} did not succeed within its deadline of "
        f"{record.config.deadline_ms} ms{last}"
    )
    return RecordedError(OUT_OF_TIME, "StepDeadline", bounded(text))


UNBLOCK = "make it a plain `def`, which gets a thread, or `await` where it waits"
"""What to do with code that blocks an event loop."""


def interrupted(text: str) -> RecordedError:
    """The error of an attempt that the end of its process has cut off."""
    return RecordedError(INTERRUPTED, "StepInterrupted", text)


def cut_off(record: Record) -> RecordedError:
    """Crashes ended attempts of a step too often, or once where that is too often."""
    why = (
        f"its attempts were cut off {record.interruptions} times"
        if record.config.limit
        else "its only attempt was cut off; whether it took effect is not known"
    )
    last = next((a.error for a in reversed(record.attempts) if a.error is not None), None)
    told = f" The last time: {last.message}" if last and last.kind == INTERRUPTED else ""
    return interrupted(f"step {record.public_name!r} was interrupted: {why}.{told}")


def no_event(record: Record) -> RecordedError:
    """A wait's time is up."""
    text = f"no event of type {record.event_type!r} came in time for {record.public_name!r}"
    return RecordedError(EVENT_TIMED_OUT, "EventTimeout", text)


def diverged(workflow: str, found: str, asked: Sequence[str], next_up: str) -> RecordedError:
    """`run` does not repeat what the journal says that it did."""
    now = f" (it asks for {', '.join(asked[:3])})" if asked else ""
    return record_of(
        NonDeterminism(
            f"{workflow} does not repeat itself: {found}{now}, but the journal says that {next_up} "
            "came next. Code outside steps must do the same at each replay: no clock, no random, "
            "no I/O there, and no other order of steps in a new version. Nothing was run again."
        )
    )
