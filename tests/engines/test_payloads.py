"""Typed payloads: what goes in comes out as its type, and what does not fit is named."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from tests.engines.play import Play
from tests.engines.rig import on_virtual_time, rigged
from tests.naming import shown
from toque.engines.failures import PayloadMismatch
from toque.engines.step import WorkflowStep
from toque.engines.workflow import WorkflowEntrypoint, WorkflowEvent, definition_of, workflow
from toque.runtime.codec import check_json, decode_json, decode_json_as, encode_json
from toque.runtime.errors import InvalidPayload, UnencodableValue, WorkflowLoadError

T = TypeVar("T")


class Colour(enum.Enum):
    """An enumeration."""

    RED = "red"


class Level(enum.IntEnum):
    """One of numbers."""

    LOW = 1


@dataclass(frozen=True)
class Line(Generic[T]):
    """A generic dataclass."""

    item: T
    price: Decimal
    tags: frozenset[str] = frozenset()


@dataclass(slots=True)
class Slotted:
    """One with slots."""

    at: datetime
    lines: list[Line[int]] = field(default_factory=list)


class Point(msgspec.Struct, frozen=True):
    """A msgspec struct."""

    x: float
    y: float = 0.0


class Model(pydantic.BaseModel):
    """A pydantic model that is strict, and has other names outside."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    at: datetime
    amount: Decimal
    colour: Colour = Colour.RED
    ident: UUID = pydantic.Field(alias="id")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def doubled(self) -> Decimal:
        """What is made from the rest is not in the way."""
        return self.amount * 2


class Page(pydantic.BaseModel, Generic[T]):
    """A generic model."""

    items: list[T]


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str


class Options(TypedDict, total=False):
    """A typed dict."""

    fast: bool


UserId = NewType("UserId", int)


class Name(str):
    """A string of a class of its own."""


NOON = datetime(2030, 5, 1, 12, 30, 15, 123456, tzinfo=UTC)
MODEL = Model(at=NOON, amount=Decimal("1.10"), id=UUID(int=7))
CASES: list[tuple[Any, Any]] = [
    (int, 2**200),
    (int, -(2**70)),
    (float, 0.1),
    (str, "snowman ☃ \x00 \U0001f600"),
    (bytes, bytes(range(256))),
    (None, None),
    (Any, {"a": [1, None, True]}),
    (datetime, NOON),
    (date, date(2030, 1, 2)),
    (timedelta, timedelta(days=1, microseconds=1)),
    (UUID, UUID(int=5)),
    (Decimal, Decimal("1.0000000000000000000000001")),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (tuple[int, str], (1, "x")),
    (set[int], {1, 2}),
    (dict[int, str], {1: "x"}),
    (dict[UUID, list[Point]], {UUID(int=1): [Point(1.5)]}),
    (dict[Colour, int], {Colour.RED: 1}),
    (Line[Line[int]], Line(Line(1, Decimal(2)), Decimal(3), frozenset("a"))),
    (Slotted, Slotted(NOON, [Line(1, Decimal("0.5"))])),
    (Point, Point(1.0, 2.0)),
    (Model, MODEL),
    (list[Model], [MODEL]),
    (Page[Model], Page[Model](items=[MODEL])),
    (dict[str, Page[int]], {"a": Page[int](items=[1])}),
    (Pair, Pair(1, "x")),
    (Options, {"fast": True}),
    (Point | None, None),
    (Literal["a", "b"], "b"),
    (UserId, UserId(3)),
    (Name, Name("Kim")),
    (Counter[str], Counter("aab")),
    (OrderedDict[str, int], OrderedDict(a=1)),
    (list[T], [1]),  # type: ignore[valid-type]
]


