"""Bodies on the event loop: guarded, noted, and made no sooner than at their first step.

A task that is cancelled, or dropped with its loop, before its first step never begins its
coroutine, and Python warns of each that was made and never begun. So tasks of bodies get a
`Lazy`, which makes the coroutine when it is to begin, and else closes what it was given.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ..runtime.notes import LOOP, Notes
from .run_port import Done, Keep
from .streams import is_stream, kept


@Coroutine.register
class Lazy:
    """A coroutine, for a task, that is made at its first step and noted while it is on the loop.

    Args:
        make: gives the coroutine.
        notes: where it is noted; None: nowhere.
        tag: as whose, see `Notes.tag`.
        unused: what is to be closed if it never begins.
    """

    __slots__ = ("__weakref__", "_coro", "_is_over", "_make", "_tag", "_unused", "notes")
    __qualname__ = "body"

    def __init__(
        self,
        make: Callable[[], Any],
        notes: Notes | None = None,
        tag: bytes = b"",
        unused: Any = None,
    ) -> None:
        self.notes = notes
        self._make = make
        self._tag = tag
        self._unused = unused
        self._coro: Any = None
        self._is_over = False

    def send(self, value: Any) -> Any:
        """The next step; asyncio sends None only."""
        coro = self._coro
        if coro is None:
            if self._is_over:
                raise RuntimeError("a body can't begin after it was closed")
            coro = self._coro = self._make()
        notes = self.notes
        if notes is None:
            return coro.send(value)
        notes.enter(LOOP, self._tag)
        try:
            return coro.send(value)
        finally:
            notes.leave(LOOP)

    def throw(self, error: Any, *more: Any) -> Any:
        """The next step, with an error; if there was none yet, all is over."""
        if self._coro is None:
            self.close()
            raise error
        return self._step(self._coro.throw, error, *more)

    def close(self) -> None:
        """End it; if it has not begun, it never will."""
        self._is_over = True
        if self._coro is not None:
            self._coro.close()
        else:
            _drop(self._unused)

    def __getattr__(self, name: str) -> Any:
        """For who shows the task's stack (`cr_frame`, ...)."""
        return getattr(object.__getattribute__(self, "_coro"), name)

    def __del__(self) -> None:
        if self._coro is None:
            _drop(self._unused)

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        if self.notes is None:
            return step(*given)
        self.notes.enter(LOOP, self._tag)
        try:
            return step(*given)
        finally:
            self.notes.leave(LOOP)


def _drop(value: Any) -> None:
    """Nobody will await that any more, if it can be awaited at all."""
    close = getattr(value, "close", None)
    if close is not None and inspect.isawaitable(value):
        close()


_whose: contextvars.ContextVar[bytes] = contextvars.ContextVar("toque_whose")
"""The tag of the instance whose body has started a task."""


def note_tasks(loop: asyncio.AbstractEventLoop, notes: Notes) -> None:
    """Have every task noted that is started in the context of a body (see `in_name_of`)."""

    def make(
        loop: asyncio.AbstractEventLoop,
        coro: Any,
        *,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Any]:
        tag = _whose.get(b"") if context is None else context.get(_whose, b"")
        if tag and not isinstance(coro, Lazy):
            coro = Lazy(partial(_same, coro), notes, tag, coro)
        return asyncio.Task(coro, loop=loop, context=context, **options)

    loop.set_task_factory(make)


def in_name_of(tag: bytes, context: contextvars.Context) -> None:
    """Tasks that are started in that context from now on are an instance's."""
    context.run(_whose.set, tag)


def _same(coro: Any) -> Any:
    return coro


async def guarded(fn: Callable[..., Any], kwargs: dict[str, Any], keep: Keep | None) -> Any:
    """What an async body gives: `(error, value)`. It raises nothing."""
    try:
        value = await fn(**kwargs)
        if keep is not None and is_stream(value):
            value = await kept(value, keep[0], is_kept=keep[1])
        return None, value
    except BaseException as error:  # SystemExit would stop the shard's loop
        return error, None


async def guarded_plain(fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """The same of a body that may be no coroutine function."""
    try:
        value = fn(**kwargs)
        return None, await value if inspect.isawaitable(value) else value
    except BaseException as error:
        return error, None


async def guarded_rest(value: Any) -> Any:
    """The same of an awaitable that a body has returned."""
    try:
        return None, await value
    except BaseException as error:
        return error, None


class OnLoop:
    """A body that runs as a task.

    Args:
        loop: the event loop.
        coro: gives `(error, value)`.
        context: it runs in that.
        done: called once, when it has ended.
    """

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
        """See `run_port.Body`."""
        self._task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():  # before its first step
            self._done(asyncio.CancelledError(), None)
        else:
            self._done(*task.result())
