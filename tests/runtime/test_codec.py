"""Payloads at the edge and on the way: sizes, depths, types, and what has no JSON form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toque.runtime import codec, limits
from toque.runtime.errors import InvalidPayload, PayloadTooLarge, UnencodableValue

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


@dataclass
class Point:
    x: int
    when: datetime


class Model(pydantic.BaseModel):
    name: str
    points: list[int]


@given(JSON)
def test_json_data_comes_back_as_it_was(value):
    raw = codec.encode_json(value)
    assert codec.decode_json(raw) == value
    assert codec.check_json(raw) == raw


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Point(1, datetime(2026, 1, 2, tzinfo=UTC)), Point),
        (Model(name="a", points=[1]), Model),
        ([Model(name="a", points=[1])], list[Model]),
        (b"\x00\xff", bytes),
        (UUID(int=7), UUID),
        (Decimal("1.20"), Decimal),
        ({"a": {1, 2}}, dict[str, set[int]]),
        ((1, "a"), tuple[int, str]),
        ({1: "a"}, dict[int, str]),
    ],
)
def test_typed_values_come_back_as_their_type(value, expected):
    assert codec.decode_json_as(codec.encode_json(value), expected) == value


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), [1, {"a": float("-inf")}]])
def test_numbers_without_a_json_form_are_refused_not_nulled(bad):
    with pytest.raises(UnencodableValue, match="no JSON form"):
        codec.encode_json(bad, "the value")


@pytest.mark.parametrize("bad", [object(), {"a": [object()]}, lambda: 1, "\ud800", {(1, 2): 3}])
def test_what_has_no_json_form_is_refused_and_named(bad):
    with pytest.raises(UnencodableValue, match="the result of step 'x-1'"):
        codec.encode_json(bad, "the result of step 'x-1'")


def test_a_value_within_itself_is_refused():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnencodableValue):
        codec.encode_json(value)


def test_a_payload_at_the_limit_passes_and_one_byte_more_does_not():
    text = "x" * (limits.PAYLOAD_BYTES_MAX - 2)
    assert len(codec.encode_json(text)) == limits.PAYLOAD_BYTES_MAX
    codec.check_json(codec.encode_json(text))
    with pytest.raises(PayloadTooLarge):
        codec.encode_json(text + "x")
    with pytest.raises(PayloadTooLarge):
        codec.check_json(json.dumps(text + "x").encode())


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"{", b"nul", b"NaN", b"[1,]", b"'a'", b"\xff", b'"\xff"', b'{"a":1}x', b"1 2"],
)
def test_malformed_json_is_refused(raw):
    with pytest.raises(InvalidPayload):
        codec.check_json(raw)


def test_depth_is_bounded_and_brackets_in_strings_do_not_count():
    deepest = limits.JSON_DEPTH_MAX
    codec.check_json(b"[" * deepest + b"]" * deepest)
    with pytest.raises(InvalidPayload, match="deeper"):
        codec.check_json(b"[" * (deepest + 1) + b"]" * (deepest + 1))
    with pytest.raises(InvalidPayload):
        codec.check_json(b"[" * 100_000 + b"]" * 100_000)
    codec.check_json(json.dumps(["[" * 500, '\\"{' * 500]).encode())
    codec.check_json(b"[" + b"[]," * 500 + b"[]]")


@pytest.mark.parametrize(
    ("raw", "half"),
    [
        (rb'["\ud800", ]', rb"\ud800"),
        (rb'["\n\\\ud83d\ude00\uDC00"', rb"\uDC00"),
        (rb'["\ud83d\ud83d\ude00"', rb"\ud83d"),
        (rb'["\ud83d\ude00"', None),
        (rb'["\\ud800"', None),
        (rb'["\u00e9\"\ue000" ' + b"\\" * 3, None),
    ],
)
def test_half_of_a_surrogate_pair_is_shown(raw: bytes, half: bytes | None) -> None:
    told = codec.json_fault(raw, ValueError("something else"))
    shown = "something else" if half is None else f"{half.decode()} is half of a surrogate pair"
    assert told.startswith(shown)


@given(JSON)
def test_json_depth_is_what_a_parser_would_count(value):
    def depth(item: Any) -> int:
        if isinstance(item, dict):
            return 1 + max(map(depth, item.values()), default=0)
        return 1 + max(map(depth, item), default=0) if isinstance(item, list) else 0

    assert codec.json_depth(codec.encode_json(value)) == depth(value)


def test_the_wire_checks_types():
    raw = codec.pack([1, "a"])
    assert codec.unpack(raw, tuple[int, str]) == (1, "a")
    with pytest.raises(msgspec.ValidationError):
        codec.unpack(raw, tuple[int, int])


def test_a_result_may_not_nest_deeper_than_a_parameter_may():
    deep: Any = 1
    for _ in range(limits.JSON_DEPTH_MAX):
        deep = [deep]
    assert codec.check_json(codec.encode_json(deep))
    with pytest.raises(UnencodableValue, match="deeper"):
        codec.encode_json([deep])
