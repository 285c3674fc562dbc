"""What front ends say to Engines, and what Engines show of themselves.

Payloads (`params`, `output`, event payloads) travel as JSON bytes and are never decoded on the
way. Times are wall-clock milliseconds.
"""

from __future__ import annotations

import msgspec

Retention = tuple[int | None, int | None]
"""How long an instance is kept after success, and after another end, in ms; None: as usual."""


class Parent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Which instance a child is of.

    Attributes:
        key: of the parent's Engine.
        run_id: the parent's run then.
        workflow: the name of the parent's workflow.
        call: names the start, once for ever.
        on_end: what becomes of the child when its parent's run ends: `cancel`, `terminate` or
            `abandon`.
        depth: 1 if the parent has none itself.
    """

    key: str
    run_id: str
    workflow: str
    call: str
    on_end: str
    depth: int


class ChildView(msgspec.Struct, frozen=True):
    """A child: the name of its workflow, and its id."""

    workflow: str
    id: str


class CreateRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A create. The instance's id is in the Engine's key.

    Attributes:
        workflow: the workflow's name.
        class_name: entry point within the app.
        version_id, code_hash: the version that the instance stays on.
        params: JSON.
        request_id: the same create sent again carries the same id and gets the same answer;
            another id on an existing instance is `InstanceAlreadyExists`.
        souschefs: how many SousChefs to choose from; 0: it reports to AccountOld, for life.
        source: what made it (`api`, `binding`, ...).
        wait_ms: answer only when the instance has ended, or after so long; 0: at once.
        retention: how long it is kept after success, and after another end, in ms.
        steps_max: how many steps it may make; 0: as many as its code says.
        default_retention: what holds where `retention` does not say.
        run_id, created_ms: what AccountOld has told already; empty and 0: the Engine's own.
        parent: the instance that starts it, if one does.
    """

    workflow: str
    class_name: str
    version_id: str
    code_hash: str
    params: bytes
    request_id: str
    souschefs: int
    source: str
    wait_ms: int
    retention: Retention | None = None
    steps_max: int = 0
    default_retention: Retention | None = None
    run_id: str = ""
    created_ms: int = 0
    parent: Parent | None = None


def retention_of(request: CreateRequest, usual: tuple[int, int]) -> tuple[int, int]:
    """How long the new instance is kept: as its create says, else its front end's defaults."""
    success, other = usual
    for said in (request.default_retention, request.retention):
        if said is not None:
            success = success if said[0] is None else said[0]
            other = other if said[1] is None else said[1]
    return success, other


