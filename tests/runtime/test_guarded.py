"""What users give is shown in a bounded text, at a bounded price, and runs nothing that hurts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from toque.api import client_checks
from toque.engines.config import resolve
from toque.engines.durations import duration_ms, instant_ms
from toque.engines.ray_options import check_ray_options
from toque.engines.shapes import shape_of
from toque.runtime.codec import encode_json, type_name
from toque.runtime.errors import CallerError, UnencodableValue
from toque.runtime.guarded import shown
from toque.runtime.ids import check_account_id, check_instance_id, check_step_name


@pytest.mark.parametrize(
    "value",
    [
        None, True, 5, 1.5, "text", b"raw", [], [1, "a", None], (1,), (), {1, 2}, frozenset([3]),
        {"a": [1, {"b": 2}], 3: None}, "ä" * 10, range(3), object, [[], [[]]], "x" * 78,
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_has_room_is_shown_as_it_is(value: object) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize("chars_max", [20, 80, 300])
@pytest.mark.parametrize(
    "value",
    ["x" * 1_000, b"x" * 1_000, list(range(1_000)), {n: n for n in range(1_000)},
     [["x" * 1_000] * 1_000], set(range(1_000)), "x" * 301],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_has_not_is_the_beginning_of_it(value: object, chars_max: int) -> None:
    assert shown(value, chars_max) == f"{repr(value)[: chars_max - 1]}…"


def test_large_values_cost_no_more_than_is_shown() -> None:
    vast = [{"rows": ["x" * 1_000] * 100_000}] * 1_000
    tracemalloc.start()
    text = shown(vast)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(text) == 80
    assert peak < 100_000


def test_a_container_that_holds_itself_is_shown() -> None:
    own: list[Any] = [1]
    own.append(own)
    assert shown(own).startswith("[1, [1, [")


class Hostile:
    """What says of itself whatever hurts most."""

    def __repr__(self) -> str:
        raise SystemExit("by its repr")

    __str__ = __format__ = __repr__  # type: ignore[assignment]


class Huge:
    def __repr__(self) -> str:
        return "h" * 1_000_000


TAKERS: dict[str, Callable[[Any], Any]] = {
    "instance id": check_instance_id,
    "account id": check_account_id,
    "step name": check_step_name,
    "duration": lambda value: duration_ms(value, "it"),
    "instant": lambda value: instant_ms(value, "it"),
    "config": lambda value: resolve(value, "pay"),
    "limit": lambda value: resolve({"retries": {"limit": value}}, "pay"),
    "backoff": lambda value: resolve({"retries": {"backoff": value}}, "pay"),
    "sensitive": lambda value: resolve({"sensitive": value}, "pay"),
    "unknown key": lambda value: resolve({value: 1}, "pay"),
    "ray_options": lambda value: check_ray_options(value, "it"),
    "ray key": lambda value: check_ray_options({value: 1}, "it"),
    "num_gpus": lambda value: check_ray_options({"num_gpus": value}, "it"),
    "resources": lambda value: check_ray_options({"resources": value}, "it"),
    "runtime_env": lambda value: check_ray_options({"runtime_env": value}, "it"),
    "accelerator": lambda value: check_ray_options({"accelerator_type": value}, "it"),
    "body": lambda value: shape_of(value, "step 'pay'"),
    "flag": lambda value: client_checks.flag(value, "it"),
    "ids": lambda value: client_checks.ids([value]),
    "statuses": lambda value: client_checks.statuses([value]),
    "change": client_checks.change,
    "retention": lambda value: client_checks.new_instance("a", None, value),
    "spec": lambda value: client_checks.spec({value: 1}, 3),
    "params": lambda value: encode_json({"deep": [value]}, "params"),
}


@pytest.mark.parametrize("value", [Hostile(), Huge()], ids=["hostile", "huge"])
@pytest.mark.parametrize("taker", TAKERS)
def test_who_refuses_a_value_runs_nothing_of_it_that_hurts(taker: str, value: Any) -> None:
    with pytest.raises((CallerError, UnencodableValue)) as refused:
        TAKERS[taker](value)
    assert len(str(refused.value)) < 1_000


def test_a_type_that_can_not_be_shown_has_a_name_all_the_same() -> None:
    assert "repr() of it raised SystemExit" in type_name(Hostile())
