"""A process of a simulation: an event loop of its own, on virtual time that all share.

Code that takes an event loop takes one of these and can't tell. Unlike a real process it can be
*paused* (as by SIGSTOP or a long garbage collection: what falls due meanwhile runs late, in
order, at `resume`) and *killed* (as by SIGKILL: nothing of it ever runs again, no `finally`
block has an effect). Processes share nothing but frames that a `SimNetwork` carries.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappush
from typing import Any, TypeVar

from .simloop import VirtualTimeLoop

T = TypeVar("T")
OnError = Callable[["SimProcess", dict[str, Any]], None]


class _Soon(asyncio.Handle):
    """A handle that is quick to make: there is no debug mode."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = context if context is not None else copy_context()
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """As `_Soon`."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = context if context is not None else copy_context()
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None
        self._when = when


class SimProcess(asyncio.AbstractEventLoop):
    """See the module.

    Args:
        name: for traces.
        world: the loop that drives the simulation.
        on_error: told what the loop's exception handler is told, while the process lives.
    """

    def __init__(self, name: str, world: VirtualTimeLoop, on_error: OnError | None = None) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.halted = False
        self._world = world
        self._ready, self._timers = world.ready, world.timers
        self._on_error = on_error
        self._held: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._mourners: dict[Callable[[], None], None] = {}

    # --- what a loop does -------------------------------------------------------------------

    def time(self) -> float:
        return self._world._virtual_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        if not self.dead:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(self._world._virtual_s + delay, callback, args, self, context)
        if not self.dead:
            heappush(self._timers, (timer._when, timer))
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        if not self.dead:
            heappush(self._timers, (when, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # the world's loop looks whether it was cancelled

    def hold(self, handle: asyncio.Handle) -> None:
        """The world's loop would run this now: it waits for `resume`, or is lost."""
        if not self.dead:
            self._held.append(handle)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs at once: a simulation has no threads."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dead:
            return
        if self._on_error is not None:
            self._on_error(self, context)
        else:
            self._world.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def get_task_factory(self) -> None:
        return None

    # --- what only a simulation does --------------------------------------------------------

    def enter(self, work: Callable[[], T]) -> T:
        """Run `work` at once, as one of this process's callbacks."""
        outside = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return work()
        finally:
            events._set_running_loop(outside)

    def pause(self) -> None:
        """Run nothing until `resume`."""
        self.paused = self.halted = True

    def resume(self) -> None:
        """Go on; what fell due meanwhile runs first, in order."""
        self.paused, self.halted = False, self.dead
        held, self._held = self._held, deque()
        self._ready.extend(held)

    def kill(self) -> None:
        """Run nothing ever again."""
        self.dead = self.halted = True
        self._held.clear()
        mourners, self._mourners = self._mourners, {}
        for mourner in mourners:
            self._world.call_soon(mourner)
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            coroutine = task.get_coro()
            try:
                coroutine.close()
            except (RuntimeError, ValueError):
                pass  # it awaits in a `finally`, or is running now: it just never goes on

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call back, outside of this process, when it is killed; at once if it was."""
        if self.dead:
            self._world.call_soon(callback)
        else:
            self._mourners[callback] = None

    def forget_death(self, callback: Callable[[], None]) -> None:
        """Take `on_death` back."""
        self._mourners.pop(callback, None)
