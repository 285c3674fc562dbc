"""Misuse of steps, refused where it happens; and how many steps a workflow may make."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.engines.play import Play
from tests.engines.rig import on_virtual_time, rigged
from tests.naming import shown
from toque.engines.failures import StepMisuse
from toque.engines.step import WorkflowStep
from toque.engines.workflow import WorkflowEntrypoint, WorkflowEvent, definition_of, workflow
from toque.runtime.errors import WorkflowLoadError
from toque.runtime.limits import STEPS_PER_INSTANCE_DEFAULT, STEPS_PER_INSTANCE_MAX

virtual = pytest.mark.loop(factory=on_virtual_time)


def nothing() -> Any:
    """A body."""


# --- misuse -------------------------------------------------------------------------------------


def test_a_step_that_was_never_awaited_is_named() -> None:
    async def run(step: WorkflowStep) -> Any:
        step.do("lost", nothing)
        return 1

    name, message = Play(run).error
    assert name == "StepMisuse"
    assert "'lost' was called and never awaited" in message
    assert "Right: `await step.do(" in message


def test_a_step_in_a_callback_is_refused_when_it_is_called() -> None:
    async def run(step: WorkflowStep) -> Any:
        asyncio.get_running_loop().call_soon(step.do, "lost", nothing)
        await step.sleep("long", 86_400)

    name, message = Play(run).error
    assert name == "StepMisuse"
    assert "'lost' was called by a callback" in message


def test_a_step_in_a_thread_is_refused_when_it_is_called() -> None:
    given: list[WorkflowStep] = []

    async def run(step: WorkflowStep) -> Any:
        given.append(step)
        await step.sleep("long", 86_400)
        return "fine"

    it = Play(run)
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(given[0].do, "lost", nothing).exception()
    assert isinstance(refused, StepMisuse)
    assert "'lost' was called from another thread" in str(refused)
    it.advance(86_400_000)
    assert it.output == "fine"
    with pytest.raises(StepMisuse, match="after run"):
        given[0].sleep("late", 1)


@virtual
async def test_a_step_in_a_body_is_refused_when_it_is_called(tmp_path: Path) -> None:
    @workflow
    async def nested(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        async def body() -> str:
            step.do("lost", nothing)
            return "done"

        return await step.do("outer", body)

    async with rigged(tmp_path) as rig:
        await rig.create(nested)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "StepMisuse"
        assert "'lost' was called inside the body of step 'outer-1'" in view.error.message
        assert (await rig.step("outer-1")).attempts_total == 1


def test_a_declared_step_that_was_called_and_not_awaited_is_named() -> None:
    async def run(step: WorkflowStep) -> Any:
        @step.do("lost")
        async def lost() -> None: ...

        lost()

    assert "'lost' was called and never awaited" in Play(run).error[1]


def test_an_error_of_run_is_not_hidden_by_a_step_that_was_not_awaited() -> None:
    async def run(step: WorkflowStep) -> Any:
        step.do("lost", nothing)
        raise KeyError("real")

    assert Play(run).error == ("KeyError", "'real'")


def test_a_call_that_was_cancelled_before_it_began_is_no_misuse() -> None:
    async def run(step: WorkflowStep) -> Any:
        task = asyncio.create_task(step.do("a", nothing))
        task.cancel()
        await asyncio.wait([task])
        step.do("b", nothing).close()
        return task.cancelled()

    it = Play(run)
    assert it.output is True
    assert not it.records


def test_a_declared_step_that_never_ran_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def run(step: WorkflowStep) -> Any:
        @step.do("used")
        async def used() -> None: ...

        @step.do("spare")
        async def spare() -> None: ...

        await used()

    it = Play(run)
    it.finish("used-1")
    assert it.output is None
    assert "workflow 'test' never ran its declared step 'spare'" in caplog.messages
    assert "'used'" not in caplog.text


def refused(declare: Any) -> str:
    """The message with which a declaration is refused."""

    async def run(step: WorkflowStep) -> Any:
        declare(step)

    name, message = Play(run).error
    assert name == "InvalidArgument"
    return message


def test_a_step_that_depends_on_itself_is_refused() -> None:
    def declare(step: WorkflowStep) -> None:
        @step.do("loop")
        async def loop(loop: int) -> None: ...

    assert "'loop' depends on itself" in refused(declare)


def test_two_steps_of_one_name_are_refused_and_a_loop_is_not() -> None:
    def declare(step: WorkflowStep) -> None:
        @step.do("same")
        async def one() -> None: ...

        @step.do("same")
        async def other() -> None: ...

    assert "two steps are declared as 'same'" in refused(declare)

    async def run(step: WorkflowStep) -> Any:
        found = []
        for number in range(2):

            @step.do("same")
            async def one(number: int = number) -> int: ...

            found.append(await one())
        return found

    it = Play(run)
    it.finish("same-1", 1)
    it.finish("same-2", 2)
    assert it.output == [1, 2]


def test_a_parameter_that_could_mean_two_steps_is_refused() -> None:
    def declare(step: WorkflowStep) -> None:
        @step.do("a")
        async def body() -> None: ...

        @step.do("b")
        async def body() -> None: ...  # noqa: F811

        @step.do("c")
        async def needs(body: int) -> None: ...

    assert "several declared steps have functions of that name" in refused(declare)


# --- the step limit -----------------------------------------------------------------------------


def test_the_step_limit_is_exact() -> None:
    def counting(steps: int) -> Play:
        async def run(step: WorkflowStep) -> Any:
            for _ in range(steps):
                await step.do("a", nothing)
                await step.sleep("s", 0)

        it = Play(run, steps_max=3)
        for n in range(min(steps, 3)):
            it.finish(f"a-{n + 1}")
            it.advance(0)
        return it

    assert counting(3).output is None
    it = counting(4)
    assert it.error[0] == "LimitExceeded"
    assert [record.name for record in it.records].count("a") == 3
    assert not it.bodies, "the step that is too many does not begin"


@virtual
@pytest.mark.parametrize("asked", [0, 2])
async def test_a_workflow_has_a_step_limit_of_its_own(tmp_path: Path, asked: int) -> None:
    class Short(WorkflowEntrypoint):
        limits: ClassVar[Mapping[str, int]] = {"steps": 3}

        async def run(self, event: WorkflowEvent[Any], step: WorkflowStep) -> None:
            for _ in range(4):
                await step.do("a", nothing)

    async with rigged(tmp_path) as rig:
        await rig.create(Short, steps_max=asked)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "LimitExceeded"
        assert f"may make {asked or 3} steps" in view.error.message
        assert len((await rig.view()).steps) == (asked or 3)


def test_a_workflow_may_have_more_steps_than_most() -> None:
    most = STEPS_PER_INSTANCE_MAX

    @workflow(limits={"steps": most})
    async def long(event: WorkflowEvent[Any], step: WorkflowStep) -> None: ...

    assert most > STEPS_PER_INSTANCE_DEFAULT
    assert definition_of(long, "h").steps_max == most


@pytest.mark.parametrize(
    "limits", [{"steps": 0}, {"steps": 10**6}, {"steps": "9"}, {"steps": True}, {"step": 1}, 7],
    ids=shown,
)  # fmt: skip
def test_a_step_limit_out_of_range_is_refused_when_the_workflow_is_loaded(limits: Any) -> None:
    @workflow(limits=limits)
    async def odd(event: WorkflowEvent[Any], step: WorkflowStep) -> None: ...

    with pytest.raises(WorkflowLoadError, match=r"odd has limits.*\{'steps': 10000\}"):
        definition_of(odd, "h")


# --- calls that would do nothing, or not what they say ------------------------------------------


def test_a_step_whose_task_never_got_to_begin_is_named() -> None:
    async def run(step: WorkflowStep) -> Any:
        asyncio.create_task(step.do("lost", nothing))  # noqa: RUF006 - the mistake
        return 1

    async def follow(step: WorkflowStep) -> Any:
        await step.sleep("nap", 1)
        asyncio.create_task(step.do("lost", nothing))  # noqa: RUF006 - the mistake
        step.continue_as_new(1)

    for it in (Play(run), Play(follow)):
        it.advance(1_000)
        name, message = it.error
        assert name == "StepMisuse"
        assert "'lost' was called and never awaited" in message


def test_a_step_that_has_begun_may_be_given_up() -> None:
    async def run(step: WorkflowStep) -> Any:
        task = asyncio.create_task(step.do("slow", nothing))
        await step.do("quick", nothing)
        late = asyncio.create_task(step.do("late", nothing))
        await asyncio.sleep(0)
        late.cancel()
        return task.done()

    it = Play(run)
    it.finish("quick-1")
    assert it.output is False


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda step: step.do("a", nothing, depends=[]), "`depends` or `concurrent`"),
        (lambda step: step.do("a", nothing, concurrent=True), "`depends` or `concurrent`"),
        (lambda step: step.do("a", None), "the body of step 'a' is None"),
        (lambda step: step.do("a", nothing, rollback=yielding), "is a generator"),
        (lambda step: step.do(nothing, rollback=yielding), "is a generator"),
    ],
    ids=["depends", "concurrent", "None", "rollback", "declared rollback"],
)
def test_a_call_that_would_not_do_what_it_says_is_refused(call: Any, what: str) -> None:
    async def run(step: WorkflowStep) -> Any:
        await call(step)

    name, message = Play(run).error
    assert name == "InvalidArgument"
    assert what in message
    assert "Right:" in message


def yielding() -> Any:
    """A generator."""
    yield b""
