"""Declared steps: `@step.do`, with dependencies by parameter name or `depends`.

A declared step runs where it is called and awaited, or when another needs its result. Mistakes
(two steps of one name, a step that depends on itself, an unknown parameter) raise where it is
declared, so there are no cycles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar, overload

from ..runtime.errors import InvalidArgument
from .body_call import BodyCall

if TYPE_CHECKING:
    from .step import WorkflowStep

T = TypeVar("T")


class StepFunction(Generic[T]):
    """A declared step. Calling it gives a coroutine that runs it, after what it depends on.

    Awaited twice, it runs twice; as a dependency of others it runs once.
    """

    __slots__ = ("_at_once", "_body", "_shared", "_sources", "_step", "name", "was_run")

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
        self.was_run = False
        self._shared: asyncio.Future[tuple[Any, BaseException | None]] | None = None

    @property
    def code(self) -> Any:
        """What tells one declaration from another, however often it is executed."""
        return getattr(self._body.fn, "__code__", self._body.fn)

    def __call__(self) -> Coroutine[Any, Any, T]:
        return self._step._call(self.name, self._run)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._run().__await__()

    async def _run(self) -> T:
        body = self._body
        self.was_run = True
        if self._sources:
            body = body.with_args(await self._results())
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


class Declare(Protocol):
    """What `step.do(...)` gives when it is used as a decorator."""

    @overload
    def __call__(self, fn: Callable[..., Awaitable[T]], /) -> StepFunction[T]: ...

    @overload
    def __call__(self, fn: Callable[..., T], /) -> StepFunction[T]: ...


class Declarations:
    """The steps that one execution of `run` has declared, by name and by function."""

    __slots__ = ("_by_function", "_by_name", "_step")

    def __init__(self, step: WorkflowStep) -> None:
        self._step = step
        self._by_name: dict[str, StepFunction[Any]] = {}
        self._by_function: dict[str, StepFunction[Any] | None] = {}

    def add(
        self,
        own_name: str,
        name: str,
        body: BodyCall,
        depends: Sequence[StepFunction[Any]] | None,
        concurrent: bool,
    ) -> StepFunction[Any]:
        """Declare a step: `name`, made of the function `own_name`; see `WorkflowStep.do`.

        Raises:
            InvalidArgument: its name is taken, or what it depends on is not declared.
        """
        needs = body.shape.needs
        if depends is None:
            sources = tuple(self._source(parameter, name) for parameter in needs)
        else:
            sources = tuple(depends)
            if len(sources) != len(needs) or not all(isinstance(s, StepFunction) for s in sources):
                raise InvalidArgument(
                    f"step {name!r} takes {len(needs)} results but `depends` has "
                    f"{len(sources)}; list one declared step for each parameter, in order."
                )
        declared: StepFunction[Any] = StepFunction(self._step, name, body, sources, concurrent)
        known = self._by_name.get(name)
        if known is None:
            self._step._core.declared.append(declared)
        elif known.code is not declared.code:  # the same `def` again is a loop
            raise InvalidArgument(
                f"two steps are declared as {name!r}. Wrong: the same name for two "
                "functions. Right: `@step.do('charge card')` and `@step.do('charge account')`."
            )
        self._by_name[name] = declared
        namesake = self._by_function.get(own_name, declared)
        is_same = namesake is not None and namesake.code is declared.code
        self._by_function[own_name] = declared if is_same else None
        return declared

    def _source(self, parameter: str, wanted_by: str) -> StepFunction[Any]:
        found = self._by_name.get(parameter)
        if found is None and parameter in self._by_function:
            found = self._by_function[parameter]
            if found is None:
                raise InvalidArgument(
                    f"the body of step {wanted_by!r} has the parameter {parameter!r}, and several "
                    "declared steps have functions of that name. Use a step's own name, or "
                    "`depends=[...]`."
                )
        if found is None:
            refuse_parameters(wanted_by, parameter)
        return found


def refuse_parameters(name: str, parameter: str) -> NoReturn:
    """A body has a parameter that no declared step gives."""
    if parameter == name:
        raise InvalidArgument(
            f"step {name!r} depends on itself: its body has the parameter {parameter!r}. "
            "Steps depend on steps that are declared before them, so there are no cycles."
        )
    raise InvalidArgument(
        f"the body of step {name!r} has the parameter {parameter!r}, and no step of that name "
        "was declared before with @step.do. Bodies take `ctx` and results of declared steps; "
        "pass other values by closure. Wrong: `step.do('pay', charge)` with "
        "`def charge(card)`. Right: `step.do('pay', lambda: charge(card))`."
    )


def refuse_dependencies(name: object) -> NoReturn:
    """`depends` or `concurrent` was given with a body that is called here and now."""
    raise InvalidArgument(
        f"step {name!r:.300} has `depends` or `concurrent`, which are for declared steps. Wrong: "
        "`step.do('pay', charge, depends=[price])`. Right: `@step.do('pay', depends=[price])` "
        "above `def charge(price)`; or `step.do('pay', lambda: charge(price))`."
    )
