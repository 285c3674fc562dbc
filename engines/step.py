"""`step`: what authors of workflows use to do things once, to sleep and to wait for events.

Each call is found again at replay by who makes it and by its name, and answered from the
journal if it has ended. Mistakes in a call (names, settings, functions) raise at once, where the
call is written. How a step fails in `run`: see `failures`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ..runtime.codec import decode_json
from ..runtime.errors import InvalidArgument
from ..runtime.ids import check_event_type, check_step_name
from ..runtime.limits import SLEEP_MAX_MS
from .config import DEFAULTS, Resolved, StepConfig, resolve
from .durations import Duration, duration_ms, instant_ms
from .journal import Record
from .shapes import Shape, shape_of

if TYPE_CHECKING:
    from .replay import Execution

T = TypeVar("T")
Config = StepConfig | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a body gets as its parameter `ctx`.

    Attributes:
        step: the step's name.
        count: how often the name has been used, this use included; 1 at first.
        attempt: number of this attempt; 1 at first.
        config: the settings in force.
    """

    step: str
    count: int
    attempt: int
    config: Resolved


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """What `step.wait_for_event` gives.

    Attributes:
        payload: the event's decoded payload.
        timestamp: when it was sent.
        type: its type.
    """

    payload: Any
    timestamp: datetime
    type: str


class BodyCall:
    """A step's body with everything needed to run it."""

    __slots__ = ("args", "config", "fn", "shape")

    def __init__(
        self, fn: Callable[..., Any], shape: Shape, config: Resolved, args: tuple[Any, ...]
    ) -> None:
        self.fn = fn
        self.shape = shape
        self.config = config
        self.args = args

    def decode(self, record: Record) -> Any:
        """The recorded result as `run` gets it."""
        return self.shape.decode(record.result or b"null")


