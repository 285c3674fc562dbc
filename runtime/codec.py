"""Encodings: JSON for payloads (on disk and over HTTP), MessagePack between shards.

A payload is encoded once, where it is made, and travels as bytes. What a step returns is always
handed on as the *decoded* form of its recorded bytes, live and at replay alike, so that a value
never changes its type by being replayed. Nothing here can run code from data.
"""

from __future__ import annotations

import inspect
import math
import re
from array import array
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, TypeVar, get_origin

import msgspec

from . import limits
from .errors import InvalidPayload, PayloadTooLarge, UnencodableValue
from .guarded import shown

T = TypeVar("T")
NULL = b"null"
Whole = Annotated[int, msgspec.Meta(ge=-limits.JSON_INTEGER_MAX, le=limits.JSON_INTEGER_MAX)]
"""A whole number that comes in as JSON. Any int would do for JSON, but not for what lies behind:
MessagePack and stores end at 64 bits."""

_NESTING = bytes(1 if byte in b"[{" else 255 for byte in range(256))
"""What a bracket adds to the depth: one, or minus one (as a signed byte)."""
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _model_or_refuse(value: Any) -> Any:
    dump = getattr(type(value), "model_dump", None)  # pydantic, without importing it
    if dump is not None:
        return dump(value, mode="json", by_alias=True, round_trip=True)
    if isinstance(value, str):
        return str.__getitem__(value, slice(None))  # of a class of its own
    if isinstance(value, int) and type(value) is not bool:
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise NotImplementedError(type(value).__qualname__)


_ONLY_VALUES = ("tuple", "NoneType", "bool", "frozenset")
"""What the encoder takes as values, and gives to its hook as keys only."""
_PLAIN = (str, int, float, dict, list, tuple, set)


def has_json_form(cls: Any) -> bool:
    """Whether values of a class may have a JSON form; True for all that is no concrete class."""
    if not isinstance(cls, type) or cls is object or inspect.isabstract(cls):
        return True
    if hasattr(cls, "model_validate_json") or hasattr(cls, "__toque_stream__"):
        return True
    if issubclass(cls, _PLAIN):
        return True
    return cls.__module__ in _ABSTRACT_MODULES or getattr(cls, "_is_protocol", False)


_ABSTRACT_MODULES = ("collections.abc", "typing", "typing_extensions")


def _model_or_fail(expected: type, value: Any) -> Any:
    validate = getattr(expected, "model_validate_json", None)
    if validate is not None:  # as JSON, which strict models need: a datetime is a string there
        return validate(_json_encoder.encode(value))
    kind = get_origin(expected) or expected
    if issubclass(kind, _PLAIN):
        written_as = next(base for base in (str, int, float, dict, list) if _is_written(kind, base))
        if not isinstance(value, written_as):
            raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
        return kind(value)
    if isinstance(value, kind):
        return value
    raise NotImplementedError(kind.__qualname__)


def _is_written(kind: type, base: type) -> bool:
    return issubclass(kind, base) or (base is list and issubclass(kind, (tuple, set)))


_json_encoder = msgspec.json.Encoder(enc_hook=_model_or_refuse)
_json_decoder = msgspec.json.Decoder()
_wire_encoder = msgspec.msgpack.Encoder(enc_hook=_model_or_refuse)
pack: Callable[[Any], bytes] = _wire_encoder.encode
"""Any message-like value as MessagePack."""


def encode_json(value: Any, what: str = "value") -> bytes:
    """The value as JSON bytes.

    Args:
        value: JSON-like data, dataclasses, msgspec structs, pydantic models, datetimes, bytes,
            UUIDs, decimals, enums, sets and tuples.
        what: names the value in messages, for example "result of step 'charge-1'".

    Raises:
        UnencodableValue: the value, or a part of it, has no JSON form.
        PayloadTooLarge: over `PAYLOAD_BYTES_MAX`.
    """
    try:
        raw = _json_encoder.encode(value)
    except NotImplementedError as error:
        if str(error) in _ONLY_VALUES:
            raise UnencodableValue(
                f"{what} holds a {error} as the key of a dict; keys can be text, numbers, enums, "
                "UUIDs and dates. Right: a list of pairs.",
                {"type": str(error)},
            ) from None
        raise UnencodableValue(
            f"{what} holds a {error}, which has no JSON form. Return data (dict, list, str, "
            "number, dataclass, pydantic model, datetime, bytes), for example {'id': obj.id}.",
            {"type": str(error)},
        ) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        name = type(value).__qualname__
        raise UnencodableValue(
            f"{what} ({name}) can't be written as JSON: {error}", {"type": name}
        ) from None
    if len(raw) > limits.PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(
            f"{what} takes {len(raw)} bytes as JSON; at most {limits.PAYLOAD_BYTES_MAX} fit."
        )
    if NULL in raw:
        _refuse_nonfinite(value, what)
    if raw.count(b'":') > 1:  # more than one key in all
        _refuse_twin_keys(value, what)
    if len(raw) > limits.JSON_DEPTH_MAX and _is_too_deep(raw):
        raise UnencodableValue(
            f"{what} nests deeper than {limits.JSON_DEPTH_MAX} levels; give back a flatter shape.",
            {"type": type(value).__qualname__},
        )
    return raw


