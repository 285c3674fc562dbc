"""What authors write: durations, settings, bodies and their parameters, declared steps."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.play import START_MS, Play
from tests.naming import shown
from toque.engines.body_call import StepContext
from toque.engines.config import Retries, StepConfig, resolve
from toque.engines.durations import duration_ms, instant_ms
from toque.engines.shapes import shape_of
from toque.engines.step import WorkflowStep
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument, InvalidId

if TYPE_CHECKING:
    from decimal import Decimal


# --- durations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (0, 0),
        (1, 1_000),
        (0.5, 500),
        (0.0001, 1),
        (timedelta(minutes=2), 120_000),
        ("10 seconds", 10_000),
        ("1 second", 1_000),
        ("1.5 hours", 5_400_000),
        ("500 ms", 500),
        ("3 days", 259_200_000),
        ("2 weeks", 1_209_600_000),
        ("1 month", 2_592_000_000),
        ("1 year", 31_536_000_000),
        (" 5MINUTES ", 300_000),
        ("5 s", 5_000),
        ("5s", 5_000),
        ("5 sec", 5_000),
        ("5 ms", 5),
        ("2 m", 120_000),
        ("2 min", 120_000),
        ("2 mins", 120_000),
        ("2 h", 7_200_000),
        ("2 d", 172_800_000),
        ("2 w", 1_209_600_000),
    ],
    ids=shown,
)
def test_durations(given: Any, ms: int) -> None:
    assert duration_ms(given, "d") == ms


@pytest.mark.parametrize(
    "given",
    [None, True, "soon", "5", "5 parsecs", "-1 second", -1, float("nan"), float("inf"), "2 years",
     366 * 86_400, timedelta(-1), [], b"1 second", 10**400, -(10**400), 10**5_000, 1e308,
     "9" * 400 + "s"],
    ids=lambda given: shown(given) if given != 10**5_000 else "unprintable",
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_an_example(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^timeout of step 'x' is .*(Right|it must be)"):
        duration_ms(given, "timeout of step 'x'")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("3 dogs", "d is '3 dogs', which is no duration. Right: '5 minutes', '30s', '500 ms'."),
        (None, "'500 ms', timedelta(minutes=5), or a number of seconds, such as 300."),
        ("900 days", "d is '900 days'; it must be at most 30 days."),
        (900 * 86_400, "d is 77760000 (900 days); it must be at most 30 days. (A plain number is"),
        (timedelta(days=31), "(31 days); it must be at most 30 days."),
        (-1, "d is -1 (-1 s); it must be at least 1 ms."),
        (10**400, "(beyond all bounds); it must be at most 30 days."),
    ],
)
def test_a_refused_duration_is_told_in_words(given: Any, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        duration_ms(given, "d", min_ms=1, max_ms=30 * limits.DAY_MS)
    assert told in refused.value.message


def test_instants() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert instant_ms(at, "i") == instant_ms(at.timestamp(), "i") == 1_893_456_000_000
    for bad in (
        datetime(2030, 1, 1),
        "2030",
        None,
        float("nan"),
        1_893_456_000_000,
        -1,
        True,
        10**400,
    ):
        with pytest.raises(InvalidArgument, match="end of sleep"):
            instant_ms(bad, "end of sleep")


# --- settings -----------------------------------------------------------------------------------


def test_settings_have_cloudflares_defaults() -> None:
    config = resolve(None, "s")
    assert (config.limit, config.delay_ms, config.backoff, config.timeout_ms) == (
        5, 10_000, "exponential", 600_000,
    )  # fmt: skip
    assert resolve({}, "s") == resolve(StepConfig(), "s") == config


def test_settings_from_dicts_and_from_dataclasses_are_the_same() -> None:
    as_dict = {"retries": {"limit": 2, "delay": 1, "backoff": "linear"}, "timeout": "1 minute"}
    as_class = StepConfig(
        retries=Retries(limit=2, delay="1 second", backoff="linear"), timeout=timedelta(minutes=1)
    )
    assert resolve(as_dict, "s") == resolve(as_class, "s")
    assert resolve({"retries": {"limit": 0}}, "s").limit == 0


@pytest.mark.parametrize(
    "config",
    [
        5,
        {"retry": {}},
        {"retries": 5},
        {"retries": {"limit": -1}},
        {"retries": {"limit": 1.0}},
        {"retries": {"limit": True}},
        {"retries": {"limit": limits.STEP_RETRIES_MAX + 1}},
        {"retries": {"delay": "soon"}},
        {"retries": {"delay": lambda: 1}},
        {"retries": {"backoff": "random"}},
        {"retries": {"backoff": []}},
        {"retries": {"max": 1}},
        {"timeout": 0},
        {"timeout": "0 ms"},
        {"timeout": "2 years"},
    ],
    ids=shown,
)
def test_bad_settings_are_refused_where_they_are_given(config: Any) -> None:
    with pytest.raises(InvalidArgument, match="'s'"):
        resolve(config, "s")


def test_backoff_is_bounded() -> None:
    config = resolve({"retries": {"limit": 10_000, "delay": "1 day"}}, "s")
    assert config.delay_after_ms(9_999) == limits.RETRY_DELAY_MAX_MS


# --- bodies -------------------------------------------------------------------------------------


def test_shapes() -> None:
    async def coroutine(ctx: StepContext) -> int: ...

    class Callable:
        async def __call__(self, ctx: Any) -> Any: ...

        def method(self) -> bytes: ...

    assert shape_of(coroutine, "s").is_async
    assert shape_of(coroutine, "s").takes_ctx
    assert shape_of(coroutine, "s").returns is int
    assert shape_of(functools.partial(coroutine, ctx=1), "s").is_async
    assert shape_of(Callable(), "s").is_async
    assert shape_of(Callable().method, "s").returns is bytes
    assert not shape_of(lambda a=1, *b, **c: a, "s").needs
    assert shape_of(lambda a, b: a, "s").needs == ("a", "b")
    assert shape_of(dict, "s").needs == ()


def test_annotations_that_mean_nothing_at_run_time_give_plain_data() -> None:
    class Local: ...

    def for_checkers() -> Decimal: ...

    def of_no_json_type() -> Iterator[int]: ...

    def of_a_plain_class() -> list[Local]: ...

    assert shape_of(for_checkers, "s").returns is Any
    assert shape_of(of_no_json_type, "s").returns is Any
    assert shape_of(of_a_plain_class, "s").returns is Any


@pytest.mark.parametrize("body", [5, None, "x", (n for n in "ab")], ids=shown)
def test_what_cannot_be_called_is_refused(body: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"step 'pay'|no function"):
        shape_of(body, "step 'pay'")


# --- calls of step ------------------------------------------------------------------------------


def refused(call: Any) -> tuple[str, str]:
    """How `run` ends that makes a bad call."""

    async def run(step: WorkflowStep) -> Any:
        result = call(step)
        if asyncio.iscoroutine(result):
            await result

    play = Play(run)
    assert not play.records
    return play.error


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda step: step.do("", lambda: 1), "InvalidId"),
        (lambda step: step.do("a\n", lambda: 1), "InvalidId"),
        (lambda step: step.do("x" * 257, lambda: 1), "InvalidId"),
        (lambda step: step.do(5, lambda: 1), "InvalidId"),
        (lambda step: step.do("a", 5), "InvalidArgument"),
        (lambda step: step.do("a", lambda card: 1), "InvalidArgument"),
        (lambda step: step.do("a", lambda: 1, {"timeot": 1}), "InvalidArgument"),
        (lambda step: step.do("a", {"timeout": 1}, lambda: 1), "InvalidArgument"),
        (lambda step: step.sleep("a", None), "InvalidArgument"),
        (lambda step: step.sleep("a", "366 days"), "InvalidArgument"),
        (lambda step: step.sleep_until("a", datetime(2030, 1, 1)), "InvalidArgument"),
        (lambda step: step.wait_for_event("a", "b.c"), "InvalidId"),
        (lambda step: step.wait_for_event("a", "b", timeout="no"), "InvalidArgument"),
    ],
)
def test_bad_calls_are_refused_and_leave_no_record(call: Any, name: str) -> None:
    assert refused(call)[0] == name


def test_sleep_until_ends_when_it_says() -> None:
    async def run(step: WorkflowStep) -> None:
        await step.sleep_until("s", datetime.fromtimestamp(START_MS / 1_000 + 5, UTC))

    play = Play(run)
    assert play.records[0].due_ms == START_MS + 5_000
    play.close()


# --- declared steps -----------------------------------------------------------------------------


def test_a_declared_step_runs_when_its_call_is_awaited() -> None:
    async def run(step: WorkflowStep) -> Any:
        @step.do("charge card", config={"retries": {"limit": 1}})
        async def charge(ctx: StepContext) -> int: ...

        @step.do()
        async def ship() -> int: ...

        @step.do
        async def bare() -> int: ...

        return [await charge(), await ship(), await bare(), await charge()]

    play = Play(run)
    for n, name in enumerate(("charge card-1", "ship-1", "bare-1", "charge card-2")):
        assert list(play.bodies) == [name]
        play.finish(name, n)
    assert play.output == [0, 1, 2, 3]
    assert play.records[0].config.limit == 1


def diamond(concurrent: bool) -> Any:
    """A run whose steps depend on each other by name."""

    async def run(step: WorkflowStep) -> Any:
        @step.do("root")
        async def top() -> Any: ...

        @step.do()
        async def left(root: Any) -> Any: ...

        @step.do()
        async def right(top: Any) -> Any: ...

        @step.do(concurrent=concurrent)
        async def bottom(right: Any, ctx: StepContext, left: Any) -> Any: ...

        return await bottom()

    return run


def test_dependencies_run_once_and_in_order() -> None:
    play = Play(diamond(False))
    for name in ("root-1", "right-1", "left-1", "bottom-1"):
        assert list(play.bodies) == [name]
        if name == "bottom-1":
            call = play.bodies[name][0].body
            assert call is not None
            assert dict(zip(call.shape.needs, call.args, strict=True)) == {
                "right": "right-1", "left": "left-1",
            }  # fmt: skip
        play.finish(name, name)
    assert play.output == "bottom-1"
    assert play.replay().output == "bottom-1"


def test_concurrent_dependencies_run_at_the_same_time() -> None:
    play = Play(diamond(True))
    assert list(play.bodies) == ["root-1"]
    play.finish("root-1", 1)
    assert sorted(play.bodies) == ["left-1", "right-1"]
    play.finish("left-1", 2)
    play.finish("right-1", 3)
    play.finish("bottom-1", 4)
    assert play.output == 4
    assert play.replay().output == 4


def test_a_failing_dependency_stops_its_siblings() -> None:
    play = Play(diamond(True))
    play.finish("root-1", 1)
    right = play.bodies["right-1"]
    play.bodies["left-1"][0].record.config = resolve({"retries": {"limit": 0}}, "left")
    play.fail("left-1", ValueError("left"))
    assert play.stopped == ["right-1"]
    assert not play.late(*right)
    assert play.error == ("ValueError", "left")


def test_what_was_awaited_before_is_not_run_again_as_a_dependency() -> None:
    async def run(step: WorkflowStep) -> Any:
        @step.do()
        async def one() -> Any: ...

        @step.do()
        async def two(one: Any) -> Any: ...

        await one()
        return await two()

    play = Play(run)
    play.finish("one-1", 1)
    play.finish("two-1", 2)
    assert play.output == 2


def test_dependencies_may_be_listed() -> None:
    async def run(step: WorkflowStep) -> Any:
        @step.do("first of all")
        async def first() -> Any: ...

        @step.do(depends=[first, first])
        async def second(a: Any, b: Any) -> Any: ...

        return await second()

    play = Play(run)
    play.finish("first of all-1", 7)
    call = play.bodies["second-1"][0].body
    assert call is not None
    assert call.args == (7, 7)
    play.finish("second-1", 8)
    assert play.output == 8


@pytest.mark.parametrize("depends", [[], [1], [lambda: 1]])
def test_bad_dependencies_are_refused_where_they_are_declared(depends: Any) -> None:
    def call(step: WorkflowStep) -> Any:
        @step.do("a", depends=depends)
        async def a(x: Any) -> Any: ...

    assert refused(call)[0] == "InvalidArgument"


def test_an_unknown_parameter_is_refused_where_it_is_declared() -> None:
    def call(step: WorkflowStep) -> Any:
        @step.do("a")
        async def a(later: Any) -> Any: ...

    name, message = refused(call)
    assert name == "InvalidArgument"
    assert "'later'" in message


def test_names_are_checked_where_they_are_declared() -> None:
    with pytest.raises(InvalidId):
        WorkflowStep(None).do("")  # type: ignore[arg-type]


@dataclass
class Point:
    """A typed result."""

    x: int


def test_typed_results_are_the_same_at_replay() -> None:
    def body() -> Point: ...

    async def run(step: WorkflowStep) -> Any:
        point = await step.do("a", body)
        return [type(point).__name__, point.x]

    play = Play(run)
    play.finish("a-1", Point(3))
    assert play.output == ["Point", 3]
    assert play.replay().output == ["Point", 3]
