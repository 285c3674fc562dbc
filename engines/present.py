"""An instance and its steps as the API shows them.

Pure: records in, views out. What has not ended yet is shown as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from ..runtime.codec import NULL
from .failures import RecordedError, StepNotFound
from .journal import (
    AWAITS,
    CANCELLED,
    CHILD,
    DO,
    DONE,
    FAILED,
    HIDDEN,
    PENDING,
    SLEEP,
    START,
    UNDO,
    WAIT,
    Attempt,
    Instance,
    Pause,
    Record,
    Undoing,
)
from .status import FINISHED
from .streams import ref_of
from .views import (
    AttemptView,
    ChildView,
    ErrorView,
    InstanceView,
    RollbackView,
    StepOutput,
    StepView,
)

_TYPES = {
    DO: "step",
    SLEEP: "sleep",
    WAIT: "waitForEvent",
    UNDO: "rollback",
    START: "startChild",
    CHILD: "child",
}
REDACTED = b'"[REDACTED]"'
_GIVEN_UP = ErrorView("CancelledError", "the workflow stopped waiting for it")


def _first_queued_ms(instance: Instance) -> int:
    """When the run was queued at first; `queued_ms` is of its latest wait for a slot."""
    started_ms = instance.started_ms
    if started_ms is None or instance.queued_ms <= started_ms:
        return instance.queued_ms
    return min(instance.created_ms, started_ms)


def instance_view(
    instance: Instance,
    instance_id: str,
    workflow_uuid: str,
    params: bytes,
    output: bytes | None,
    steps: list[StepView],
) -> InstanceView:
    """The view of an instance; payloads are passed in, since they may live in other rows."""
    return InstanceView(
        id=instance_id,
        run_id=instance.run_id,
        workflow=instance.workflow,
        workflow_uuid=workflow_uuid,
        version_id=instance.version_id,
        code_hash=instance.code_hash,
        status=instance.status,
        source=instance.source,
        params=params,
        output=output,
        error=_error_view(instance.error),
        created_ms=instance.created_ms,
        queued_ms=_first_queued_ms(instance),
        started_ms=instance.started_ms,
        ended_ms=instance.ended_ms,
        modified_ms=instance.modified_ms,
        step_count=instance.step_count,
        steps=steps,
        code_changed=instance.code_changed,
        rollback=_rollback_view(instance.undo),
        continued=instance.continued,
        parent=instance.parent,
    )


def step_views(instance: Instance, records: Iterable[Record], now_ms: int) -> list[StepView]:
    """The views of some of an instance's steps. Timers that asyncio made are not shown.

    Times that a paused instance waits for are shown as if it were resumed now.
    """
    ended_ms = instance.ended_ms if instance.status in FINISHED else None
    pause = instance.pause_so_far(now_ms)
    return [_step_view(record, ended_ms, pause) for record in records if record.kind not in HIDDEN]


def part_of(records: Sequence[Record], most: int, *, newest_first: bool) -> list[Record]:
    """The first so many of an instance's steps in that order, in the order of the journal."""
    ordered = reversed(records) if newest_first else iter(records)
    found = list(islice((each for each in ordered if each.kind not in HIDDEN), most))
    return found[::-1] if newest_first else found


def in_order(instance: Instance, views: list[StepView], *, newest_first: bool) -> list[StepView]:
    """The views of all steps as they are shown.

    What was terminated or cancelled shows that as the last of them.
    """
    ended_ms = instance.ended_ms if instance.status in FINISHED else None
    if instance.status == "terminated" and ended_ms is not None:
        views.append(_termination(ended_ms, instance.ended_by or "unknown"))
    if newest_first:
        views.reverse()
    return views


def _termination(ended_ms: int, source: str) -> StepView:
    return StepView("termination", "termination", ended_ms, ended_ms, None, True, source=source)


def _step_view(
    record: Record, instance_ended_ms: int | None, pause: Pause | None = None
) -> StepView:
    is_over = record.is_over
    due_ms = record.due_ms if pause is None else record.due_after(pause)
    error = _error_view(record.error) if is_over else None
    if record.state == CANCELLED or (instance_ended_ms is not None and not is_over):
        error = _GIVEN_UP
    end_ms = record.ended_ms
    if not is_over:
        end_ms = instance_ended_ms or (due_ms if record.kind in (SLEEP, WAIT) else None)
    is_open = not is_over and instance_ended_ms is None
    has_output = record.state == DONE and record.kind != SLEEP
    common: dict[str, Any] = {
        "name": record.public_name,
        "type": _TYPES[record.kind],
        "start_ms": record.started_ms,
        "end_ms": end_ms,
        "success": None if is_open else record.state == DONE,
        "finished": record.state in (DONE, FAILED),
        "output": shown_output(record) if has_output else None,
        "error": error,
    }
    if record.kind in (START, CHILD):
        return StepView(**common, child=child_view(record))
    if record.kind not in (DO, UNDO):
        return StepView(**common, event_type=record.event_type or None)
    config = record.config
    return StepView(
        **common,
        attempts=[_attempt_view(attempt) for attempt in record.attempts],
        attempts_total=record.attempt,
        retries_limit=config.limit,
        retry_delay_ms=record.delay_ms if config.delay_ms is None else config.delay_ms,
        backoff=config.backoff,
        timeout_ms=config.timeout_ms,
        retry_at_ms=(due_ms or None) if is_open and record.state == PENDING else None,
        interruptions=record.interruptions,
        deadline_ms=config.deadline_ms,
        sensitive=config.sensitive,
    )


def step_output(instance: Instance, record: Record, attempt: int) -> StepOutput:
    """What a step gave, or how one of its attempts ended.

    Raises:
        StepNotFound: it has no such attempt, or not any more.
    """
    view = _step_view(record, instance.ended_ms if instance.status in FINISHED else None)
    success, error = view.success, view.error
    if attempt:
        found = next((a for a in record.attempts if a.number == attempt), None)
        if found is None:
            raise StepNotFound(f"step {record.public_name!r} has no attempt {attempt} to show.")
        shown = _attempt_view(found)
        success, error = shown.success, shown.error
    elif success is None and error is None and record.attempts:  # the last one failed, or runs
        error = _error_view(record.attempts[-1].error)
    status = "complete" if success else "errored"
    if success is None:
        status = "waiting" if record.kind in AWAITS else "running"
    size = None
    if success and record.stream and not record.config.sensitive:
        size = ref_of(record.result or NULL).size
    output = view.output if success else None
    return StepOutput(status, error, output, view.event_type, size)


def child_view(record: Record) -> ChildView | None:
    """The child that a record is about."""
    call = record.child
    return None if call is None else ChildView(call.workflow, call.id)


def shown_output(record: Record) -> bytes:
    """The output of a step or wait for everyone but `run`."""
    if record.config.sensitive:
        return REDACTED
    return ref_of(record.result or NULL).shown() if record.stream else record.result or NULL


def _rollback_view(undo: Undoing | None) -> RollbackView | None:
    if undo is None or not undo.outcome:
        return None
    return RollbackView(undo.outcome, _error_view(undo.error))


def _attempt_view(attempt: Attempt) -> AttemptView:
    success = None if attempt.ended_ms is None else attempt.error is None
    return AttemptView(attempt.started_ms, attempt.ended_ms, success, _error_view(attempt.error))


def _error_view(error: RecordedError | None) -> ErrorView | None:
    return None if error is None else ErrorView(error.name, error.message, error.data, error.at)
