"""`step`: what authors of workflows use to do things once, to sleep and to wait for events.

Each call is found again at replay by who makes it and by its name, and answered from the
journal if it has ended. Mistakes in a call (names, settings, functions) raise at once, where the
call is written. How a step fails in `run`: see `failures`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from ..runtime.codec import encode_json
from ..runtime.errors import InvalidArgument
from ..runtime.guarded import shown
from ..runtime.ids import check_event_type, check_step_name
from ..runtime.limits import EVENT_TIMEOUT_DEFAULT_MS, HOUR_MS, SLEEP_MAX_MS
from .body_call import BodyCall
from .config import DEFAULTS, StepConfig, delay_function, resolve
from .declared import (
    Declarations,
    Declare,
    StepFunction,
    refuse_dependencies,
    refuse_parameters,
)
from .durations import Duration, duration_ms, instant_ms
from .events import EventIterator, ReceivedEvent, received
from .joins import JoinSteps
from .journal import Record
from .logs import WorkflowLog
from .ray_options import check_ray_options
from .shapes import shape_of, unfit_part
from .shield import Shield

if TYPE_CHECKING:
    from .claiming import Claiming

T = TypeVar("T")
P = TypeVar("P")
_NOT_GIVEN: Any = object()
Config = StepConfig | Mapping[str, Any] | None
EVENT_TIMEOUT = f"{EVENT_TIMEOUT_DEFAULT_MS // HOUR_MS} hours"
"""How long a wait for an event lasts that does not say."""


class WorkflowStep(JoinSteps):
    """The second argument of `run`."""

    __slots__ = ("_declarations", "_log")

    def __init__(self, core: Claiming) -> None:
        self._core = core
        self._declarations: Declarations | None = None
        self._log: WorkflowLog | None = None

    @property
    def log(self) -> WorkflowLog:
        """A logger (`toque.workflow`) that is quiet while `run` repeats what it did before."""
        if self._log is None:
            self._log = WorkflowLog(self._core.whose)
        return self._log

    @overload
    def do(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        config: Config = None,
        *,
        rollback: Callable[..., Any] | None = None,
        rollback_config: Config = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def do(
        self,
        name: str,
        fn: Callable[..., T],
        config: Config = None,
        *,
        rollback: Callable[..., Any] | None = None,
        rollback_config: Config = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def do(
        self,
        name: str | None = None,
        *,
        config: Config = None,
        depends: Sequence[StepFunction[Any]] | None = None,
        concurrent: bool = False,
        rollback: Callable[..., Any] | None = None,
        rollback_config: Config = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> Declare: ...

    @overload
    def do(self, name: Callable[..., Awaitable[T]]) -> StepFunction[T]: ...

    @overload
    def do(self, name: Callable[..., T]) -> StepFunction[T]: ...

    def do(
        self,
        name: Any = None,
        fn: Any = _NOT_GIVEN,
        config: Config = None,
        *,
        depends: Sequence[StepFunction[Any]] | None = None,
        concurrent: bool = False,
        rollback: Callable[..., Any] | None = None,
        rollback_config: Config = None,
        ray_options: Mapping[str, Any] | None = None,
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
            config: retries, timeout, deadline, sensitivity: see `StepConfig`.
            depends: declared steps whose results become the body's positional arguments.
            concurrent: run what it depends on at the same time.
            rollback: undoes the step if the workflow fails later, or this step does. It may
                take `ctx`, `error` (why) and `output` (the step's result; None if it has none).
                Rollbacks run one at a time, in reverse order of the steps' starts.
            rollback_config: its retries and timeout.
            ray_options: resources that the body needs, for example `{"num_gpus": 1}`: it runs as
                a Ray task when they are free. Waiting for them counts toward its timeout.

        Raises:
            StepFailed: (when awaited) all attempts failed; `except ValueError` and the like
                work for built-in errors that the body raised.
        """
        if fn is not _NOT_GIVEN:
            if depends is not None or concurrent:
                refuse_dependencies(name)
            body = self._body(check_step_name(name), fn, config, ray_options)
            if body.shape.needs:
                refuse_parameters(name, body.shape.needs[0])
            if rollback is not None or rollback_config is not None:
                body.undo = self._rollback(name, rollback, rollback_config)
            return self._call(name, self._do, name, body)
        if callable(name):
            undo = self._rollback(getattr(name, "__name__", ""), rollback, rollback_config)
            return self._declare(None, name, config, depends, concurrent, undo, ray_options)
        if name is not None:
            check_step_name(name)
        undo = self._rollback(name or "", rollback, rollback_config)
        return lambda given: self._declare(
            name, given, config, depends, concurrent, undo, ray_options
        )

    def sleep(self, name: str, duration: Duration) -> Coroutine[Any, Any, None]:
        """Wait for a while; a number is in seconds. Holds no memory or slot meanwhile."""
        check_step_name(name)
        for_ms = duration_ms(duration, f"duration of sleep {name!r}")
        return self._call(name, self._sleep, name, for_ms, None)

    def sleep_until(self, name: str, when: datetime | float) -> Coroutine[Any, Any, None]:
        """Wait until an instant (an aware datetime, or seconds since 1970); if past, not at all."""
        check_step_name(name)
        until_ms = instant_ms(when, f"end of sleep {name!r}")
        return self._call(name, self._sleep, name, None, until_ms)

    @overload
    def wait_for_event(
        self, name: str, event_type: str, timeout: Duration = EVENT_TIMEOUT
    ) -> Coroutine[Any, Any, ReceivedEvent[Any]]: ...

    @overload
    def wait_for_event(
        self,
        name: str,
        event_type: str,
        timeout: Duration = EVENT_TIMEOUT,
        *,
        payload_type: type[P],
    ) -> Coroutine[Any, Any, ReceivedEvent[P]]: ...

    def wait_for_event(
        self,
        name: str,
        event_type: str,
        timeout: Duration = EVENT_TIMEOUT,
        *,
        payload_type: Any = Any,
    ) -> Coroutine[Any, Any, ReceivedEvent[Any]]:
        """Wait for an event of a type that is sent to the instance.

        An event that came before the wait is taken at once, oldest first; each event goes to
        one wait.

        Args:
            name: of the wait.
            event_type: letters, digits, `-` and `_`.
            timeout: how long to wait; a day, if it is not given.
            payload_type: what the payload is decoded as; not given: plain data.

        Raises:
            EventTimeout: none came in time.
            PayloadMismatch: one came that does not fit `payload_type`; it is used up.
        """
        check_step_name(name)
        check_event_type(event_type)
        timeout_ms = duration_ms(timeout, f"timeout of wait {name!r}", max_ms=SLEEP_MAX_MS)
        decode = received if payload_type is Any else self._decoder(name, payload_type)
        return self._call(name, self._wait, name, event_type, timeout_ms, decode)

    def shield(self) -> Shield:
        """`async with step.shield():` lets what is in it finish though the instance is cancelled.

        For cleanup in `except asyncio.CancelledError` or `finally`, and for what may not be left
        undone halfway.
        """
        return Shield()

    @overload
    def events(
        self,
        event_type: str,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        limit: int | None = None,
    ) -> EventIterator[Any]: ...

    @overload
    def events(
        self,
        event_type: str,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        limit: int | None = None,
        payload_type: type[P],
    ) -> EventIterator[P]: ...

    def events(
        self,
        event_type: str,
        *,
        name: str | None = None,
        timeout: Duration | None = None,
        limit: int | None = None,
        payload_type: Any = Any,
    ) -> EventIterator[Any]:
        """Events of a type one after the other: `async for event in step.events("order"): ...`.

        Each event is given once, oldest first. Every one counts as a step: a long-lived instance
        takes some and then calls `continue_as_new`.

        Args:
            event_type: letters, digits, `-` and `_`.
            name: of the waits; not given: the type.
            timeout: the loop ends when none comes for so long; None: it waits for ever.
            limit: the loop ends after so many; None: it goes on.
            payload_type: what payloads are decoded as; not given: plain data.

        Raises:
            PayloadMismatch: (in the loop) one does not fit `payload_type`; it is used up.
        """
        check_event_type(event_type)
        name = event_type if name is None else check_step_name(name)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidArgument(
                f"limit of events {name!r} is {shown(limit)}; it must be a whole number from 1 on, "
                "or None."
            )
        timeout_ms = 0
        if timeout is not None:
            timeout_ms = duration_ms(timeout, f"timeout of events {name!r}", min_ms=1)
        decode = received if payload_type is Any else self._decoder(name, payload_type)
        return EventIterator(self, name, event_type, timeout_ms, limit, decode)

    def continue_as_new(self, params: Any = None) -> NoReturn:
        """End this run and begin another one of the same instance, with those params.

        The id stays, history begins anew, and events that were not taken yet are there for the
        new run. Who waits for the instance waits for the last run. Never returns; call it in
        `run` itself. What is under way is given up, as at the end of `run`.
        """
        self._core.continue_as_new(encode_json(params, "the params of continue_as_new"))

    # --- inside -----------------------------------------------------------------------------

    def _body(
        self,
        name: str,
        fn: Callable[..., Any],
        config: Config,
        ray_options: Mapping[str, Any] | None = None,
    ) -> BodyCall:
        shape = shape_of(fn, f"step {name!r}")
        options = None
        if ray_options is not None:
            options = check_ray_options(ray_options, f"ray_options of step {name!r}")
        if config is None:
            return BodyCall(fn, shape, DEFAULTS, None, (), None, options)
        resolved = resolve(config, name)
        delay = delay_function(config) if resolved.delay_ms is None else None
        return BodyCall(fn, shape, resolved, delay, (), None, options)

    def _rollback(
        self, name: str, fn: Callable[..., Any] | None, config: Config
    ) -> BodyCall | None:
        if fn is None:
            if config is not None:
                raise InvalidArgument(f"step {name!r} has a rollback_config and no rollback.")
            return None
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise InvalidArgument(
                f"the rollback of step {name!r} is a generator, and what a rollback gives is not "
                "kept, so nothing would run it. Right: a function without `yield`."
            )
        body = self._body(f"rollback of {name}", fn, config)
        for parameter in body.shape.needs:
            if parameter not in ("error", "output"):
                raise InvalidArgument(
                    f"the rollback of step {name!r} has the parameter {parameter!r}; it may take "
                    "`ctx`, `error` and `output`. Right: `async def refund(output): ...`"
                )
        return body

    def _decoder(self, name: str, payload_type: Any) -> Callable[[Record], ReceivedEvent[Any]]:
        part = unfit_part(payload_type)
        if part is not None:
            raise InvalidArgument(
                f"payload_type of wait {name!r} is {shown(payload_type, 100)}, and {part} has no "
                "JSON form. Right: a dataclass, a pydantic model, dict[str, int], datetime, bytes, "
                "..."
            )
        return partial(received, payload_type=payload_type)

    def _declare(
        self,
        name: str | None,
        fn: Callable[..., Any],
        config: Config,
        depends: Sequence[StepFunction[Any]] | None,
        concurrent: bool,
        undo: BodyCall | None,
        ray_options: Mapping[str, Any] | None,
    ) -> StepFunction[Any]:
        own_name = getattr(fn, "__name__", "")
        public_name = name or check_step_name(own_name)
        body = self._body(public_name, fn, config, ray_options)
        body.undo = undo
        if self._declarations is None:
            self._declarations = Declarations(self)
        return self._declarations.add(own_name, public_name, body, depends, concurrent)

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

    async def _wait(
        self,
        name: str,
        event_type: str,
        timeout_ms: int,
        decode: Callable[[Record], ReceivedEvent[Any]],
    ) -> ReceivedEvent[Any]:
        claim = self._core.claim_wait(name, event_type, timeout_ms, decode)
        try:
            event: ReceivedEvent[Any] = await claim.future
            return event
        except asyncio.CancelledError:
            self._core.abandon(claim)
            raise
