"""What carries a blocking client's calls to a loop of its own, on a thread of its own.

The blocking classes (`client_blocking`) are made from the async ones; each of their calls runs
the async one on this loop and waits. So there is one implementation, one pool of connections
per client, and any number of threads may share a client.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from ..runtime.errors import InvalidArgument, OutcomeUnknown

T = TypeVar("T")
Inner = TypeVar("Inner")


class Portal:
    """A running loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="toque", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result. If the wait is interrupted, the work is cancelled."""
        try:
            with self._lock:  # what is begun before a close is ended by it
                self._check()
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except InvalidArgument:
            work.close()
            raise
        return self._result(future)

    @staticmethod
    def _result(future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError:
            raise OutcomeUnknown("the client was closed before the answer came.") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """What an async iterator gives, one after the other."""
        try:
            while True:
                try:
                    yield self.run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(source, "aclose", None)
            if close is not None and self._is_open():
                self.run(close())

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End calls under way, do what is last, then end the loop and its thread.

        A second time does nothing.
        """
        with self._lock:
            if not self._is_open():
                return
            self._check()
            self._closed = True
        try:
            self._result(asyncio.run_coroutine_threadsafe(_end(last), self._loop))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _is_open(self) -> bool:
        return not self._closed and self._process == os.getpid()

    def _check(self) -> None:
        if self._process != os.getpid():
            raise InvalidArgument(
                "this client was made before the process was forked; connect again in the child."
            )
        if self._closed:
            raise InvalidArgument("the client is closed. Right: with toque.connect_blocking(url).")
        if threading.current_thread() is self._thread:
            raise InvalidArgument(
                "a callback of the client can't call it and wait: it would wait for itself."
            )


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


async def _end(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Cancel what other threads wait for, which else would wait for ever; then do what is last."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last()
    await asyncio.get_running_loop().shutdown_asyncgens()


class Blocking(Generic[Inner]):
    """A blocking twin.

    Args:
        portal: where its calls run.
        inner: the async object that it stands for.
    """

    def __init__(self, portal: Portal, inner: Inner) -> None:
        self._portal = portal
        self._inner = inner
