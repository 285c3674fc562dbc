"""Where the bodies of steps run in a simulation, and what tests may do to them.

Each runs on the virtual time of its shard's process, one step of the event loop at a time:
synchronous ones too (threads do not repeat themselves), but outside of any running loop, as in a
thread. Bodies that ask for resources run in place. The `Stage` outlives crashes: it knows what was
replaced, and notes each execution.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from asyncio import events
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engines.code_host import InProcessCodeHost
from ..engines.durations import Duration, duration_ms
from ..engines.run_port import NOBODY, Around, Body, Done, Keep, Who
from ..engines.shapes import shape_of
from ..engines.streams import drained
from ..engines.workflow import WorkflowDefinition
from ..runtime.blobs import BlobStore
from ..runtime.errors import InvalidArgument
from ..runtime.guarded import kind_of, shown, text_of
from ..runtime.ids import split_engine_key
from ..runtime.limits import TESTKIT_EXECUTIONS_MAX
from .errors import NotInSimulation

UNSAID: Any = object()
CUT_OFF = "cut off"
"""How a body ends that is cancelled, out of time, or in a process that is killed."""


@dataclass(frozen=True)
class MockContext:
    """What a replacement gets as its parameter `ctx`.

    Attributes:
        workflow, instance: whose step it is.
        step: the step's name; `count`: how often the name has been used, this use included.
        attempt: number of this attempt; 1 at first.
        args: what the replaced body would have been called with, by name.
    """

    workflow: str
    instance: str
    step: str
    count: int
    attempt: int
    args: Mapping[str, Any]


@dataclass
class Execution:
    """One execution of a step's body, or of what replaces it.

    Attributes:
        workflow, instance, step, attempt: which; `step` is the public name, such as `charge-1`,
            or `rollback charge-1`.
        args: what it was called with, by name, without `ctx`.
        process: the life of the shard that it ran in.
        ended: `running`, `complete`, `errored`, or `cut off`: cancelled, out of time, or in a
            process that was killed.
        result: what it gave; `error`: what it raised, as text.
    """

    workflow: str
    instance: str
    step: str
    attempt: int
    args: dict[str, Any]
    process: str
    ended: str = "running"
    result: Any = None
    error: str = ""

    @property
    def name(self) -> str:
        """The step's name without the number of its use."""
        return self.step.rpartition("-")[0]


@dataclass
class Mock:
    """What replaces the body of a step, or of all that have a name.

    Attributes:
        step: a name (`charge`) or a public name (`charge-2`).
        calls: its executions so far.
    """

    step: str
    workflow: str | None
    body: Callable[..., Any] | None
    returns: Any
    raises: BaseException | type[BaseException] | None
    takes_s: float
    left: int | None
    calls: list[Execution] = field(default_factory=list)

    def takes(self, execution: Execution) -> bool:
        """Whether it replaces that one."""
        is_named = self.step in (execution.step, execution.name)
        return is_named and self.left != 0 and self.workflow in (None, execution.workflow)


class Stage:
    """What tests have replaced, and which bodies ran, in all lives of all shards.

    Args:
        name_of: a workflow's name by its uuid.
        tell: told what happens, a line each.
    """

    def __init__(self, name_of: Callable[[str], str], tell: Callable[..., None]) -> None:
        self._name_of = name_of
        self._tell = tell
        self._mocks: list[Mock] = []
        self.executions: list[Execution] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """How often the body of each step ran: by `(workflow, instance, step)`."""
        self.pause_s: Callable[[], float] = lambda: 0.0

    def mock(
        self,
        step: str,
        body: Callable[..., Any] | None,
        returns: Any,
        raises: Any,
        times: int | None,
        takes: Duration,
        workflow: str | None,
    ) -> Mock:
        """See `Simulation.mock_step`."""
        given = [body is not None, returns is not UNSAID, raises is not None]
        if sum(given) != 1:
            raise InvalidArgument(
                "a mock is given a body, `returns` or `raises`, one of them. "
                "Right: sim.mock_step('charge', returns={'ok': True})."
            )
        if not isinstance(step, str) or not step:
            raise InvalidArgument(
                f"the step to be replaced is {shown(step)}; it must be its name. "
                "Right: sim.mock_step('charge', lambda ctx: 'ok')."
            )
        if body is not None:
            shape_of(body, f"the mock of step {step!r}")
        is_error = isinstance(raises, BaseException) or (
            isinstance(raises, type) and issubclass(raises, BaseException)
        )
        if raises is not None and not is_error:
            raise InvalidArgument(
                f"`raises` is {shown(raises)}; it must be an exception. "
                "Right: sim.mock_step('charge', raises=ConnectionError('down'))."
            )
        if times is not None and (type(times) is not int or times < 1):
            raise InvalidArgument(f"`times` is {shown(times)}; it must be 1 or more, or None.")
        takes_s = duration_ms(takes, "takes") / 1000
        made = Mock(step, workflow, body, returns, raises, takes_s, times)
        self._mocks.append(made)
        return made

    def begin(self, who: Who, kwargs: Mapping[str, Any], process: str) -> Execution:
        """A body is to be executed."""
        if len(self.executions) >= TESTKIT_EXECUTIONS_MAX:
            raise NotInSimulation(
                f"{TESTKIT_EXECUTIONS_MAX} bodies have run in this simulation; more are not noted. "
                "Does a workflow go round for ever?"
            )
        _, uuid, instance = split_engine_key(who.key)
        args = {name: value for name, value in kwargs.items() if name != "ctx"}
        made = Execution(self._name_of(uuid), instance, who.step, who.attempt, args, process)
        self.executions.append(made)
        key = made.workflow, made.instance, made.step
        self.counts[key] += 1
        again = "" if self.counts[key] == 1 else f"  (time {self.counts[key]} that it runs)"
        self._tell("body", made.instance, made.step, f"attempt {made.attempt} begins{again}")
        return made

    def mock_of(self, execution: Execution) -> Mock | None:
        """What replaces that body; the newest that is left counts."""
        for mock in reversed(self._mocks):
            if mock.takes(execution):
                if mock.left is not None:
                    mock.left -= 1
                mock.calls.append(execution)
                return mock
        return None

    def died(self, process: str) -> None:
        """A process was killed: its bodies are cut off."""
        for execution in self.executions:
            if execution.process == process and execution.ended == "running":
                self.ended(execution, CUT_OFF)

    def ended(self, execution: Execution, how: str, result: Any = None, error: str = "") -> None:
        """A body has ended, or is given up."""
        if execution.ended != "running":
            return
        execution.ended, execution.result, execution.error = how, result, error
        why = f": {error}" if error else ""
        attempt = f"attempt {execution.attempt}"
        self._tell("body", execution.instance, execution.step, f"{attempt} {how}{why}")