class ErrorView(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An instance's or a step's error.

    Attributes:
        data: JSON, empty if it carried none.
        at: where user code raised it, oldest call first; see `raised_at`.
    """

    name: str
    message: str
    data: bytes = b""
    at: tuple[str, ...] = ()


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt of a step; `end_ms` and `success` are None while it runs."""

    start_ms: int
    end_ms: int | None
    success: bool | None
    error: ErrorView | None


class StepView(msgspec.Struct, frozen=True):
    """A step as the API shows it.

    Attributes:
        name: public name, `name-<n>`.
        type: `step`, `sleep`, `waitForEvent`, `rollback`, `startChild` (a child is made) or `child`
            (its end is waited for); `termination`: the instance was terminated or cancelled.
        start_ms: when it began.
        end_ms: when it ended; for an open sleep or wait the planned end.
        success: None while open.
        finished: whether it is over.
        output: JSON, once it succeeded; "[REDACTED]" if it is sensitive.
        error: set when it failed for good (a wait's time-out too).
        attempts: newest last; for `step` only. `attempts_total` counts those not shown too.
        retries_limit, retry_delay_ms, backoff, timeout_ms, deadline_ms (0: none), sensitive:
            resolved config, for `step` only. `retry_delay_ms` is None while a function that gives
            it has not been asked, then what it told last.
        interruptions: attempts that a crash cut off; they are no failures.
        retry_at_ms: when the next attempt is due, while it waits for one.
        event_type: for `waitForEvent` only.
        source: for `termination` only: what asked for it.
        child: for `startChild` and `child` only: which.
    """

    name: str
    type: str
    start_ms: int
    end_ms: int | None
    success: bool | None
    finished: bool
    output: bytes | None = None
    error: ErrorView | None = None
    attempts: list[AttemptView] = []
    attempts_total: int = 0
    retries_limit: int = 0
    retry_delay_ms: int | None = 0
    backoff: str = ""
    timeout_ms: int = 0
    retry_at_ms: int | None = None
    event_type: str | None = None
    interruptions: int = 0
    deadline_ms: int = 0
    sensitive: bool = False
    source: str | None = None
    child: ChildView | None = None


class RollbackView(msgspec.Struct, frozen=True):
    """How a rollback ended: `complete` or `failed`, and why."""

    outcome: str
    error: ErrorView | None


class StepOutput(msgspec.Struct, frozen=True):
    """What a step gave.

    Attributes:
        status: `running` (with an error: to be tried again), `waiting` (for an event),
            `complete` or `errored`.
        output: JSON, not cut; None unless complete.
        stream_size: its length, if the output is a stream that may be read; else None.
    """

    status: str
    error: ErrorView | None
    output: bytes | None
    event_type: str | None = None
    stream_size: int | None = None


class InstanceView(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An instance as the API shows it. `steps` is empty unless asked for."""

    id: str
    run_id: str
    workflow: str
    workflow_uuid: str
    version_id: str
    code_hash: str
    status: str
    source: str
    params: bytes
    output: bytes | None
    error: ErrorView | None
    created_ms: int
    queued_ms: int
    started_ms: int | None
    ended_ms: int | None
    modified_ms: int
    step_count: int
    steps: list[StepView] = []
    code_changed: bool = False
    rollback: RollbackView | None = None
    continued: int = 0
    parent: Parent | None = None


class InstanceEvent(msgspec.Struct, frozen=True):
    """Something that happened to an instance (see `watch`).

    Attributes:
        no: its number; grows, never changes, is the cursor past it.
        type: one of `watch.EVENT_TYPES`.
        at_ms: when it happened.
        step: the public name, of all but `workflow_*`.
        attempt: number of the attempt, of `attempt_*`.
        retry_delay_ms: of `attempt_errored`: after how long the next one was to come; None: it
            was the last.
        duration_ms: of sleeps.
        event_type: of waits.
        error: why it failed.
        output: JSON, of what completed; None with `output_cut`: too large to be shown here.
    """

    no: int
    type: str
    at_ms: int
    step: str | None = None
    attempt: int | None = None
    retry_delay_ms: int | None = None
    duration_ms: int | None = None
    event_type: str | None = None
    error: ErrorView | None = None
    output: bytes | None = None
    output_cut: bool = False


class EventPage(msgspec.Struct, frozen=True):
    """A page of an instance's events.

    Attributes:
        cursor: ask for the next page with it.
        ended: the instance has ended and nothing is left.
    """

    events: list[InstanceEvent]
    cursor: int
    ended: bool


class WaitReason(msgspec.Struct, frozen=True):
    """Something that an instance waits for, or does.

    Attributes:
        kind: `slot` (queued), `pause` (it is paused, or is to be), `step` (a body runs),
            `rollback` (what undoes a step runs), `task` (a body runs as a Ray task, or waits for
            its resources), `retry`, `sleep`, `event`, `startChild` (a child is made), `child` (one
            has not ended), `timer` (asyncio's), `worker` (the process it is to run in) or `code`
            (its code can't be loaded).
        name: the step's public name.
        since_ms: since when.
        due_ms: when it is over by itself; while it is paused, as if it were resumed now.
        event_type: of `event`.
        attempt: of `step` the one that runs, of `retry` the next.
        error: of `retry` and `startChild` the last failure; of `code` why; of `task` and `worker`
            what they need.
        child: of `startChild` and `child`, which.
    """

    kind: str
    name: str | None = None
    since_ms: int | None = None
    due_ms: int | None = None
    event_type: str | None = None
    attempt: int | None = None
    error: ErrorView | None = None
    child: ChildView | None = None


class BufferedEvents(msgspec.Struct, frozen=True):
    """Events of a type that have come; `awaited`: a wait asks for them."""

    type: str
    count: int
    oldest_ms: int
    awaited: bool


class WaitingView(msgspec.Struct, frozen=True):
    """Why an instance does not go on.

    Attributes:
        status: its status; `since_ms`: since when.
        reasons: what it waits for; empty once it has ended. `more`: how many are left out.
        buffered: events that have come and were not taken yet.
        awakened: of a queued one: it has run before.
        souschef: number of the SousChef that queues it.
        in_memory: whether it is; a waiting instance leaves memory when idle.
        version_id, code_hash, code_changed: the code it began with; whether it runs on other.
    """

    status: str
    since_ms: int
    reasons: list[WaitReason]
    more: int
    buffered: list[BufferedEvents]
    awakened: bool
    souschef: int
    in_memory: bool
    version_id: str
    code_hash: str
    code_changed: bool


class IndexRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A line of a list."""

    id: str
    status: str
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    modified_ms: int
    version_id: str
    source: str


class PageRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One shard's part of a list page, by keyset.

    Attributes:
        account, workflow_uuid: whose instances.
        after: `(created_ms, id)` of the last row seen; None: from the start.
        newest_first: direction.
        limit: rows at most.
        statuses: only these; empty: all.
        since_ms, until_ms: bounds on `created_ms` (inclusive, exclusive); None: open.
        prefix: only ids that begin with it; the page is then in the order of ids.
    """

    account: str
    workflow_uuid: str
    after: tuple[int, str] | None
    newest_first: bool
    limit: int
    statuses: list[str]
    since_ms: int | None
    until_ms: int | None
    prefix: str = ""


# Engine (kind "Engine", key "account/workflow uuid/instance id"):
#   create(request: CreateRequest) -> InstanceView        (steps empty)
#   view(with_steps: bool, newest_first: bool, most: int = 0) -> InstanceView  (InstanceNotFound)
#   wait(wait_ms: int) -> InstanceView                     answers at the end, or after wait_ms
#   send_event(event_type: str, payload: bytes, request_id: str) -> int  (timestamp in ms;
#       InstanceNotFound, InstanceFinished)
#   events(cursor: int, limit: int, types: list[str], wait_ms: int) -> EventPage
#   waiting() -> WaitingView
#   terminate(request_id: str) -> InstanceView             (InvalidTransition when finished)
# EngineShard (kind "EngineShard", key = the data shard's name):
#   list_page(request: PageRequest) -> list[IndexRow]
#   counts(account: str, workflow_uuid: str, prefix: str) -> dict[str, int]  (status -> number)
