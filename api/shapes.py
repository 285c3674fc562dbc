"""What the API shows: views as the JSON shapes of Cloudflare's REST API, as bytes.

Every field is present in every answer; `steps` is always a list. Payloads are put in as the
bytes they are on disk. Beside the standard fields stand a few of toque's own (`run_id`,
`retry_at`, ...), which clients of the standard ignore.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from ..engines.streams import ref_of
from ..engines.views import (
    AttemptView,
    ErrorView,
    IndexRow,
    InstanceView,
    Parent,
    RollbackView,
    StepOutput,
    StepView,
)
from ..runtime.codec import NULL
from ..runtime.ids import split_engine_key
from .changes import BatchChanges
from .listing import FINAL_STATUSES
from .service import BatchResult, InstanceList

_encode = msgspec.json.Encoder().encode
_NULL = msgspec.Raw(NULL)
_TAIL = b',"success":true,"errors":[],"messages":[]}'


class ErrorShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """An instance's or a step's error; `data` if it carried details, `at` if user code raised it.

    `at` holds the lines of its traceback, oldest call first.
    """

    name: str
    message: str
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    at: tuple[str, ...] = ()


class Created(msgspec.Struct, frozen=True, gc=False):
    """A new instance."""

    id: str
    status: str
    version_id: str
    workflow_id: str
    trigger_source: str


class RollbackShape(msgspec.Struct, frozen=True):
    """How a rollback ended: `complete` or `failed`, and why."""

    outcome: str
    error: ErrorShape | None


class CreatedAndWaited(msgspec.Struct, frozen=True):
    """A new instance that was waited for. `finished` is false if time ran out first."""

    id: str
    status: str
    version_id: str
    workflow_id: str
    trigger_source: str
    run_id: str
    finished: bool
    success: bool | None
    error: ErrorShape | None
    output: msgspec.Raw
    rollback: RollbackShape | None
    created_on: str
    start: str | None
    end: str | None
    step_count: int


class Listed(msgspec.Struct, frozen=True, gc=False):
    """A line of a list of instances."""

    id: str
    status: str
    created_on: str
    started_on: str | None
    ended_on: str | None
    modified_on: str
    version_id: str
    workflow_id: str
    trigger_source: str


class AttemptShape(msgspec.Struct, frozen=True):
    """One attempt of a step."""

    start: str
    end: str | None
    success: bool | None
    error: ErrorShape | None


class RetriesShape(msgspec.Struct, frozen=True):
    """`limit` retries after the first attempt; `delay` in milliseconds.

    A delay that a function gives is "[dynamic]" until it was asked, then what it told last.
    """

    limit: int
    delay: int | str
    backoff: str


class ConfigShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step's resolved configuration, in milliseconds; `timeout` is for each attempt."""

    retries: RetriesShape
    timeout: int
    deadline: int | None = None
    sensitive: str | None = None


class StepShape(msgspec.Struct, frozen=True, tag="step", tag_field="type"):
    """A step. `end` and `success` are null while it is open; `retry_at` says when it goes on."""

    name: str
    start: str
    end: str | None
    success: bool | None
    output: msgspec.Raw
    error: ErrorShape | None
    attempts: list[AttemptShape]
    attempts_total: int
    config: ConfigShape
    retry_at: str | None
    interruptions: int
    output_bytes: int | msgspec.UnsetType = msgspec.UNSET


class UndoingShape(StepShape, frozen=True, tag="rollback", tag_field="type"):
    """What undoes a step."""


class SleepShape(msgspec.Struct, frozen=True, tag="sleep", tag_field="type"):
    """A sleep; while it is open `end` is when it will end."""

    name: str
    start: str
    end: str
    finished: bool
    error: ErrorShape | None


class TriggerShape(msgspec.Struct, frozen=True):
    """What made, or ended, an instance: api, binding, event, cron or unknown."""

    source: str


class TerminationShape(msgspec.Struct, frozen=True, tag="termination", tag_field="type"):
    """That the instance was terminated or cancelled, and what asked for it; the last step."""

    name: str
    start: str
    end: str
    trigger: TriggerShape


