"""What the client refuses before it sends anything: one check for each kind of argument.

All raise a typed error (`InvalidArgument`, `InvalidId`, `InvalidPayload`) that shows the value and
a right example; a wrong type never ends in an `AttributeError` from deep inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, NoReturn

from ..engines.durations import Duration, duration_ms
from ..engines.watch import check_types
from ..runtime import guarded, limits
from ..runtime.codec import NULL, encode_json
from ..runtime.errors import InvalidArgument
from ..runtime.ids import check_id_prefix, check_instance_id, check_step_name, check_workflow_name
from .changes import Change, StepRef, check_change, check_ids
from .listing import STATUSES
from .service import NewInstance, check_request_id

SPEC_FIELDS = ("id", "params", "retention")


def refuse(what: str, value: object, wanted: str, right: str) -> NoReturn:
    """Raise `InvalidArgument`: what was given, what is wanted, and an example of it."""
    shown = "None" if value is None else f"{guarded.shown(value)} ({guarded.kind_of(value)})"
    raise InvalidArgument(f"{what} must be {wanted}, not {shown}. Right: {right}.")


def text(value: object, what: str, right: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        refuse(what, value, "a text", right)
    return characters(value, what, right)


def characters(value: str, what: str, right: str) -> str:
    """A text that can be sent: without bytes of a command line that are no UTF-8, say."""
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(what, value, "a text without halves of surrogate pairs", right)
    return value


def path(value: object, what: str, right: str) -> str | PathLike[str]:
    """The path of a file or a folder."""
    if not isinstance(value, (str, PathLike)) or not os.fspath(value):
        refuse(what, value, "a path", right)
    return value


def workflow(value: object) -> str:
    """A workflow's name."""
    if isinstance(value, type) or callable(value):
        refuse("the workflow", value, "its name", f"{getattr(value, '__name__', 'Order')!r}")
    return check_workflow_name(value)


def flag(value: object, what: str) -> bool:
    """True or False; a text such as "false" would count as true."""
    if not isinstance(value, bool):
        refuse(what, value, "True or False", f"{what}=True")
    return value


def whole(value: object, what: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        refuse(what, value, f"a whole number from {least} to {most}", f"{what}={max(least, 1)}")
    return value


def seconds(value: Duration | None, what: str) -> float | None:
    """Seconds of a duration; None stays None."""
    return None if value is None else duration_ms(value, what) / 1_000


def request_id(value: object) -> str:
    """A request id that a caller chose."""
    if not isinstance(value, str):
        refuse("request_id", value, "a text", "request_id='order-42-pay'")
    return check_request_id(value)


def texts(value: object, what: str, right: str) -> list[str]:
    """Several texts. One text is not several: its letters would be taken for them."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        refuse(what, value, "a list of texts", right)
    found = list(value)
    for each in found:
        if not isinstance(each, str):
            refuse(f"each of {what}", each, "a text", right)
    return found


def ids(value: object) -> list[str]:
    """Ids of a batch."""
    found = texts(value, "ids", "['order-1', 'order-2']")
    check_ids(found)
    return found


def statuses(value: object, what: str = "status") -> list[str]:
    """Statuses to filter by: one, or several."""
    found = [value] if isinstance(value, str) else texts(value, what, f"{what}=['queued']")
    for one in found:
        if one not in STATUSES:
            raise InvalidArgument(
                f"status {guarded.shown(one)} is not one of {', '.join(STATUSES)}."
            )
    return found


def selected(value: object, what: str = "status") -> list[str]:
    """Statuses that select what is changed: at least one, as none could mean nothing or all."""
    found = statuses(value, what)
    if not found:
        refuse(what, value, "a status or several, or left out for all", f"{what}=['queued']")
    return found


def date(value: object, what: str) -> str:
    """A date, which the server reads."""
    return text(value, what, "'2026-01-31T12:00:00Z'")


def selection(
    status: object, prefix: str, date_start: object, date_end: object, limit: object
) -> dict[str, Any]:
    """A filter of instances, as a body; `cursor` in it is where to go on."""
    found: dict[str, Any] = {}
    if status is not None:
        found["status"] = selected(status)
    if prefix:
        found["prefix"] = check_id_prefix(prefix)
    for name, given in (("date_start", date_start), ("date_end", date_end)):
        if given is not None:
            found[name] = date(given, name)
    most = whole(limit, "limit", 1, limits.CHANGE_BATCH_MAX)
    return {"filter": found, "limit": most, "cursor": None}


def event_types(value: object) -> list[str]:
    """Types of events to filter by."""
    return sorted(check_types(texts(value, "types", "types=['step_completed']")))


def change(value: object) -> Change:
    """A change of status, or its name."""
    if isinstance(value, str):
        value = Change(value)
    if not isinstance(value, Change):
        refuse("change", value, "a change of status or its name", "'pause'")
    flag(value.rollback, "rollback")
    step = value.from_step
    if step is not None and not isinstance(step, StepRef):
        refuse("from_step", step, "a StepRef", "StepRef('charge', 2)")
    return check_change(value)


def choice(value: object, what: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        refuse(what, value, f"one of {', '.join(choices)}", f"{what}={choices[0]!r}")
    return value


def step_name(value: object) -> str:
    """A step's public name, such as `fetch-1`."""
    return check_step_name(value)


def callback(value: object, what: str) -> Callable[..., Any] | None:
    """A function to call, or None."""
    if value is not None and not callable(value):
        refuse(what, value, "a function or None", f"{what}=print")
    return value


def new_instance(id: object, params: Any, retention: object = None) -> NewInstance:
    """One create, its payload as JSON."""
    if id is not None:
        check_instance_id(id)
    kept = None
    if retention is not None:
        if not isinstance(retention, tuple | list) or len(retention) != 2:
            raise InvalidArgument(
                f"retention {guarded.shown(retention)} is not a pair of durations: of success, and "
                "of any other end. Right: ('7 days', '30 days')."
            )
        success, other = (
            duration_ms(one, "retention", max_ms=limits.RETENTION_MAX_MS) for one in retention
        )
        kept = success, other
    raw = NULL if params is None else encode_json(params, "params")
    return NewInstance(id if isinstance(id, str) else None, raw, kept)


def spec(item: object, index: int) -> NewInstance:
    """One of many to create."""
    where = f"instance {index}"
    if not isinstance(item, Mapping):
        refuse(where, item, "a mapping", "{'id': 'order-1', 'params': {'n': 1}}")
    unknown = [key for key in item if key not in SPEC_FIELDS]
    if unknown:
        raise InvalidArgument(
            f"{where}: {guarded.shown(unknown[0])} is not known; give "
            f"{', '.join(map(repr, SPEC_FIELDS))}, all optional. "
            "Right: {'id': 'order-1', 'params': {'n': 1}}."
        )
    return new_instance(item.get("id"), item.get("params"), item.get("retention"))