class SimCodeHost(InProcessCodeHost):
    """Users' workflows in one life of a shard.

    Args:
        loop: the shard's process.
        definitions: the workflows.
        stage: of the simulation.
        process: the name of this life.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        definitions: Iterable[WorkflowDefinition],
        stage: Stage,
        process: str,
    ) -> None:
        super().__init__(loop, definitions, inline=True)
        self._stage = stage
        self._process = process

    def run_body(
        self,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        is_async: bool,
        context: contextvars.Context,
        done: Done,
        who: Who = NOBODY,
        keep: Keep | None = None,
    ) -> Body:
        if not who.attempt:
            return super().run_body(fn, kwargs, is_async, context, done, who, keep)
        stage = self._stage
        execution = stage.begin(who, kwargs, self._process)
        mock = stage.mock_of(execution)
        pause_s = stage.pause_s()

        async def body() -> Any:
            if pause_s:
                await asyncio.sleep(pause_s)
            try:
                if mock is not None:
                    return await _mocked(mock, execution)
                if is_async:
                    return await fn(**kwargs)
                value = _outside(fn, kwargs)
                return await value if inspect.isawaitable(value) else value
            except NotImplementedError as error:
                raise _not_here(error, execution) from error

        def noted(error: BaseException | None, value: Any) -> None:
            if isinstance(error, asyncio.CancelledError):
                stage.ended(execution, CUT_OFF)
            elif error is not None:
                stage.ended(execution, "errored", error=f"{kind_of(error)}: {text_of(error)}")
            else:
                stage.ended(execution, "complete", value)
            done(error, value)

        return super().run_body(body, {}, True, context, noted, who, keep)

    def run_elsewhere(
        self,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        options: dict[str, Any],
        done: Done,
        who: Who,
        blobs: BlobStore | None,
        around: Around | None,
    ) -> Body:
        is_async = inspect.iscoroutinefunction(fn)
        work = fn if is_async else drained(fn, False, blobs)
        context = contextvars.copy_context()
        return self.run_body(work, kwargs, is_async, context, done, who, (blobs, True))


def _outside(fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Call a synchronous body as in a thread: no loop runs there."""
    loop = events._get_running_loop()
    events._set_running_loop(None)
    try:
        return fn(**kwargs)
    finally:
        events._set_running_loop(loop)


async def _mocked(mock: Mock, execution: Execution) -> Any:
    if mock.takes_s:
        await asyncio.sleep(mock.takes_s)
    if mock.raises is not None:
        raise mock.raises
    if mock.body is None:
        return mock.returns
    shape = shape_of(mock.body, f"the mock of step {mock.step!r}")
    lacking = [name for name in shape.needs if name not in execution.args]
    if lacking:
        known = ", ".join(["ctx", *execution.args])
        raise NotInSimulation(
            f"the mock of step {mock.step!r} takes {', '.join(lacking)}; the step gives {known}. "
            "Right: `lambda ctx: ...`, where `ctx.args` holds what the body would have got."
        )
    kwargs = {name: execution.args[name] for name in shape.needs}
    if shape.takes_ctx:
        _, _, count = execution.step.rpartition("-")
        kwargs["ctx"] = MockContext(
            execution.workflow,
            execution.instance,
            execution.name,
            int(count),
            execution.attempt,
            execution.args,
        )
    if shape.is_async:
        return await mock.body(**kwargs)
    value = _outside(mock.body, kwargs)
    return await value if inspect.isawaitable(value) else value


def _not_here(error: NotImplementedError, execution: Execution) -> BaseException:
    """What a body hears that asked the loop for I/O; its own errors stay as they are."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__") != "asyncio.events":
        return error
    asked = trace.tb_frame.f_code.co_name
    return NotInSimulation(
        f"the body of step {execution.step!r} asked the event loop for {asked}(): a simulation "
        "has no sockets, processes or signals. Replace the body: "
        f"sim.mock_step({execution.name!r}, returns=...); or test it by toque.embedded()."
    )
