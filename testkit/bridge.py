"""A client's backend that may be called in any process of a simulation, bodies of steps included.

The call itself runs in the front end's process, as it would at the other end of a socket: who
called may die meanwhile, and it goes on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

from ..api.client_embedded import EmbeddedBackend
from ..api.client_port import Backend
from ..api.client_values import CallOptions
from ..runtime.simprocess import SimProcess

T = TypeVar("T")


def bridged(backend: EmbeddedBackend, home: SimProcess) -> Backend:
    """The backend, for all.

    Args:
        backend: of the front end.
        home: the front end's process.
    """
    return cast(Backend, _Bridge(backend, home))


class _Bridge:
    def __init__(self, backend: EmbeddedBackend, home: SimProcess) -> None:
        self._backend = backend
        self._home = home

    def with_options(self, options: CallOptions) -> _Bridge:
        """As `Backend.with_options`."""
        return _Bridge(self._backend.with_options(options), self._home)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        return partial(self._at_home, value) if inspect.iscoroutinefunction(value) else value

    async def _at_home(
        self, call: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any
    ) -> T:
        here, home = asyncio.get_running_loop(), self._home
        if here is home:
            return await call(*args, **options)
        done: asyncio.Future[T] = here.create_future()

        def ended(task: asyncio.Task[T]) -> None:
            here.call_soon(_settle, done, task)

        def begin() -> None:
            home.create_task(call(*args, **options)).add_done_callback(ended)

        home.call_soon(begin)
        return await done


def _settle(done: asyncio.Future[T], task: asyncio.Task[T]) -> None:
    error = None if task.cancelled() else task.exception()
    if done.done():
        return  # who called was cancelled
    if task.cancelled():
        done.cancel()
    elif error is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())