class StepFunction(Generic[T]):
    """A declared step. Calling it gives a coroutine that runs it, after what it depends on.

    Awaited twice, it runs twice; as a dependency of others it runs once.
    """

    __slots__ = ("_at_once", "_body", "_shared", "_sources", "_step", "name")

    def __init__(
        self,
        step: WorkflowStep,
        name: str,
        body: BodyCall,
        sources: tuple[StepFunction[Any], ...],
        at_once: bool,
    ) -> None:
        self.name = name
        self._step = step
        self._body = body
        self._sources = sources
        self._at_once = at_once
        self._shared: asyncio.Future[tuple[Any, BaseException | None]] | None = None

    def __call__(self) -> Coroutine[Any, Any, T]:
        return self._run()

    def __await__(self) -> Any:
        return self._run().__await__()

    async def _run(self) -> T:
        body = self._body
        if self._sources:
            args = await self._results()
            body = BodyCall(body.fn, body.shape, body.config, args)
        value: T = await self._step._do(self.name, body)
        if self._shared is None:
            self._shared = asyncio.get_running_loop().create_future()
            self._shared.set_result((value, None))
        return value

    async def _results(self) -> tuple[Any, ...]:
        if not self._at_once:
            return tuple([await source._result() for source in self._sources])
        tasks = [asyncio.ensure_future(source._result()) for source in self._sources]
        try:
            return tuple(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _result(self) -> T:
        """Its result as a dependency: of one run, whoever asks first."""
        while self._shared is not None:
            value, error = await asyncio.shield(self._shared)
            if not isinstance(error, asyncio.CancelledError):
                if error is not None:
                    raise error
                result: T = value
                return result
            # whoever ran it was cancelled, not we: it is ours to run now
        self._shared = shared = asyncio.get_running_loop().create_future()
        try:
            value = await self._run()
        except asyncio.CancelledError as error:
            self._shared = None
            shared.set_result((None, error))
            raise
        except Exception as error:
            shared.set_result((None, error))
            raise
        shared.set_result((value, None))
        return value


class WorkflowStep:
    """The second argument of `run`."""

    __slots__ = ("_core", "_declared")

    def __init__(self, core: Execution) -> None:
        self._core = core
        self._declared: dict[str, StepFunction[Any]] = {}

    @overload
    def do(
        self, name: str, fn: Callable[..., Awaitable[T]], config: Config = None
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def do(
        self, name: str, fn: Callable[..., T], config: Config = None
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def do(
        self,
        name: str | None = None,
        *,
        config: Config = None,
        depends: Sequence[StepFunction[Any]] | None = None,
        concurrent: bool = False,
    ) -> Callable[[Callable[..., Awaitable[T]]], StepFunction[T]]: ...

    @overload
    def do(self, name: Callable[..., Awaitable[T]]) -> StepFunction[T]: ...

    def do(
        self,
        name: Any = None,
        fn: Callable[..., Any] | None = None,
        config: Config = None,
        *,
        depends: Sequence[StepFunction[Any]] | None = None,
        concurrent: bool = False,
    ) -> Any:
        """Do something once, and keep its result.

        `await step.do("charge", fn)` runs `fn`, or answers from the journal. As a decorator,
        `@step.do("charge")` or `@step.do`, it declares a step that runs where the decorated
        name is called and awaited; a parameter with the name of a step declared earlier gets
        that step's result.

        Args:
            name: names the step; with the caller's task and the count of uses it is its identity.
            fn: the body; `async` ones run on an event loop, others in a thread. A parameter
                called `ctx` gets a `StepContext`. The result is kept as JSON, and given as the
                type that the function's return annotation names.
            config: retries and timeout.
            depends: declared steps whose results become the body's positional arguments.
            concurrent: run what it depends on at the same time.

        Raises:
            StepFailed: (when awaited) all attempts failed; `except ValueError` and the like
                work for built-in errors that the body raised.
        """
        if fn is not None:
            body = self._body(check_step_name(name), fn, config)
            if body.shape.needs:
                self._refuse_parameters(name, body.shape.needs[0])
            return self._do(name, body)
        if callable(name):
            return self._declare(None, name, config, depends, concurrent)
        if name is not None:
            check_step_name(name)
        return lambda given: self._declare(name, given, config, depends, concurrent)

    def sleep(self, name: str, duration: Duration) -> Coroutine[Any, Any, None]:
        """Wait for a while; a number is in seconds. Holds no memory or slot meanwhile."""
        check_step_name(name)
        return self._sleep(name, duration_ms(duration, f"duration of sleep {name!r}"), None)

    def sleep_until(self, name: str, when: datetime | float) -> Coroutine[Any, Any, None]:
        """Wait until an instant (an aware datetime, or seconds since 1970); if past, not at all."""
        check_step_name(name)
        return self._sleep(name, None, instant_ms(when, f"end of sleep {name!r}"))

    def wait_for_event(
        self, name: str, event_type: str, timeout: Duration = "24 hours"
    ) -> Coroutine[Any, Any, ReceivedEvent]:
        """Wait for an event of a type that is sent to the instance.

        An event that came before the wait is taken at once, oldest first; each event goes to
        one wait.

        Raises:
            EventTimeout: none came in time.
        """
        check_step_name(name)
        check_event_type(event_type)
        timeout_ms = duration_ms(timeout, f"timeout of wait {name!r}", max_ms=SLEEP_MAX_MS)
        return self._wait(name, event_type, timeout_ms)

    # --- inside -----------------------------------------------------------------------------

    def _body(self, name: str, fn: Callable[..., Any], config: Config) -> BodyCall:
        shape = shape_of(fn, f"step {name!r}")
        return BodyCall(fn, shape, DEFAULTS if config is None else resolve(config, name), ())

    def _declare(
        self,
        name: str | None,
        fn: Callable[..., Any],
        config: Config,
        depends: Sequence[StepFunction[Any]] | None,
        concurrent: bool,
    ) -> StepFunction[Any]:
        own_name = getattr(fn, "__name__", "")
        public_name = name or check_step_name(own_name)
        body = self._body(public_name, fn, config)
        needs = body.shape.needs
        if depends is None:
            for parameter in needs:
                if parameter not in self._declared:
                    self._refuse_parameters(public_name, parameter)
            sources = tuple(self._declared[parameter] for parameter in needs)
        else:
            sources = tuple(depends)
            if len(sources) != len(needs) or not all(isinstance(s, StepFunction) for s in sources):
                raise InvalidArgument(
                    f"step {public_name!r} takes {len(needs)} results but `depends` has "
                    f"{len(sources)}; list one declared step for each parameter, in order."
                )
        declared: StepFunction[Any] = StepFunction(self, public_name, body, sources, concurrent)
        self._declared[public_name] = declared
        self._declared[own_name] = declared
        return declared

    def _refuse_parameters(self, name: str, parameter: str) -> None:
        raise InvalidArgument(
            f"the body of step {name!r} has the parameter {parameter!r}, and no step of that name "
            "was declared before with @step.do. Bodies take `ctx` and results of declared steps; "
            "pass other values by closure. Wrong: `step.do('pay', charge)` with "
            "`def charge(card)`. Right: `step.do('pay', lambda: charge(card))`."
        )

    async def _do(self, name: str, body: BodyCall) -> Any:
        claim = self._core.claim_do(name, body)
        try:
            return await claim.future
        except asyncio.CancelledError:
            self._core.abandon(claim)
            raise

    async def _sleep(self, name: str, for_ms: int | None, until_ms: int | None) -> None:
        claim = self._core.claim_sleep(name, for_ms, until_ms)
        try:
            await claim.future
        except asyncio.CancelledError:
            self._core.abandon(claim)
            raise

    async def _wait(self, name: str, event_type: str, timeout_ms: int) -> ReceivedEvent:
        claim = self._core.claim_wait(name, event_type, timeout_ms, _received)
        try:
            event: ReceivedEvent = await claim.future
            return event
        except asyncio.CancelledError:
            self._core.abandon(claim)
            raise


def _received(record: Record) -> ReceivedEvent:
    return ReceivedEvent(
        decode_json(record.result or b"null"),
        datetime.fromtimestamp(record.event_at_ms / 1_000, UTC),
        record.event_type,
    )