class WaitShape(msgspec.Struct, frozen=True, tag="waitForEvent", tag_field="type"):
    """A wait for an event; while it is open `end` is when it will time out."""

    name: str
    start: str
    end: str
    finished: bool
    error: ErrorShape | None
    output: msgspec.Raw
    event_type: str
    output_bytes: int | msgspec.UnsetType = msgspec.UNSET


class ChildRefShape(msgspec.Struct, frozen=True):
    """A child: the name of its workflow, and its id."""

    workflow: str
    id: str


class _ChildStep(msgspec.Struct, frozen=True):
    """What is shown of a start and of a wait alike."""

    name: str
    start: str
    end: str | None
    success: bool | None
    error: ErrorShape | None
    output: msgspec.Raw
    child: ChildRefShape | None
    output_bytes: int | msgspec.UnsetType = msgspec.UNSET


class ChildStartShape(_ChildStep, frozen=True, tag="startChild", tag_field="type"):
    """The start of a child; `end` is null until it is there."""


class ChildWaitShape(_ChildStep, frozen=True, tag="child", tag_field="type"):
    """A wait for a child's end; `output` is the child's, `end` is null until then."""


AnyStep = (
    StepShape
    | UndoingShape
    | SleepShape
    | WaitShape
    | ChildStartShape
    | ChildWaitShape
    | TerminationShape
)


class ParentShape(msgspec.Struct, frozen=True):
    """The instance that started another one, and the run in which it did."""

    workflow: str
    id: str
    run_id: str
    on_parent_end: str


class Detail(msgspec.Struct, frozen=True):
    """An instance in full; `parent` is null unless a workflow started it.

    `params_bytes`, `output_bytes` (of steps too): that payload is longer than was asked for, and
    `null` stands in its place; so long it is.
    """

    id: str
    run_id: str
    workflow_id: str
    status: str
    params: msgspec.Raw
    trigger: TriggerShape
    version_id: str = msgspec.field(name="versionId")
    queued: str
    start: str | None
    end: str | None
    success: bool | None
    error: ErrorShape | None
    output: msgspec.Raw
    rollback: RollbackShape | None
    step_count: int
    steps: list[AnyStep]
    created_on: str
    modified_on: str
    code_changed: bool
    continued: int
    parent: ParentShape | None
    params_bytes: int | msgspec.UnsetType = msgspec.UNSET
    output_bytes: int | msgspec.UnsetType = msgspec.UNSET


class StatusChanged(msgspec.Struct, frozen=True):
    """The status after a change, and when that was."""

    status: str
    timestamp: str


class Deleted(msgspec.Struct, frozen=True):
    """An instance that is deleted."""

    id: str


class Refused(msgspec.Struct, frozen=True):
    """An item of a batch that was refused."""

    id: str
    code: int
    message: str


class InstancesDeleted(msgspec.Struct, frozen=True):
    """What a batch deleted, and what not; by a filter: `cursor` to the next ones, or null."""

    deleted: list[Deleted]
    errors: list[Refused]
    cursor: str | None


class Changed(msgspec.Struct, frozen=True):
    """An instance and its new status."""

    id: str
    status: str


class StatusesChanged(msgspec.Struct, frozen=True):
    """What a batch changed, and what not; by a filter: `cursor` to the next ones, or null."""

    changed: list[Changed]
    errors: list[Refused]
    cursor: str | None


class Begun(msgspec.Struct, frozen=True):
    """Work in the background: `ok`, or `already_running`."""

    status: str


class EventSent(msgspec.Struct, frozen=True):
    """Where an event went, and its time."""

    instance_id: str = msgspec.field(name="instanceId")
    timestamp: str


class ListInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Paging. No `cursor`: this was the end."""

    count: int
    per_page: int
    total_count: int
    page: int
    total_pages: int
    cursor: str | None = None


@lru_cache(maxsize=4096)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def iso(ms: int) -> str:
    """Milliseconds as ISO 8601 in UTC.

    >>> iso(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    second, rest = divmod(ms, 1000)
    return f"{_second(second)}.{rest:03d}Z"


def _iso_or_none(ms: int | None) -> str | None:
    return None if ms is None else iso(ms)


def _error(error: ErrorView | None) -> ErrorShape | None:
    if error is None:
        return None
    data = msgspec.Raw(error.data) if error.data else msgspec.UNSET
    return ErrorShape(error.name, error.message, data, error.at)


def _raw(payload: bytes | None) -> msgspec.Raw:
    return msgspec.Raw(payload) if payload else _NULL


def _cut(payload: bytes | None, most: int | None) -> tuple[msgspec.Raw, int | msgspec.UnsetType]:
    """A payload, unless it is too long: then its length."""
    if most is None or payload is None or len(payload) <= most:
        return _raw(payload), msgspec.UNSET
    return _NULL, len(payload)


def success_of(status: str) -> bool | None:
    """Whether an instance of that status succeeded; None while it can still go either way."""
    return status == "complete" if status in FINAL_STATUSES else None


def answer(result: Any) -> bytes:
    """The envelope around a result."""
    return b'{"result":' + _encode(result) + _TAIL


def answer_list(results: list[Any], info: ListInfo) -> bytes:
    """The envelope around a page."""
    head = b'{"result":' + _encode(results) + b',"result_info":' + _encode(info)
    return head + _TAIL


def created(view: InstanceView) -> Created:
    """The answer to a create."""
    return Created(view.id, view.status, view.version_id, view.workflow_uuid, view.source)


def created_and_waited(view: InstanceView) -> CreatedAndWaited:
    """The answer to a create that waits."""
    return CreatedAndWaited(
        view.id,
        view.status,
        view.version_id,
        view.workflow_uuid,
        view.source,
        view.run_id,
        view.status in FINAL_STATUSES,
        success_of(view.status),
        _error(view.error),
        _raw(view.output),
        _rollback(view.rollback),
        iso(view.created_ms),
        _iso_or_none(view.started_ms),
        _iso_or_none(view.ended_ms),
        view.step_count,
    )


def instances_deleted(done: BatchChanges, cursor: str | None = None) -> InstancesDeleted:
    """What a batch deleted."""
    return InstancesDeleted([Deleted(each) for each, _ in done.changed], _refused(done), cursor)


def statuses_changed(done: BatchChanges, cursor: str | None = None) -> StatusesChanged:
    """What a batch changed."""
    return StatusesChanged([Changed(*each) for each in done.changed], _refused(done), cursor)


def _refused(done: BatchChanges) -> list[Refused]:
    return [Refused(error.id, error.code, error.message) for error in done.errors]


def _rollback(view: RollbackView | None) -> RollbackShape | None:
    return None if view is None else RollbackShape(view.outcome, _error(view.error))


def answer_batch(result: BatchResult) -> bytes:
    """The answer to a batch; ids that were in use are told as messages."""
    messages = [
        {"code": 10405, "message": f"instance {instance_id!r} exists already; left as it is."}
        for instance_id in result.existing
    ]
    messages += [
        {"code": 10415, "message": f"instance {instance_id!r} is in the batch twice; made once."}
        for instance_id in result.repeated
    ]
    body = _encode([created(view) for view in result.created])
    told = _encode(messages)
    return b'{"result":' + body + b',"success":true,"errors":[],"messages":' + told + b"}"


def listed(row: IndexRow, workflow_uuid: str) -> Listed:
    """A line of a list."""
    return Listed(
        row.id,
        row.status,
        iso(row.created_ms),
        _iso_or_none(row.started_ms),
        _iso_or_none(row.ended_ms),
        iso(row.modified_ms),
        row.version_id,
        workflow_uuid,
        row.source,
    )


def list_info(count: int, per_page: int, total: int, page: int, cursor: str | None) -> ListInfo:
    """Paging facts."""
    return ListInfo(count, per_page, total, page, -(-total // per_page), cursor)


def answer_instances(found: InstanceList) -> bytes:
    """The answer to a list of instances."""
    page = found.page
    info = list_info(len(page.rows), page.per_page, found.total, page.page, found.cursor)
    return answer_list([listed(row, found.workflow.uuid) for row in page.rows], info)


def _attempt(attempt: AttemptView) -> AttemptShape:
    return AttemptShape(
        iso(attempt.start_ms),
        _iso_or_none(attempt.end_ms),
        attempt.success,
        _error(attempt.error),
    )


def step_shape(step: StepView, payload_max: int | None = None) -> AnyStep:
    """A step in the form of its type; an output of more bytes than `payload_max` is left out."""
    start = iso(step.start_ms)
    output, output_bytes = _cut(step.output, payload_max)
    error = _error(step.error)
    if step.type in ("step", "rollback"):
        delay = "[dynamic]" if step.retry_delay_ms is None else step.retry_delay_ms
        retries = RetriesShape(step.retries_limit, delay, step.backoff)
        sensitive = "output" if step.sensitive else None
        kind = UndoingShape if step.type == "rollback" else StepShape
        return kind(
            step.name,
            start,
            _iso_or_none(step.end_ms),
            step.success,
            output,
            error,
            [_attempt(attempt) for attempt in step.attempts],
            max(step.attempts_total, len(step.attempts)),
            ConfigShape(retries, step.timeout_ms, step.deadline_ms or None, sensitive),
            _iso_or_none(step.retry_at_ms),
            step.interruptions,
            output_bytes,
        )
    if step.type in _CHILD_SHAPES:
        return _CHILD_SHAPES[step.type](
            step.name,
            start,
            _iso_or_none(step.end_ms),
            step.success,
            error,
            output,
            None if step.child is None else ChildRefShape(step.child.workflow, step.child.id),
            output_bytes,
        )
    end = start if step.end_ms is None else iso(step.end_ms)
    if step.type == "sleep":
        return SleepShape(step.name, start, end, step.finished, error)
    if step.type == "termination":
        return TerminationShape(step.name, start, end, TriggerShape(step.source or "unknown"))
    event_type = step.event_type or ""
    return WaitShape(step.name, start, end, step.finished, error, output, event_type, output_bytes)


_CHILD_SHAPES: dict[str, type[ChildStartShape | ChildWaitShape]] = {
    "startChild": ChildStartShape,
    "child": ChildWaitShape,
}


class StepOutputShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step gave, in full: it is `running`, `waiting`, `complete` or `errored`.

    `running` with an error: an attempt failed, and it is to be tried again.
    """

    status: str
    error: ErrorShape | None
    output: msgspec.Raw
    event_type: str | None = None


def step_output(found: StepOutput) -> StepOutputShape:
    """What a step gave."""
    return StepOutputShape(found.status, _error(found.error), _raw(found.output), found.event_type)


def stream_name(found: StepOutput) -> str:
    """The name of a stream: SHA-256 of its content."""
    return ref_of(found.output or NULL).sha256


def detail(view: InstanceView, payload_max: int | None = None) -> Detail:
    """An instance in full; payloads of more bytes than `payload_max` are left out."""
    params, params_bytes = _cut(view.params, payload_max)
    output, output_bytes = _cut(view.output, payload_max)
    return Detail(
        id=view.id,
        run_id=view.run_id,
        workflow_id=view.workflow_uuid,
        status=view.status,
        params=params,
        trigger=TriggerShape(view.source),
        version_id=view.version_id,
        queued=iso(view.queued_ms),
        start=_iso_or_none(view.started_ms),
        end=_iso_or_none(view.ended_ms),
        success=success_of(view.status),
        error=_error(view.error),
        output=output,
        rollback=_rollback(view.rollback),
        step_count=view.step_count,
        steps=[step_shape(step, payload_max) for step in view.steps],
        created_on=iso(view.created_ms),
        modified_on=iso(view.modified_ms),
        code_changed=view.code_changed,
        continued=view.continued,
        parent=_parent(view.parent),
        params_bytes=params_bytes,
        output_bytes=output_bytes,
    )


def _parent(parent: Parent | None) -> ParentShape | None:
    if parent is None:
        return None
    id = split_engine_key(parent.key)[2]
    return ParentShape(parent.workflow, id, parent.run_id, parent.on_end)
