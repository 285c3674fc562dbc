"""What front ends say to Engines, and what Engines show of themselves.

Payloads (`params`, `output`, event payloads) travel as JSON bytes and are never decoded on the
way. Times are wall-clock milliseconds.
"""

from __future__ import annotations

import msgspec


class CreateRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A create. The instance's id is in the Engine's key.

    Attributes:
        workflow: the workflow's name.
        class_name: entry point within the app.
        version_id, code_hash: the version that the instance stays on.
        params: JSON.
        request_id: the same create sent again carries the same id and gets the same answer;
            another id on an existing instance is `InstanceAlreadyExists`.
        souschefs: how many SousChefs to choose from.
        source: what made it (`api`, `binding`, ...).
        wait_ms: answer only when the instance has ended, or after so long; 0: at once.
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


class ErrorView(msgspec.Struct, frozen=True):
    """An instance's or a step's error."""

    name: str
    message: str


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
        type: `step`, `sleep` or `waitForEvent`.
        start_ms: when it began.
        end_ms: when it ended; for an open sleep or wait the planned end.
        success: None while open.
        finished: whether it is over.
        output: JSON, once it succeeded.
        error: set when it failed for good (a wait's time-out too).
        attempts: newest last; for `step` only. `attempts_total` counts those not shown too.
        retries_limit, retry_delay_ms, backoff, timeout_ms: resolved config, for `step` only.
        retry_at_ms: when the next attempt is due, while it waits for one.
        event_type: for `waitForEvent` only.
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
    retry_delay_ms: int = 0
    backoff: str = ""
    timeout_ms: int = 0
    retry_at_ms: int | None = None
    event_type: str | None = None


class InstanceView(msgspec.Struct, frozen=True):
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
    """

    account: str
    workflow_uuid: str
    after: tuple[int, str] | None
    newest_first: bool
    limit: int
    statuses: list[str]
    since_ms: int | None
    until_ms: int | None


# Engine (kind "Engine", key "account/workflow uuid/instance id"):
#   create(request: CreateRequest) -> InstanceView        (steps empty)
#   view(with_steps: bool, newest_first: bool) -> InstanceView          (InstanceNotFound)
#   wait(wait_ms: int) -> InstanceView                     answers at the end, or after wait_ms
#   send_event(event_type: str, payload: bytes, request_id: str) -> int  (timestamp in ms;
#       InstanceNotFound, InstanceFinished)
#   terminate(request_id: str) -> InstanceView             (InvalidTransition when finished)
# EngineShard (kind "EngineShard", key = the data shard's name):
#   list_page(request: PageRequest) -> list[IndexRow]
#   counts(account: str, workflow_uuid: str) -> dict[str, int]   (status -> number)
