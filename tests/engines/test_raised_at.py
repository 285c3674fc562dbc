"""Where an error was raised, as it is kept with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.flows import ONCE, Event, Step
from tests.engines.rig import on_virtual_time, rigged
from toque.engines.failures import RecordedError, StepFailed, exception_of, record_of
from toque.engines.raised_at import places_of
from toque.engines.workflow import workflow
from toque.runtime.codec import pack, unpack
from toque.runtime.limits import ERROR_PLACE_CHARS_MAX, ERROR_PLACES_MAX

HERE = Path(__file__).name


def charge(amount: int) -> None:
    if amount < 0:
        raise ValueError(f"{amount} is too little")  # the line that is looked for


def line_of(text: str) -> int:
    """The line of this file with that text."""
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip().startswith(text))


RAISED = f"{HERE}:{line_of('raise ValueError(f')} in charge"


def raised(fn: Any, *args: Any) -> BaseException:
    try:
        fn(*args)
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def test_the_calls_that_led_to_it_are_named_oldest_first() -> None:
    def outer() -> None:
        charge(-1)

    at = places_of(raised(outer))
    assert at[-1] == RAISED
    assert at[-2].endswith("test_the_calls_that_led_to_it_are_named_oldest_first.<locals>.outer")


def test_code_of_packages_and_of_python_is_named_within_its_folder() -> None:
    assert places_of(raised(json.loads, "{"))[-1].startswith("json/decoder.py:")
    assert places_of(raised(pytest.importorskip, "no such module", None, "x"))[-1].startswith(
        "_pytest/"
    )


def test_an_error_that_nobody_raised_has_no_place() -> None:
    assert record_of(ValueError("made, not raised")).at == ()


def test_a_deep_recursion_keeps_its_newest_lines() -> None:
    def deeper() -> None:
        deeper()

    at = places_of(raised(deeper))
    assert len(at) == ERROR_PLACES_MAX
    assert all("deeper" in line for line in at)


def test_a_line_is_bounded_whatever_the_function_is_called() -> None:
    scope: dict[str, Any] = {"__name__": "\ud800" * 9}
    name = "f" * 5_000
    exec(compile(f"def {name}(): 1/0", "a\udc80.py", "exec"), scope)
    (_, line) = places_of(raised(scope[name]))
    assert len(line) == ERROR_PLACE_CHARS_MAX
    line.encode()


def test_an_error_with_a_traceback_of_its_own_making_is_no_harm() -> None:
    class Odd(Exception):
        @property
        def __traceback__(self) -> Any:  # type: ignore[override]
            raise SystemExit("no")

    def fails() -> None:
        raise Odd

    assert places_of(raised(fails))[-1].endswith("fails")


def test_a_failed_step_that_run_raises_again_says_both_places() -> None:
    failed = exception_of(record_of(raised(charge, -1)))

    def run() -> None:
        raise failed

    at = record_of(raised(run)).at
    assert at[-1] == RAISED
    assert at[-3].endswith("<locals>.run")


def test_an_authors_attribute_of_that_name_is_his_own() -> None:
    class Mine(StepFailed):
        def __init__(self) -> None:
            self.at = object()  # type: ignore[assignment]

    assert record_of(Mine()).at == ()


def test_an_error_that_was_stored_without_a_place_is_read() -> None:
    old = pack([0, "ValueError", "no", b""])
    assert unpack(old, RecordedError) == RecordedError(0, "ValueError", "no")


@pytest.mark.loop(factory=on_virtual_time)
async def test_a_step_and_its_instance_say_where(tmp_path: Path) -> None:
    @workflow(name="w")
    async def run(event: Event, step: Step) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(step.do("fine", lambda: None))
        await step.do("charge", lambda: charge(-1), ONCE)

    async with rigged(tmp_path) as rig:
        await rig.create(run)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.at[-1] == RAISED
        assert view.error.at[0].startswith(f"{HERE}:")
        error = view.steps[-1].attempts[0].error
        assert error is not None
        assert error.at[-1] == RAISED
        assert ".run.<locals>.<lambda>" in error.at[-2]