@pytest.mark.parametrize(("expected", "value"), CASES, ids=lambda case: f"{case!r:.30}")
def test_results_come_back_as_their_type_live_and_at_replay(expected: Any, value: Any) -> None:
    def body() -> Any: ...

    body.__annotations__["return"] = expected
    seen = []

    async def run(step: WorkflowStep) -> None:
        seen.append(await step.do("a", body))
        await step.do("b", lambda: None)

    it = Play(run)
    it.finish("a-1", value)
    it.replay()
    assert seen == [value, value]
    assert type(seen[0]) is type(seen[1]) is type(value)


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (int, "5"),
        (str, 5),
        (bool, 1),
        (list[int], ["x"]),
        (Point, {"x": "far"}),
        (Model, {"at": "noon"}),
        (Colour, "green"),
        (None, 0),
        (Name, 5),
        (Counter[str], ["a"]),
    ],
    ids=shown,
)
def test_a_result_that_does_not_fit_fails_at_once_and_is_named(expected: Any, value: Any) -> None:
    def body() -> Any: ...

    body.__annotations__["return"] = expected

    async def run(step: WorkflowStep) -> None:
        try:
            await step.do("a", body)
        except Exception:
            pytest.fail("no handler of run() is asked")

    it = Play(run)
    it.finish("a-1", value)
    name, message = it.error
    assert name == "ResultMismatch"
    assert "step 'a-1' (record 1) of workflow 'test'" in message
    assert getattr(expected, "__name__", str(expected)) in message


class Socket:
    """Something that is no data."""


def plain() -> Socket: ...
def nested() -> dict[str, list[Socket | None]]: ...
def in_fields() -> Line[Socket]: ...


@pytest.mark.parametrize("body", [plain, nested, in_fields])
def test_a_type_that_is_no_data_is_refused_where_the_step_is_called(
    body: Callable[[], Any],
) -> None:
    async def run(step: WorkflowStep) -> None:
        await step.do("dial", body)

    name, message = Play(run).error
    assert name == "InvalidArgument"
    assert message.startswith("the body of step 'dial' returns Socket, which has no JSON form.")
    assert "Wrong:" in message
    assert "Right:" in message


def test_a_workflow_that_takes_or_returns_no_data_does_not_load() -> None:
    @workflow
    async def takes(event: WorkflowEvent[Socket], step: WorkflowStep) -> None: ...

    @workflow
    async def returns(event: WorkflowEvent[Any], step: WorkflowStep) -> Socket: ...

    for entry in (takes, returns):
        with pytest.raises(WorkflowLoadError, match="takes or returns Socket, which has no JSON"):
            definition_of(entry)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "holds the number nan"),
        ([{"a": float("-inf")}], "holds the number -inf"),
        (Point(float("nan")), "holds the number nan"),
        (Slotted(NOON, [Line(float("inf"), Decimal(1))]), "holds the number inf"),
        ("\ud800", "surrogates not allowed"),
        ({"\udc00": 1}, "surrogates not allowed"),
        ({(1, 2): 3}, "as the key of a dict"),
        ({None: 3}, "as the key of a dict"),
        ({True: 3}, "as the key of a dict"),
        ({1: 2, "1": 3}, "two keys that are the same text"),
        ([Line({"red": 1, Colour.RED: 2}, Decimal(1))], "two keys that are the same text"),
        (Socket(), "holds a Socket"),
        ([Socket()], "holds a Socket"),
        ({1j}, "holds a complex"),
    ],
    ids=shown,
)
def test_what_has_no_json_form_is_refused_and_named(value: Any, why: str) -> None:
    with pytest.raises(UnencodableValue, match=r"^the result of step 'a-1'") as caught:
        encode_json(value, "the result of step 'a-1' of workflow 'w'")
    assert why in str(caught.value)


def test_keys_are_text_unless_the_type_says_what_they_were() -> None:
    raw = encode_json({1: "a", 2.5: "b", Colour.RED: "c"})
    assert decode_json(raw) == {"1": "a", "2.5": "b", "red": "c"}
    assert decode_json_as(encode_json({1: "a"}), dict[int, str]) == {1: "a"}
    assert decode_json_as(encode_json(Counter("aab")), Counter[str]) == {"a": 2, "b": 1}


def test_whole_numbers_are_exact_whatever_their_size() -> None:
    for number in (2**53 + 1, 2**64, -(2**64), 10**300):
        assert decode_json(check_json(encode_json(number))) == number


@pytest.mark.parametrize("raw", [b"NaN", b"[Infinity]", b'"\\ud800"', b'{"\\udc00": 1}'])
def test_payloads_from_outside_that_are_no_values_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidPayload):
        check_json(raw)


# --- params, events and the result of run -------------------------------------------------------

virtual = pytest.mark.loop(factory=on_virtual_time)


