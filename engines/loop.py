"""The deterministic event loop that runs one instance's `run` and the tasks it makes.

It never waits and never reads a clock: the engine calls `run_until_blocked`, which executes
ready callbacks in order until none is left, then takes control back. What would be waiting in
an ordinary loop is here a future that the engine completes, or a timer that the engine fires.

Guarantees: the same calls give the same order of callbacks; tasks have an identity (`Lineage`)
and a hash that are the same at replay, so that sets of tasks iterate alike; `time()` is the time
of the turn. Files, sockets, threads and processes are refused with a message that says where
they belong. Holder: `replay.Execution`, one per live instance.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import math
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn, cast

from ..runtime.guarded import shown
from ..runtime.limits import DETERMINISTIC_CALLBACKS_PER_TURN_MAX, REFUSALS_AFTER_END_MAX
from .failures import LimitExceeded, StepMisuse

_log = logging.getLogger("toque.engines")
_WAIT_FOR_CODE = getattr(asyncio.wait_for, "__code__", None)
_FRAMES_UP_TO_WAIT_FOR = 4
_CLOSES_MAX = 10


class Lineage:
    """Who a task is: its parent's path, its coroutine's name, and its n-th use there."""

    __slots__ = ("path", "uses")

    def __init__(self, path: str) -> None:
        self.path = path
        self.uses: dict[str, int] = {}

    def nth(self, what: str) -> int:
        """How often `what` has been used in this task, this use included."""
        count = self.uses.get(what, 0) + 1
        self.uses[what] = count
        return count


class WorkflowTask(asyncio.Task[Any]):
    """A task of a `WorkflowLoop`, with a lineage, and a hash that replays.

    Attributes:
        shields: how many it is in (`shield`); those of who made it count as one.
        is_owed: a cancel waits for the end of its shield.
    """

    __slots__ = ("is_owed", "lineage", "number", "shields")

    def __init__(
        self,
        coro: Coroutine[Any, Any, Any],
        loop: WorkflowLoop,
        lineage: Lineage,
        context: contextvars.Context | None,
    ) -> None:
        self.lineage = lineage
        self.shields = 0
        self.is_owed = False
        self.number = loop.next_number()  # before super(): it hashes the new task
        super().__init__(coro, loop=loop, name=lineage.path, context=context)

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any = None) -> bool:
        """As of any task; in a shield the cancel of the whole instance has to wait."""
        if self.shields and not self.done():
            loop = self.get_loop()
            assert isinstance(loop, WorkflowLoop)
            if loop.is_cancelled:
                by = asyncio.current_task(loop)
                if loop.is_cancelling or (isinstance(by, WorkflowTask) and not by.shields):
                    self.is_owed = True
                    return True
        return super().cancel(msg)


class WorkflowFuture(asyncio.Future[Any]):
    """A future of a `WorkflowLoop`, with a hash that replays."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class Handle:
    """A callback that is ready, or a durable timer (`DurableTimer`)."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        """Don't run the callback."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.is_cancelled


class DurableTimer(Handle):
    """What `call_later` gives: the engine fires it, and records that it did."""

    __slots__ = ("due_ms", "ident", "loop", "set_ms")

    due_ms: int
    set_ms: int
    ident: str
    loop: WorkflowLoop

    def when(self) -> float:
        """Loop time at which it is due."""
        return self.due_ms / 1_000

    def fire(self) -> None:
        """Make the callback ready."""
        self.loop.ready.append(self)


