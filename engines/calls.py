"""A step that was called and perhaps not awaited yet: a coroutine that knows its name.

Calling `step.do(...)` does nothing until the call is awaited or made a task. One that never is
has not happened, which is told at the end of `run`; one that is awaited twice is told at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from ..runtime.errors import ControlFlow
from .claims import current_body
from .failures import StepMisuse
from .loop import WorkflowLoop, WorkflowTask

T = TypeVar("T")


class ContinueAsNew(ControlFlow):
    """Raised by `step.continue_as_new`: this run ends, and another one follows it."""

    def __init__(self, params: bytes) -> None:
        super().__init__("continue as new")
        self.params = params


def is_continuing() -> bool:
    """Whether a `ContinueAsNew` is being handled where this is called from."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, BaseExceptionGroup):  # out of a TaskGroup's block
            if error.subgroup(ContinueAsNew) is not None:
                return True
        elif isinstance(error, ContinueAsNew):
            return True
        error = error.__context__
    return False


class StepCall(Coroutine[Any, Any, T]):
    """See the module's description.

    Args:
        name: of the step.
        pending: where calls stand that have not begun.
        begin: gives the coroutine that does it.
        args: of `begin`.
    """

    __slots__ = ("__qualname__", "_args", "_begin", "_coro", "_pending", "name")

    def __init__(
        self,
        name: str,
        pending: dict[int, StepCall[Any]],
        begin: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
    ) -> None:
        self.name = name
        self.__qualname__ = begin.__name__  # tasks are known by it
        self._pending = pending
        self._begin = begin
        self._args = args
        self._coro: Coroutine[Any, Any, T] | None = None
        pending[id(self)] = self

    def _start(self) -> Coroutine[Any, Any, T]:
        if self._coro is not None:
            raise StepMisuse(
                f"the call of step {self.name!r} was awaited twice. A call is one use of the step: "
                "keep its result, or call the step again. Wrong: `c = step.do(...); await c; "
                "await c`. Right: `task = asyncio.create_task(step.do(...))`, which may be "
                "awaited often."
            )
        del self._pending[id(self)]
        self._coro = coro = self._begin(*self._args)
        return coro

    def __await__(self) -> Generator[Any, Any, T]:
        return self._start().__await__()

    def send(self, value: Any) -> Any:
        """As of a coroutine: a task goes on with it."""
        coro = self._coro
        return (self._start() if coro is None else coro).send(value)

    def throw(self, *error: Any) -> Any:
        """As of a coroutine."""
        coro = self._coro
        return (self._start() if coro is None else coro).throw(*error)

    def close(self) -> None:
        """As of a coroutine. Closed before it began it counts as given up."""
        self._pending.pop(id(self), None)
        if self._coro is not None:
            self._coro.close()


def refuse_misuse(name: str, loop: WorkflowLoop, is_over: bool) -> None:
    """Refuse a step that is called where it can't be.

    Raises:
        StepMisuse
    """
    if is_over or loop.is_closed():
        raise StepMisuse(
            f"step {name!r} was called after run() had ended. Await every step, and every "
            "task that calls steps, before run() returns."
        )
    if asyncio._get_running_loop() is not loop:
        body = current_body.get("")
        where = f"inside the body of step {body!r}" if body else "from another thread or loop"
        raise StepMisuse(
            f"step {name!r} was called {where}. Steps are called by run() and the tasks that "
            "it starts. Wrong: a step.do within a function given to step.do. Right: two "
            "steps, one after the other, in run()."
        )
    if not isinstance(asyncio.current_task(loop), WorkflowTask):
        raise StepMisuse(
            f"step {name!r} was called by a callback. Steps are called by run() and the tasks "
            "that it starts. Right: `asyncio.create_task(...)`, and await it."
        )


def never_awaited(name: str) -> StepMisuse:
    """The error of a `run` that returned with a call left over."""
    return StepMisuse(
        f"step {name!r} was called and never awaited, so it did not happen. Wrong: "
        "`step.do('pay', pay)` on a line of its own. Right: `await step.do('pay', pay)`, or "
        "`asyncio.create_task(...)`, awaited before run() returns."
    )