class Typed(WorkflowEntrypoint):
    """Takes, waits for and returns types."""

    async def run(self, event: WorkflowEvent[Line[int]], step: WorkflowStep) -> Page[Model]:
        assert type(event.payload) is Line
        got = await step.wait_for_event("model", "model", payload_type=Model)
        assert type(got.payload) is Model
        return Page[Model](items=[got.payload])


@virtual
async def test_params_events_and_results_are_typed_over_a_crash(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(Typed, Line(1, Decimal("2.5")))
        await rig.status("waiting")
        rig.restart()
        await rig.call("send_event", "model", encode_json(MODEL), "e1")
        view = await rig.ended()
        assert view.error is None
        assert decode_json_as(view.output or b"", Page[Model]).items == [MODEL]


@virtual
async def test_params_that_do_not_fit_end_the_instance_and_name_the_type(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(Typed, {"item": "x", "price": "1"})
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "PayloadMismatch"
        assert "workflow 'Typed' do not fit" in view.error.message
        assert "Line[int]" in view.error.message


def test_an_event_that_does_not_fit_is_an_error_that_run_may_catch() -> None:
    async def run(step: WorkflowStep) -> Any:
        try:
            await step.wait_for_event("first", "go", payload_type=Point)
        except PayloadMismatch as error:
            text = str(error)
        got = await step.wait_for_event("second", "go", payload_type=Point)
        return [text, got.payload.x]

    it = Play(run)
    it.send("go", {"x": "far"})
    it.send("go", {"x": 2})
    it.look()
    text, x = it.output
    assert "the event of type 'go' that wait 'first-1' (record 1) of workflow 'test'" in text
    assert x == 2
    assert not it.events, "both are used up"
    assert it.replay().output == [text, x]


def test_a_wait_for_what_is_no_data_is_refused() -> None:
    async def run(step: WorkflowStep) -> Any:
        await step.wait_for_event("w", "go", payload_type=list[Socket])

    name, message = Play(run).error
    assert name == "InvalidArgument"
    assert "and Socket has no JSON form" in message


@virtual
async def test_what_run_returns_must_fit_its_annotation(tmp_path: Path) -> None:
    @workflow(name="wrong")
    async def wrong(event: WorkflowEvent[Any], step: WorkflowStep) -> int:
        return event.payload  # type: ignore[no-any-return]

    async with rigged(tmp_path) as rig:
        await rig.create(wrong, "five")
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "ResultMismatch"
        assert "the result of workflow 'wrong' does not fit" in view.error.message
        assert "int" in view.error.message


class Mixed(enum.Enum):
    """Its values are of two types."""

    ONE = 1
    TWO = "b"


@dataclass
class Begun:
    """It takes more than it keeps."""

    a: int
    b: InitVar[int] = 3


class Other(pydantic.BaseModel):
    """Another model."""

    n: int


UNTOLD = [Mixed, dict[Mixed, int], Begun, list[Begun], Model | Other, bytes | str]


@pytest.mark.parametrize("expected", UNTOLD, ids=[str(n) for n in range(len(UNTOLD))])
def test_a_type_that_json_can_not_tell_is_refused_and_never_plain(expected: Any) -> None:
    def body() -> Any: ...

    body.__annotations__["return"] = expected

    async def run(step: WorkflowStep) -> None:
        await step.do("a", body)

    name, message = Play(run).error
    assert name == "InvalidArgument"
    assert "which has no JSON form" in message


@dataclass
class Counted:
    """Made anew it is another."""

    a: int

    def __post_init__(self) -> None:
        self.a += 1


@dataclass
class Trimmed:
    """Made anew it is the same."""

    a: str

    def __post_init__(self) -> None:
        self.a = self.a.strip()


@pytest.mark.parametrize("value", [Counted(1), Trimmed(" x ")], ids=["counted", "trimmed"])
def test_a_result_that_reading_would_change_is_refused(value: Any) -> None:
    def body() -> Any: ...

    body.__annotations__["return"] = type(value)

    async def run(step: WorkflowStep) -> Any:
        return (await step.do("a", body)).a

    it = Play(run)
    it.finish("a-1", value)
    if isinstance(value, Trimmed):
        assert it.output == "x"
    else:
        name, message = it.error
        assert name == "ResultMismatch"
        assert "__post_init__ of Counted changes it each time" in message