class WorkflowLoop(asyncio.AbstractEventLoop):
    """See the module's description.

    Args:
        hash_base: a number that differs between runs and is the same at each replay of one.
        timer_started: told of each new timer.
    """

    def __init__(self, hash_base: int, timer_started: Callable[[DurableTimer], None]) -> None:
        self.ready: list[Handle] = []  # an empty deque takes 760 bytes, and many runs wait
        self.now_ms = 0
        self.stopping = False
        self.is_replaying = False
        self.is_cancelled = False
        self.is_cancelling = False
        self.failure: BaseException | None = None
        self._number = hash_base & 0xFFFF_FFFF_FFFF
        self._timer_started = timer_started
        self._callbacks = Lineage("~")
        self._tasks: list[WorkflowTask] = []
        self._tasks_checked_at = 16
        self._running = False
        self._closed = False
        self._refusals = 0

    # --- the engine's side ------------------------------------------------------------------

    def run_until_blocked(self) -> None:
        """Run callbacks until none is ready, or `stopping` is set.

        A callback that raises, and too many callbacks, set `failure` and `stopping`.
        """
        if not self.ready or self.stopping:
            return
        outer = asyncio._get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        self._running = True
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(None, None)  # else generators would be closed on the outer loop
        try:
            self._run_ready()
        except BaseException as error:
            # an author's callback or a task's SystemExit must not reach the shard's loop
            self.failure = error
            self.stopping = True
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(outer)
            self._running = False

    def _run_ready(self) -> None:
        left = DETERMINISTIC_CALLBACKS_PER_TURN_MAX
        while self.ready:
            batch, self.ready = self.ready, []
            left -= len(batch)
            if left < 0:
                raise LimitExceeded(
                    f"run() made {DETERMINISTIC_CALLBACKS_PER_TURN_MAX} event loop callbacks "
                    "without waiting for anything. Wrong: `while True: await "
                    "asyncio.sleep(0)`. Right: `await step.sleep('pause', 60)`."
                )
            for handle in batch:
                if not handle.is_cancelled:
                    handle.context.run(handle.callback, *handle.args)
                if self.stopping:
                    return

    def close(self) -> None:
        """Drop all tasks. Their coroutines are closed; `finally` blocks run, steps are refused."""
        if self._closed:
            return
        self._closed = self.stopping = True
        self.ready.clear()
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # so that a `finally` can't start tasks on the outer loop
        try:
            for task in self._tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    _close_quietly(task.get_coro())
                    waiter = task._fut_waiter  # type: ignore[attr-defined]
                    if waiter is not None:  # it refers to the task, and the task to it
                        waiter.cancel()
        finally:
            asyncio._set_running_loop(outer)
        self.ready.clear()
        self._tasks.clear()
        self._timer_started = _forgotten

    def cancel_tasks(self, tasks: Iterable[WorkflowTask]) -> None:
        """Cancel tasks on behalf of the whole instance."""
        self.is_cancelled = self.is_cancelling = True
        try:
            for task in tasks:
                task.cancel()
        finally:
            self.is_cancelling = False

    def open_tasks(self) -> list[WorkflowTask]:
        """Tasks that are not done, oldest first."""
        return [task for task in self._tasks if not task.done()]

    def is_pestered(self) -> bool:
        """Count a call that comes after the end; whether there were so many that `run` must be
        one that catches every refusal and asks again: raising will not end it, waiting will."""
        self._refusals += 1
        return self._refusals > REFUSALS_AFTER_END_MAX

    def next_number(self) -> int:
        """A number for a hash, the same at replay."""
        self._number += 1
        return self._number

    def start_main(self, coro: Coroutine[Any, Any, Any]) -> WorkflowTask:
        """The task of `run`."""
        task = WorkflowTask(coro, self, Lineage(""), contextvars.Context())
        self._tasks.append(task)
        return task

    # --- what asyncio and the author call ---------------------------------------------------

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **kwargs: Any,
    ) -> WorkflowTask:
        if self._closed:
            _close_quietly(coro)
            if self.is_pestered():
                return cast(WorkflowTask, self.create_future())  # whoever awaits it is closed there
            raise StepMisuse("run() has ended; no task can be started any more.")
        parent = asyncio.current_task(self)
        if not isinstance(parent, WorkflowTask):
            lineage = self._child_of(self._callbacks, coro)
        elif _called_by_wait_for():
            # In 3.11 asyncio.wait_for wraps a coroutine into a task and in 3.12 it does not:
            # the coroutine's steps belong to the task that waits.
            lineage = parent.lineage
        else:
            lineage = self._child_of(parent.lineage, coro)
        task = WorkflowTask(coro, self, lineage, context)
        if isinstance(parent, WorkflowTask) and parent.shields:
            task.shields = 1
        if name is not None:
            task.set_name(name)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_checked_at:
            self._tasks = [known for known in self._tasks if not known.done()]
            self._tasks_checked_at = 2 * len(self._tasks) + 16
        return task

    @staticmethod
    def _child_of(parent: Lineage, coro: Any) -> Lineage:
        name = getattr(coro, "__qualname__", type(coro).__name__)
        return Lineage(f"{parent.path}/{name}:{parent.nth(name)}")

    def create_future(self) -> WorkflowFuture:
        future = WorkflowFuture(loop=self)
        self._number = future.number = self._number + 1
        return future

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context)
        self.ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        if not math.isfinite(when):
            raise ValueError(f"a timer can't be due at {when}")
        timer = DurableTimer(
            callback, args, contextvars.copy_context() if context is None else context
        )
        timer.due_ms = math.ceil(when * 1_000 - 1e-3)
        timer.loop = self
        timer.set_ms = self.now_ms
        task = asyncio.current_task(self)
        lineage = task.lineage if isinstance(task, WorkflowTask) else self._callbacks
        timer.ident = f"{lineage.path}!~{lineage.nth('~')}"
        self._timer_started(timer)
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def time(self) -> float:
        return self.now_ms / 1_000

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def get_exception_handler(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log only: it is called by the garbage collector too, at times that don't replay."""
        if not self._closed:
            _log.warning("in a workflow: %s", context.get("message"), exc_info=_info_of(context))

    default_exception_handler = call_exception_handler

    async def shutdown_asyncgens(self) -> None:
        return None


def _forgotten(timer: DurableTimer) -> None:
    """Takes the timers of a loop that is closed."""


def _info_of(context: dict[str, Any]) -> BaseException | None:
    error = context.get("exception")
    return error if isinstance(error, BaseException) else None


def _close_quietly(coro: Any) -> None:
    for _ in range(_CLOSES_MAX):
        try:
            coro.close()
        except BaseException as error:
            # A `finally` that awaits, raises or exits: nobody is left to tell. One that awaits
            # (`asyncio.TaskGroup` has one) is still there, and would complain to the collector.
            _log.debug("closing %s: %s", shown(coro), shown(error))
        else:
            return
    # It catches everything and goes on. The collector would close it once more, at any time and
    # on any loop, and perhaps never come back: so it is never collected.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))
    _log.warning(
        "%s can't be ended: it catches every exception and goes on. It is left where it is, and "
        "its memory is not given back. Right: `except Exception`",
        shown(coro),
    )


def _called_by_wait_for() -> bool:
    frame = sys._getframe(2)
    for _ in range(_FRAMES_UP_TO_WAIT_FOR):
        if frame.f_code is _WAIT_FOR_CODE:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(self: WorkflowLoop, *args: Any, **kwargs: Any) -> NoReturn:
        for arg in args:
            if asyncio.iscoroutine(arg):
                arg.close()
        raise StepMisuse(
            f"run() may not use the event loop's {name}: it must do the same again at each "
            "replay, so threads, processes, sockets, signals and files belong in a step. Wrong: "
            "`await asyncio.to_thread(read, path)` in run(). Right: "
            "`await step.do('read', lambda: read(path))`."
        )

    refuse.__name__ = name
    return refuse


_REFUSED = """
    add_reader add_signal_handler add_writer call_soon_threadsafe connect_accepted_socket
    connect_read_pipe connect_write_pipe create_connection create_datagram_endpoint
    create_server create_unix_connection create_unix_server getaddrinfo getnameinfo
    remove_reader remove_signal_handler remove_writer run_forever run_in_executor
    run_until_complete sendfile set_debug set_default_executor set_exception_handler
    set_task_factory shutdown_default_executor sock_accept sock_connect sock_recv
    sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall sock_sendfile sock_sendto
    start_tls stop subprocess_exec subprocess_shell
"""
for _name in _REFUSED.split():
    setattr(WorkflowLoop, _name, _refusal(_name))


# --- forms of asyncio that are not deterministic by themselves ------------------------------

_as_completed = asyncio.as_completed


def _ordered_as_completed(fs: Any, *, timeout: float | None = None) -> Any:
    """`asyncio.as_completed`; inside a workflow, coroutines become tasks in the given order.

    The original puts them into a set first, whose order differs from run to run.
    """
    loop = asyncio._get_running_loop()
    if isinstance(loop, WorkflowLoop) and not asyncio.isfuture(fs) and not asyncio.iscoroutine(fs):
        fs = [asyncio.ensure_future(awaitable, loop=loop) for awaitable in dict.fromkeys(fs)]
    return _as_completed(fs, timeout=timeout)


def install_asyncio_forms() -> None:
    """Put the deterministic forms in place. Outside workflows nothing changes."""
    asyncio.as_completed = asyncio.tasks.as_completed = _ordered_as_completed


install_asyncio_forms()
