"""Why an instance does not go on: what it waits for, or does, and what has come that it ignores.

Pure: rows in, a view out. Timers of asyncio have no rows until they fire: of them the next is
told, if it is what the instance means to wake for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..runtime.limits import WAIT_REASONS_SHOWN_MAX
from .failures import INTERRUPTED
from .journal import (
    CHILD,
    CHILD_END,
    HIDDEN,
    RUNNING,
    SLEEP,
    START,
    UNDO,
    WAIT,
    Instance,
    Pause,
    Record,
)
from .present import child_view
from .run_port import Pending
from .status import FINISHED
from .views import BufferedEvents, ErrorView, WaitingView, WaitReason


def waiting_view(
    instance: Instance,
    records: Iterable[Record],
    events: Iterable[tuple[int, str, int]],
    code_error: str,
    *,
    now_ms: int,
    in_memory: bool,
    pending: Pending | None = None,
) -> WaitingView:
    """The view.

    Args:
        instance: the instance.
        records: its journal.
        events: `(number, type, time)` of the buffered events.
        code_error: why its code can't be loaded, if that is so.
        now_ms: times of a paused instance are shown as if it were resumed then.
        in_memory: whether its `run` is.
        pending: what its run waits for.
    """
    has_ended = instance.status in FINISHED
    open_records = [] if has_ended else [r for r in records if not r.is_over]
    tasks = pending.tasks if pending is not None else {}
    pause = instance.pause_so_far(now_ms)
    reasons = [r for record in open_records if (r := _reason(record, tasks, pause)) is not None]
    if instance.wake_ms and all(record.due_ms != instance.wake_ms for record in open_records):
        passed_ms = 0 if pause is None else max(0, now_ms - instance.quiesced_ms)
        reasons.append(WaitReason("timer", due_ms=instance.wake_ms + passed_ms))
    if pause is not None:
        reasons.insert(0, WaitReason("pause", since_ms=instance.pause_ms))
    if code_error:
        error = ErrorView("WorkflowLoadError", code_error)
        reasons.insert(0, WaitReason("code", since_ms=instance.modified_ms, error=error))
    if pending is not None and pending.worker:
        error = ErrorView("WorkerStarting", pending.worker)
        reasons.insert(0, WaitReason("worker", since_ms=instance.modified_ms, error=error))
    if instance.status == "queued":
        reasons.insert(0, WaitReason("slot", since_ms=instance.modified_ms))
    return WaitingView(
        status=instance.status,
        since_ms=instance.modified_ms,
        reasons=reasons[:WAIT_REASONS_SHOWN_MAX],
        more=max(0, len(reasons) - WAIT_REASONS_SHOWN_MAX),
        buffered=_buffered(events, {r.event_type for r in open_records if r.kind == WAIT}),
        awakened=instance.awakened,
        souschef=instance.souschef,
        in_memory=in_memory,
        version_id=instance.version_id,
        code_hash=instance.code_hash,
        code_changed=instance.code_changed,
    )


def _reason(record: Record, tasks: Mapping[int, str], pause: Pause | None) -> WaitReason | None:
    name, since_ms = record.public_name, record.started_ms
    due_ms = record.due_ms if pause is None else record.due_after(pause)
    if record.kind in HIDDEN:
        return None
    if record.kind == SLEEP:
        return WaitReason("sleep", name, since_ms, due_ms)
    if record.kind == WAIT:
        return WaitReason("event", name, since_ms, due_ms, record.event_type)
    if record.kind == CHILD:
        return WaitReason("child", name, since_ms, child=child_view(record))
    if record.kind == START:
        return _start_reason(record, due_ms)
    newest = record.attempts[-1] if record.attempts else None
    if record.state == RUNNING or newest is None:
        started_ms = since_ms if newest is None else newest.started_ms
        needs = tasks.get(record.ordinal)
        if needs is None:
            kind = "rollback" if record.kind == UNDO else "step"
            return WaitReason(kind, name, started_ms, attempt=record.attempt)
        error = ErrorView("Resources", needs)
        return WaitReason("task", name, started_ms, attempt=record.attempt, error=error)
    failure = newest.error
    return WaitReason(
        "retry",
        name,
        newest.ended_ms,
        due_ms,
        attempt=record.attempt + 1,
        error=None if failure is None else ErrorView(failure.name, failure.message),
    )


def _start_reason(record: Record, due_ms: int) -> WaitReason:
    refusals = (a.error for a in reversed(record.attempts) if a.error is not None)
    last = next((error for error in refusals if error.kind != INTERRUPTED), None)
    return WaitReason(
        "startChild",
        record.public_name,
        record.started_ms,
        due_ms or None,
        attempt=record.attempt,
        error=None if last is None else ErrorView(last.name, last.message),
        child=child_view(record),
    )


def _buffered(
    events: Iterable[tuple[int, str, int]], awaited: Iterable[str]
) -> list[BufferedEvents]:
    counts: dict[str, list[int]] = {}
    for _, event_type, at_ms in events:
        if event_type.startswith(CHILD_END):
            continue  # nobody sent it
        known = counts.setdefault(event_type, [0, at_ms])
        known[0] += 1
    wanted = set(awaited)
    return [
        BufferedEvents(kind, count, oldest_ms, kind in wanted)
        for kind, (count, oldest_ms) in counts.items()
    ]