def _is_too_deep(raw: bytes) -> bool:
    most = limits.JSON_DEPTH_MAX
    if len(raw) <= most or raw.count(b"[") + raw.count(b"{") <= most:
        return False
    return json_depth(raw) > most


def _refuse_nonfinite(value: Any, what: str) -> None:
    """JSON has no NaN or infinity; the encoder would write null for them, silently."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                raise UnencodableValue(
                    f"{what} holds the number {item}, which has no JSON form.", {"type": "float"}
                )
        else:
            todo.extend(_parts(item))


def _refuse_twin_keys(value: Any, what: str) -> None:
    """Keys of objects are text: `1` and `"1"` would be one key, and one value would be lost."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict) and not _TEXT.issuperset(map(type, item)):
            written = _json_decoder.decode(_json_encoder.encode(dict.fromkeys(item)))
            if len(written) < len(item):
                raise UnencodableValue(
                    f"{what} holds a dict with two keys that are the same text as JSON, among "
                    f"{shown(list(item), 100)}. Wrong: `{{1: a, '1': b}}`. Right: keys of one "
                    "type.",
                    {"type": "dict"},
                )
        if not hasattr(type(item), "model_dump"):  # a model writes its keys itself
            todo.extend([part for part in _parts(item) if type(part) not in _SCALARS])


_TEXT = frozenset([str])
_SCALARS = frozenset([str, int, float, bool, bytes, type(None)])


def _parts(item: Any) -> Iterable[Any]:
    """What a value is made of; of one without parts nothing."""
    if isinstance(item, (list, tuple, set, frozenset)):
        return item
    fields: dict[Any, Any] | None = (
        item if isinstance(item, dict) else getattr(item, "__dict__", None)
    )
    if fields is not None:
        return fields.values()
    kind = type(item)
    names: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__slots__", ())
    return [getattr(item, name, None) for name in names]


def decode_json(raw: bytes) -> Any:
    """The value of JSON bytes that toque wrote itself."""
    return _json_decoder.decode(raw)


def decode_json_as(raw: bytes, expected: Any) -> Any:
    """The value of JSON bytes as an annotated type (`Any` gives plain data)."""
    return _decoder_for(expected).decode(raw)


@lru_cache(maxsize=4096)
def _decoder_for(expected: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(expected, dec_hook=_model_or_fail)


def convert_plain(value: Any, expected: Any) -> Any:
    """Plain data, as `decode_json` gives it, as an annotated type."""
    return decode_json_as(_json_encoder.encode(value), expected)


def type_name(expected: Any) -> str:
    """A type in messages."""
    if isinstance(expected, type) and not hasattr(expected, "__args__"):
        return expected.__qualname__
    return f"{shown(expected, 200)}"


def json_depth(raw: bytes) -> int:
    """How deep arrays and objects nest in (well-formed) JSON bytes.

    Without a loop in Python: a payload of nothing but brackets must not hold up everybody else.
    """
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")  # no quote within a string is left
    shape = b"".join(bare.split(b'"')[::2]).translate(_NESTING, _NO_BRACKETS)
    return max(accumulate(array("b", shape)), default=0)


_HALF_PAIR = re.compile(
    rb"(?:[^\\]++|\\(?!u[dD][89a-fA-F]).|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+(\\u[dD]...)",
    re.DOTALL,
)


def json_fault(raw: bytes, error: Exception) -> str:
    """What is wrong with bytes that are no JSON, in words."""
    if not raw.strip():
        return "it is empty"
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    if (half := _HALF_PAIR.match(raw)) is not None:
        shown_half = half[1].decode("ascii", "replace")
        return f"{shown_half} is half of a surrogate pair, which is no character"
    return str(error)


def check_json(raw: bytes, what: str = "payload") -> bytes:
    """JSON bytes from outside: refused unless well-formed, small and shallow enough.

    Raises:
        PayloadTooLarge, InvalidPayload
    """
    if len(raw) > limits.PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(
            f"{what} has {len(raw)} bytes; at most {limits.PAYLOAD_BYTES_MAX} are taken."
        )
    if _is_too_deep(raw):
        raise InvalidPayload(f"{what} nests deeper than {limits.JSON_DEPTH_MAX} levels.")
    try:
        _json_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidPayload(f"{what} is not valid JSON: {json_fault(raw, error)}.") from None
    return raw


def unpack(raw: bytes | msgspec.Raw, expected: type[T] | Any = Any) -> T:
    """The value of MessagePack bytes, checked against a type."""
    decoder: msgspec.msgpack.Decoder[T] = _unpacker_for(expected)  # type: ignore[arg-type]
    return decoder.decode(raw)


@lru_cache(maxsize=4096)
def _unpacker_for(expected: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(expected, dec_hook=_model_or_fail)
