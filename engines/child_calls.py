"""What `run` asks of children, as data: a child to make, its id, how its end is told.

Pure. The core (`claiming`, `replay`) and the Engine (`parenting`) share it.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

from ..runtime.codec import encode_json, pack, unpack
from ..runtime.errors import (
    CallerError,
    InstanceAlreadyExists,
    InstanceNotFound,
    WorkflowNotFound,
)
from ..runtime.guarded import bounded, called, kind_of, text_of
from ..runtime.limits import (
    CHILD_DEPTH_MAX,
    CHILD_RETRY_MS,
    CHILDREN_PER_INSTANCE_MAX,
    ERROR_DATA_BYTES_MAX,
    INSTANCE_ID_CHARS_MAX,
)
from .config import Resolved
from .failures import (
    CHILD_FAILED,
    FAILED,
    ID_TAKEN,
    MISMATCHED,
    NO_WORKFLOW,
    NOT_STARTED,
    TOO_MANY_CHILDREN,
    RecordedError,
    data_of,
)
from .journal import ChildCall, ChildEnd, Record
from .views import Parent

CANCEL_IT, TERMINATE_IT, ABANDON_IT = "cancel", "terminate", "abandon"
ON_PARENT_END: Final = (CANCEL_IT, TERMINATE_IT, ABANDON_IT)
"""What may become of a child when its parent's run ends."""
STARTING: Final = Resolved(limit=1 << 40, delay_ms=CHILD_RETRY_MS, backoff="linear", timeout_ms=0)
"""A refusal that passes is no failure of the author's: it is asked for until it is made."""


class ChildrenPort(Protocol):
    """Makes children: a front end, which the floor above implements."""

    async def start(self, account: str, call: ChildCall, parent: Parent) -> str:
        """Make a child, or find the one that the same call has made; gives its Engine's key.

        Raises:
            ToqueError: it was not made, or (of those that pass) that is not known.
        """


class Wanted(NamedTuple):
    """A child to make; an empty id is derived (`child_id`)."""

    workflow: str
    id: str
    on_end: str
    params: bytes


def child_id(parent_id: str, call: str) -> str:
    """The id of a child that was given none: under its parent's, and the same at each replay.

    >>> child_id("order-7", "5f1.3")
    'order-7/5ed7a2f0d2dc0dc8'
    """
    made = blake2b(call.encode(), digest_size=8).hexdigest()
    whole = f"{parent_id}/{made}"
    return whole if len(whole) <= INSTANCE_ID_CHARS_MAX else made


def ordinal_of(call: str) -> int:
    """The ordinal of the record that started a child, by the name of its call."""
    return int(call.rpartition(".")[2])


# --- the start ------------------------------------------------------------------------------


def started(call: ChildCall) -> bytes:
    """The result of a start, as the journal keeps it and people see it."""
    return encode_json({"workflow": call.workflow, "id": call.id})


def is_made(error: BaseException) -> bool:
    """Whether a create that failed so says that the child was there, and is deleted."""
    return isinstance(error, InstanceNotFound)


def not_started(call: ChildCall, error: BaseException) -> RecordedError:
    """Why a child could not be made; of kind `FAILED` if it may be later."""
    told = f"child {call.id!r} of workflow {call.workflow!r} can't be started: {text_of(error)}"
    if not isinstance(error, CallerError) or error.retryable or error.overloaded:
        return RecordedError(FAILED, kind_of(error), bounded(told))
    kind, name = NOT_STARTED, "ChildNotStarted"
    if isinstance(error, InstanceAlreadyExists):
        kind, name = ID_TAKEN, "ChildIdTaken"
    elif isinstance(error, WorkflowNotFound):
        kind, name = NO_WORKFLOW, "ChildWorkflowNotFound"
    data = {"workflow": call.workflow, "id": call.id, "code": error.code}
    return RecordedError(kind, name, bounded(told), encode_json(data))


def too_many(call: ChildCall, depth: int, children: int) -> RecordedError | None:
    """The refusal of a child that is one too many, or too deep; None: there is room for it."""
    if depth > CHILD_DEPTH_MAX:
        why = f"children start children {CHILD_DEPTH_MAX} deep already"
    elif children > CHILDREN_PER_INSTANCE_MAX:
        why = (
            f"the instance has {CHILDREN_PER_INSTANCE_MAX} children that have not ended. Right: "
            "wait for some of them first"
        )
    else:
        return None
    told = f"child {call.id!r} of workflow {call.workflow!r} can't be started: {why}."
    data = {"workflow": call.workflow, "id": call.id, "code": "child.too_many"}
    return RecordedError(TOO_MANY_CHILDREN, "TooManyChildren", bounded(told), encode_json(data))


# --- the end --------------------------------------------------------------------------------


def take_child_end(record: Record, payload: bytes, decode: Callable[[Record], Any] | None) -> None:
    """Put what a child's end tells into the record of the wait for it."""
    call = record.child
    assert call is not None, "a wait for a child names it"
    end: ChildEnd = unpack(payload, ChildEnd)
    record.result = end.output
    if end.status != "complete":
        record.error = _child_failed(call, end)
        return
    unfit, _ = called(decode, record) if decode else (None, None)
    if unfit is not None:
        told = (
            f"the output of child {call.id!r} of workflow {call.workflow!r} does not fit what its "
            f"run() is annotated to return: {text_of(unfit)}"
        )
        record.error = RecordedError(MISMATCHED, "PayloadMismatch", bounded(told))


def end_of(record: Record) -> bytes | None:
    """The end that a wait was given, as it came; None: it was given none."""
    error = record.error
    if not record.event_seq:
        return None
    if record.result is not None or error is None:
        return pack(ChildEnd("complete", record.result, None))
    told = data_of(error) or {}
    inner = told.get("error")
    kept = None
    if inner:
        data = encode_json(inner["data"]) if inner.get("data") is not None else b""
        kept = RecordedError(FAILED, inner["name"], inner["message"], data)
    return pack(ChildEnd(told.get("status", "errored"), None, kept))


def _child_failed(call: ChildCall, end: ChildEnd) -> RecordedError:
    error = end.error
    text = f"child {call.id!r} of workflow {call.workflow!r} is {end.status}"
    data: dict[str, Any] = {"workflow": call.workflow, "id": call.id, "status": end.status}
    if error is not None:
        text = f"{text}: {error.name}: {error.message}"
        data["error"] = {"name": error.name, "message": error.message, "data": data_of(error)}
    raw = encode_json(data)
    if len(raw) > ERROR_DATA_BYTES_MAX:
        lost = f"the child's data takes {len(error.data) if error else 0} bytes; ask the child"
        data["error"] = {**data["error"], "data": {"lost": lost}}
        raw = encode_json(data)
    return RecordedError(CHILD_FAILED, "ChildFailed", bounded(text), raw)
