"""What comes in: bodies and query strings, as typed values or a clear refusal.

Unknown fields and parameters are refused with the list of those that are known: a typo must not
turn into a default. Nothing here knows the transport.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, TypeVar, get_args
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from ..engines.durations import duration_ms, is_duration, json_duration_ms
from ..engines.views import Retention
from ..runtime import limits
from ..runtime.codec import NULL, Whole, check_json, json_fault
from ..runtime.errors import InvalidArgument, InvalidId, InvalidPayload
from .changes import Change, StepRef
from .listing import ListQuery
from .service import NewInstance

T = TypeVar("T")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?\Z")
_DIGITS_MAX = 20
_PATH = re.compile(r"at `\$(?:\[\.\.\.\])?\.(\S+)`")
_JSON_SPACE = b" \t\r\n"


class CreateBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    r"""A create: `params` is any JSON, or a string that holds the JSON text of any value.

    Cloudflare's clients type params as text. So `"{\"n\": 1}"` is an object, `"123"` a number, and
    the text `ada` is `"\"ada\""`. `location_hint` has no effect.
    """

    instance_id: str | None = None
    params: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(NULL))
    location_hint: str | None = None
    instance_retention: RetentionBody | None = None


class RetentionBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """How long an instance is kept after its end: milliseconds, or `"3 days"`."""

    success_retention: Whole | str | None = None
    error_retention: Whole | str | None = None


class StatusBody(msgspec.Struct, forbid_unknown_fields=True):
    """A status change."""

    status: str
    rollback: bool = False
    from_: StepRef | None = msgspec.field(name="from", default=None)


class FilterBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which instances: all of these hold. Statuses with commas between, or as a list."""

    status: str | list[str] | None = None
    prefix: str = ""
    date_start: str | None = None
    date_end: str | None = None


class SelectionBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Several instances: those of `instances`, or those that `filter` finds.

    By a filter at most `limit` are looked at; `cursor` of the answer leads to the next ones.
    """

    instances: list[str] | None = None
    filter: FilterBody | None = None
    cursor: str | None = None
    limit: Whole = limits.CHANGE_BATCH_MAX


class StatusesBody(SelectionBody, kw_only=True):
    """A status change of several instances."""

    status: str
    rollback: bool = False
    from_: StepRef | None = msgspec.field(name="from", default=None)


class StatusesAsked(msgspec.Struct, frozen=True):
    """A change of the instances with these ids, or of those that a query finds."""

    which: list[str] | ListQuery
    change: Change


_create_decoder = msgspec.json.Decoder(CreateBody)
_Batch = msgspec.defstruct(
    "_Batch",
    [
        (f"item_{place}", CreateBody | msgspec.UnsetType, msgspec.UNSET)
        for place in range(limits.CREATE_BATCH_MAX)
    ],
    array_like=True,
    forbid_unknown_fields=True,
)
"""A list that is refused at its first item too many: millions would hold up everybody else."""
_batch_decoder = msgspec.json.Decoder(_Batch)
_status_decoder = msgspec.json.Decoder(StatusBody)
_selection_decoder = msgspec.json.Decoder(SelectionBody)
_statuses_decoder = msgspec.json.Decoder(StatusesBody)


def decode(decoder: msgspec.json.Decoder[T], body: bytes, known: tuple[str, ...]) -> T:
    """A body, or a refusal that names the known fields."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        known, where = _known_at(decoder.type, str(error)) or (known, "")
        raise InvalidArgument(
            f"the body is not as expected: {error}. Known fields{where}: {', '.join(known)}.",
            {"known": list(known)},
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidPayload(f"the body is not valid JSON: {json_fault(body, error)}.") from None


def _known_at(form: Any, fault: str) -> tuple[tuple[str, ...], str] | None:
    """The fields of the innermost object that a fault of a body lies in; None: the body itself.

    The fault ends with a path, such as "at `$.filter.prefix`".
    """
    found = None
    path = _PATH.search(fault)
    for word in path[1].split(".") if path else ():
        name = word.partition("[")[0]
        fields = msgspec.structs.fields(form) if form is not None else ()
        inner = next((each.type for each in fields if each.encode_name == name), None)
        form = _struct_in(inner)
        if form is None:
            break
        named = tuple(each.encode_name for each in msgspec.structs.fields(form))
        found = named, f" of {name!r}"
    return found


def _struct_in(form: Any) -> Any:
    """The one struct that a type may be; None: there is none."""
    if isinstance(form, type) and issubclass(form, msgspec.Struct):
        return form
    inner = (_struct_in(each) for each in get_args(form))
    return next((each for each in inner if each is not None), None)


def _new_instance(body: CreateBody) -> NewInstance:
    raw = bytes(body.params).strip(_JSON_SPACE)
    if raw[:1] == b'"':  # SDKs that type params as a string send JSON inside of it
        raw = _unwrapped(raw)
    return NewInstance(body.instance_id, raw, _retention(body.instance_retention))


def _unwrapped(raw: bytes) -> bytes:
    """The JSON text that a JSON string holds."""
    try:
        inner = msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidPayload(f"params is not valid JSON: {json_fault(raw, error)}.") from None
    try:
        return check_json(inner.encode(), "params")
    except InvalidPayload as error:
        shown = json.dumps(json.dumps(inner[:40], ensure_ascii=False), ensure_ascii=False)
        raise InvalidPayload(
            f"params is a JSON string, and so taken as JSON text, as Cloudflare's clients send it; "
            f'but within it, {error} For a text, quote it twice: {{"params": {shown}}}.',
            error.data,
        ) from None


def _retention(body: RetentionBody | None) -> Retention | None:
    if body is None:
        return None
    return (
        kept_ms(body.success_retention, "success_retention"),
        kept_ms(body.error_retention, "error_retention"),
    )


def kept_ms(given: int | str | None, what: str) -> int | None:
    """How long instances are kept, in ms, as a body gives it; None stays None."""
    if given is None:
        return None
    return json_duration_ms(given, what, max_ms=limits.RETENTION_MAX_MS)


def parse_create(body: bytes) -> NewInstance:
    """The body of a create; an empty one is `{}`."""
    if not body:
        return NewInstance()
    known = CreateBody.__struct_fields__
    return _new_instance(decode(_create_decoder, body, known))


def parse_batch(body: bytes) -> list[NewInstance]:
    """The body of a batch create."""
    found = decode(_batch_decoder, body, CreateBody.__struct_fields__)
    items = msgspec.structs.astuple(found)
    return [_new_instance(item) for item in items if item is not msgspec.UNSET]


_SELECTION_FIELDS = ("instances", "filter", "cursor", "limit")
_STATUS_FIELDS = ("status", "rollback", "from")


def parse_status(body: bytes) -> Change:
    """The body of a status change."""
    found = decode(_status_decoder, body, _STATUS_FIELDS)
    return Change(found.status, found.rollback, found.from_)


def parse_statuses(body: bytes) -> StatusesAsked:
    """The body of a status change of several instances."""
    found = decode(_statuses_decoder, body, (*_SELECTION_FIELDS, *_STATUS_FIELDS))
    change = Change(found.status, found.rollback, found.from_)
    return StatusesAsked(_selected(found), change)


def parse_selection(body: bytes) -> list[str] | ListQuery:
    """The body of a deletion of several instances."""
    return _selected(decode(_selection_decoder, body, _SELECTION_FIELDS))


def _selected(found: SelectionBody) -> list[str] | ListQuery:
    if (found.instances is None) == (found.filter is None):
        raise InvalidArgument(
            "give either instances (a list of ids) or filter (for example "
            '{"status": "queued", "prefix": "folder/7/"}).'
        )
    if found.filter is None:
        return found.instances or []
    return _filtered(found.filter, found.limit, found.cursor)


def _filtered(given: FilterBody, limit: int, cursor: str | None) -> ListQuery:
    if not 1 <= limit <= limits.CHANGE_BATCH_MAX:
        raise InvalidArgument(f"limit must be 1 to {limits.CHANGE_BATCH_MAX}.")
    statuses = given.status
    if not isinstance(statuses, list):
        statuses = [] if statuses is None else parse_selected(statuses)
    elif not statuses:
        raise _none_selected()
    until = _instant(given.date_end, "date_end")
    return ListQuery(
        statuses=tuple(statuses),
        since_ms=_instant(given.date_start, "date_start"),
        until_ms=None if until is None else until + 1,
        newest_first=False,
        per_page=limit,
        cursor=cursor or None,
        prefix=given.prefix,
    )


def parse_query(raw: bytes, known: tuple[str, ...]) -> dict[str, str]:
    """The parameters of a query string, each at most once (but `status`, joined by commas)."""
    if not raw:
        return {}
    if len(raw) > limits.QUERY_BYTES_MAX:
        raise InvalidArgument("the query string is too long.")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise InvalidArgument("the query string is not valid UTF-8, percent-encoded.") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            takes = ", ".join(known) if known else "none"
            raise InvalidArgument(
                f"query parameter {name!r:.80} is not known. Known: {takes}.",
                {"known": list(known)},
            )
        if name in found and name != "status":
            raise InvalidArgument(f"query parameter {name!r} is given twice.")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def parse_duration(text: str, what: str) -> int:
    """A duration as milliseconds: `500ms`, `30s`, `2m`, `10 seconds`; a bare number: seconds."""
    text = text.strip()
    given = float(text) if _SECONDS.match(text) else text
    if not is_duration(given):
        raise InvalidArgument(
            f"{what} {text!r:.80} is no duration; write a number with a unit, for example "
            f"{what}=30s or {what}=500ms."
        )
    return duration_ms(given, what)


def parse_int(query: dict[str, str], name: str, default: int | None) -> int | None:
    """An integer parameter."""
    text = query.get(name)
    if text is None:
        return default
    is_whole = text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX
    value = int(text) if is_whole else -1
    if not 0 <= value <= limits.JSON_INTEGER_MAX:
        raise InvalidArgument(
            f"{name} {text!r:.80} must be a whole number from 0 to {limits.JSON_INTEGER_MAX}."
        )
    return value


def parse_page(query: dict[str, str]) -> tuple[int, int]:
    """`(page, per_page)` of a list that is paged by number."""
    page = parse_int(query, "page", 1) or 0
    per_page = parse_int(query, "per_page", limits.PER_PAGE_DEFAULT) or 0
    ListQuery(page=page, per_page=per_page).check()
    return page, per_page


def parse_choice(query: dict[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of a few words; the first is the default."""
    text = query.get(name, choices[0])
    if text not in choices:
        raise InvalidArgument(f"{name} {text!r:.80} must be one of: {', '.join(choices)}.")
    return text


def parse_words(query: dict[str, str], name: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return _words(query.get(name, ""))


def parse_selected(text: str) -> list[str]:
    """Statuses with commas between them, which select what is changed: at least one."""
    found = list(_words(text))
    if not found:
        raise _none_selected()
    return found


def _none_selected() -> InvalidArgument:
    return InvalidArgument(
        "status is empty, and would select nothing; name one or more, or leave it out for "
        "instances in every status."
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_instant(query: dict[str, str], name: str) -> int | None:
    """An ISO 8601 instant as milliseconds; without a zone it is UTC."""
    return _instant(query.get(name), name)


def _instant(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{name} {text!r:.80} is no ISO 8601 time, for example 2026-01-31T12:00:00Z."
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return int(instant.timestamp() * 1000)


LIST_PARAMETERS = (
    "cursor",
    "page",
    "per_page",
    "status",
    "date_start",
    "date_end",
    "direction",
    "prefix",
)


def parse_list(raw: bytes) -> ListQuery:
    """The query of a list of instances."""
    query = parse_query(raw, LIST_PARAMETERS)
    until = parse_instant(query, "date_end")
    statuses = query.get("status", "")
    return ListQuery(
        statuses=tuple(part.strip() for part in statuses.split(",")) if statuses else (),
        since_ms=parse_instant(query, "date_start"),
        until_ms=None if until is None else until + 1,
        newest_first=parse_choice(query, "direction", ("desc", "asc")) == "desc",
        per_page=parse_int(query, "per_page", None) or _default_per_page(query),
        page=parse_int(query, "page", None),
        cursor=query.get("cursor") or None,
        prefix=query.get("prefix", ""),
    )


def _default_per_page(query: dict[str, str]) -> int:
    return 0 if "per_page" in query else limits.PER_PAGE_DEFAULT


def decode_segment(segment: bytes) -> str:
    """A path segment, percent-decoded once, after routing."""
    try:
        if b"%" in segment:
            segment = unquote_to_bytes(segment)
        return segment.decode()
    except UnicodeDecodeError:
        raise InvalidId("a path segment is not valid UTF-8, percent-encoded.") from None
