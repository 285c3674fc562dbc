"""A body that needs resources: run as a task elsewhere, by a port that the floor below fills.

What travels there is our own process's code (the function with what it closes over) and results
of steps; what comes back is data: JSON, or an error's record. Nothing that is stored or received
from outside is ever turned into code.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

from ..runtime.blobs import BlobStore
from ..runtime.codec import encode_json
from ..runtime.guarded import called
from .failures import RecordedError, record_of
from .outcomes import record_unfit
from .run_port import Around, Body, Done
from .streams import StreamRef, drained


class Encoded(NamedTuple):
    """A result that is JSON already, or why it can't be."""

    raw: bytes | None
    unfit: RecordedError | None


class TaskLost(Exception):
    """The process or machine of a task has ended under it."""


class Resources(Protocol):
    """Runs calls where their resources are."""

    def submit(
        self, call: Callable[[], Any], options: dict[str, Any], name: str, done: Done
    ) -> Body:
        """Run a call as a task, once, when its resources are free.

        `done` gets what it returns; `TaskLost` if its process ended; `CancelledError`; or what
        kept it from being sent. Never before this returns.
        """


class ResourceCall:
    """The call of a body, as it travels.

    Args:
        fn: the body.
        kwargs: its arguments.
        what: names its result in messages.
        blobs: where it writes a stream, if it gives one; its disk must be reached there, too.
        around: makes what is entered around the body: the trace that it belongs to, say.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        what: str,
        blobs: BlobStore | None = None,
        around: Around | None = None,
    ) -> None:
        self.fn = fn
        self.kwargs = kwargs
        self.what = what
        self.blobs = blobs
        self.around = around

    def __call__(self) -> tuple[RecordedError | None, Encoded | StreamRef | None]:
        try:
            with nullcontext() if self.around is None else self.around():
                is_async = inspect.iscoroutinefunction(self.fn)
                value = drained(self.fn, is_async, self.blobs)(**self.kwargs)
                if inspect.isawaitable(value):
                    value = asyncio.run(_awaited(value))
        except BaseException as error:
            return record_of(error), None
        if type(value) is StreamRef:
            return None, value
        unfit, raw = called(encode_json, value, self.what)
        return None, Encoded(raw, None if unfit is None else record_unfit(unfit, self.what))


async def _awaited(value: Any) -> Any:
    return await value
