"""Where workflow code comes from and where it runs: the port, and the in-process one.

A body never harms the shard: whatever it raises, `SystemExit` too, becomes its outcome. What can't
be stopped is a thread: a synchronous body that was cancelled or timed out runs to its end in its
thread, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from ..runtime.errors import WorkflowLoadError
from ..runtime.limits import BODY_THREADS_MAX
from .local_run import LocalRun
from .run_port import Body, Done, Plan, Run, RunHooks
from .workflow import WorkflowDefinition


class CodeHost(Protocol):
    """See the module's description."""

    def open(self, plan: Plan, hooks: RunHooks) -> Run:
        """A run on the workflow's code: of that hash if possible, else what there is now.

        Raises:
            WorkflowLoadError: there is none.
        """


class InProcessCodeHost:
    """Code of the account that owns the process: async bodies on the loop, others in threads.

    Args:
        loop: the shard's event loop.
        definitions: workflows to begin with.
        inline: run synchronous bodies on the loop too (simulation: threads don't replay).
        threads: how many synchronous bodies run at a time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        definitions: Iterable[WorkflowDefinition] = (),
        *,
        inline: bool = False,
        threads: int = BODY_THREADS_MAX,
    ) -> None:
        self._loop = loop
        self._inline = inline
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._definitions = {definition.name: definition for definition in definitions}

    def register(self, definition: WorkflowDefinition) -> None:
        """Add a workflow, or replace the one of that name."""
        self._definitions[definition.name] = definition

    def open(self, plan: Plan, hooks: RunHooks) -> Run:
        definition = self.definition(plan.workflow)
        return LocalRun(plan, definition, hooks, self._loop, self)

    def definition(self, workflow: str) -> WorkflowDefinition:
        """The code of a workflow.

        Raises:
            WorkflowLoadError: there is none of that name.
        """
        try:
            return self._definitions[workflow]
        except KeyError:
            raise WorkflowLoadError(
                f"workflow {workflow!r} is not loaded here; known are "
                f"{', '.join(sorted(self._definitions)) or 'none'}."
            ) from None

    def run_body(
        self,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        is_async: bool,
        context: contextvars.Context,
        done: Done,
    ) -> Body:
        if is_async:
            return _OnLoop(self._loop, _guarded(fn, kwargs), context, done)
        if self._inline:
            return _OnLoop(self._loop, _guarded_plain(fn, kwargs), context, done)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="toque-step")
        return _InThread(self._loop, self._pool, fn, kwargs, context, done)

    def close(self) -> None:
        """Take no more bodies. Threads that run are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


async def _guarded(fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    try:
        return None, await fn(**kwargs)
    except BaseException as error:  # SystemExit would stop the shard's loop
        return error, None


async def _guarded_plain(fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    try:
        value = fn(**kwargs)
        return None, await value if inspect.isawaitable(value) else value
    except BaseException as error:
        return error, None


async def _guarded_rest(value: Any) -> Any:
    try:
        return None, await value
    except BaseException as error:
        return error, None


class _OnLoop:
    """A body that runs as a task."""

    __slots__ = ("_done", "_task")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Any,
        context: contextvars.Context,
        done: Done,
    ) -> None:
        self._done = done
        self._task = loop.create_task(coro, context=context)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        self._task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():  # before its first step
            self._done(asyncio.CancelledError(), None)
        else:
            self._done(*task.result())


class _InThread:
    """A body that runs in a thread; a coroutine that it returns runs on the loop."""

    __slots__ = ("_context", "_done", "_future", "_is_cancelled", "_loop", "_rest")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: ThreadPoolExecutor,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        context: contextvars.Context,
        done: Done,
    ) -> None:
        self._loop = loop
        self._context = context
        self._done = done
        self._is_cancelled = False
        self._rest: _OnLoop | None = None
        self._future = pool.submit(_call_in, context, fn, kwargs)
        self._future.add_done_callback(self._left_thread)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._rest is not None:
            self._rest.cancel()
        else:
            self._future.cancel()

    def _left_thread(self, future: Future[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended, future)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            pass

    def _ended(self, future: Future[Any]) -> None:
        if future.cancelled():
            self._done(asyncio.CancelledError(), None)
            return
        error, value = future.result()
        if error is None and inspect.isawaitable(value):
            if self._is_cancelled:
                getattr(value, "close", lambda: None)()
                self._done(asyncio.CancelledError(), None)
            else:
                self._rest = _OnLoop(self._loop, _guarded_rest(value), self._context, self._done)
            return
        self._done(error, value)


def _call_in(
    context: contextvars.Context, fn: Callable[..., Any], kwargs: dict[str, Any]
) -> tuple[BaseException | None, Any]:
    try:
        return None, context.run(fn, **kwargs)
    except BaseException as error:
        return error, None
