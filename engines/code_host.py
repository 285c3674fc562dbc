"""Where workflow code comes from and where it runs: the port, and the in-process one.

A body never harms the shard: whatever it raises, `SystemExit` too, becomes its outcome. What can't
be stopped is a thread: a synchronous body that was cancelled or timed out runs to its end in its
thread, and its result is dropped. What can't be caught at all (`os._exit`, a blocked loop) is
noted (see `notes`), so that it can be told whose it was.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from ..runtime.blobs import BlobStore
from ..runtime.errors import WorkflowLoadError
from ..runtime.guarded import called, kind_of, text_of
from ..runtime.limits import BODY_THREADS_MAX
from ..runtime.notes import Notes
from .body_threads import BodyThreads, Job
from .failures import (
    INTERRUPTED,
    BodyNotSent,
    RecordedError,
    ResourcesUnavailable,
    exception_of,
)
from .local_run import LocalRun
from .on_loop import (
    Lazy,
    OnLoop,
    guarded,
    guarded_plain,
    guarded_rest,
    in_name_of,
    note_tasks,
)
from .ray_options import shown
from .resource_body import ResourceCall, Resources, TaskLost
from .run_port import NOBODY, Around, Body, Done, Keep, Plan, Run, RunHooks, Who
from .workflow import WorkflowDefinition


class CodeHost(Protocol):
    """See the module's description."""

    def open(self, plan: Plan, hooks: RunHooks) -> Run:
        """A run on the workflow's code: of that hash if possible, else what there is now.

        Raises:
            WorkflowLoadError: there is none.
        """

    def suspicion(self, key: str) -> int:
        """How much there is against an instance from the shard's last end. Asked once."""

    def statistics(self) -> dict[str, Any]:
        """Counters, plain data."""

    async def aclose(self) -> None:
        """End all user code."""


class InProcessCodeHost:
    """Code of the account that owns the process: async bodies on the loop, others in threads.

    Args:
        loop: the event loop.
        definitions: workflows to begin with.
        inline: run synchronous bodies on the loop too (simulation: threads don't replay).
        threads: how many synchronous bodies run at a time.
        notes: where it is noted whose code runs.
        resources: runs bodies that ask for resources; None: there is no Ray.
        owns_loop: nobody else uses the loop: tasks that bodies start on it are noted, too.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        definitions: Iterable[WorkflowDefinition] = (),
        *,
        inline: bool = False,
        threads: int = BODY_THREADS_MAX,
        notes: Notes | None = None,
        resources: Resources | None = None,
        owns_loop: bool = False,
    ) -> None:
        self._notes_tasks = notes is not None and owns_loop
        if notes is not None and owns_loop:
            note_tasks(loop, notes)
        self._resources = resources
        self._loop = loop
        self.is_inline = inline
        self._notes = notes
        self._threads = BodyThreads(threads)
        self._definitions = {definition.name: definition for definition in definitions}

    def register(self, definition: WorkflowDefinition) -> None:
        """Add a workflow, or replace the one of that name."""
        self._definitions[definition.name] = definition

    def open(self, plan: Plan, hooks: RunHooks) -> Run:
        definition = self.definition(plan.workflow, plan.class_name)
        return LocalRun(plan, definition.named(plan.workflow), hooks, self._loop, self, self._notes)

    def suspicion(self, key: str) -> int:
        return 0

    def definition(self, workflow: str, class_name: str = "") -> WorkflowDefinition:
        """The code of a workflow: by its class, since a name may stand for another one's class.

        Raises:
            WorkflowLoadError: there is none of that name or class.
        """
        named = self._definitions.get(workflow)
        if named is not None and class_name in ("", named.class_name):
            return named
        for definition in self._definitions.values():
            if definition.class_name == class_name:
                return definition
        if named is None:
            raise WorkflowLoadError(
                f"workflow {workflow!r} is not loaded here; known are "
                f"{', '.join(sorted(self._definitions)) or 'none'}."
            )
        return named

    def run_body(
        self,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        is_async: bool,
        context: contextvars.Context,
        done: Done,
        who: Who = NOBODY,
        keep: Keep | None = None,
    ) -> Body:
        if self._notes_tasks:
            in_name_of(who.tag, context)
        if is_async or self.is_inline:
            make = (
                partial(guarded, fn, kwargs, keep)
                if is_async
                else partial(guarded_plain, fn, kwargs)
            )
            work = Lazy(make, self._notes, who.tag)
            return OnLoop(self._loop, work, context, done)
        return _InThread(self._loop, self._threads, self._notes, fn, kwargs, context, done, who)

    def run_elsewhere(
        self,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        options: dict[str, Any],
        done: Done,
        who: Who,
        blobs: BlobStore | None,
        around: Around | None,
    ) -> Body:
        if self._resources is None:
            error = ResourcesUnavailable(
                f"step {who.step!r} asks for {shown(options)}, and this runtime has no Ray. "
                "Use `toque dev` or start_ray, or leave ray_options out."
            )
            return _AtOnce(self._loop, done, error)

        def finished(error: BaseException | None, value: Any) -> None:
            if error is not None:
                done(_of_task(error, who), None)
                return
            recorded, encoded = value
            if recorded is not None:
                done(exception_of(recorded), None)
            else:
                done(None, encoded)

        call = ResourceCall(fn, kwargs, f"the result of step {who.step!r}", blobs, around)
        return self._resources.submit(call, options, who.name, finished)

    def hung_threads(self) -> dict[str, int]:
        """Threads held by bodies that were given up, by whose they are."""
        return dict(self._threads.hung())

    def statistics(self) -> dict[str, Any]:
        return {"threads_hung": sum(self.hung_threads().values())}

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Take no more bodies. Threads that run are not waited for."""
        self._threads.close()


class _AtOnce:
    """A body that failed before it began."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Done, error: BaseException) -> None:
        loop.call_soon(done, error, None)

    def cancel(self) -> None:
        """There is nothing to stop."""


def _of_task(error: BaseException, who: Who) -> BaseException:
    """What a step hears of a task that brought no result."""
    if isinstance(error, TaskLost):
        return exception_of(RecordedError(INTERRUPTED, "StepInterrupted", str(error)))
    if isinstance(error, asyncio.CancelledError):
        return error
    return BodyNotSent(
        f"the body of step {who.step!r} can't run as a Ray task: {kind_of(error)}: "
        f"{text_of(error)}. It is sent with all that it closes over: use values, not `self`, "
        "`step`, connections or locks."
    )


class _InThread:
    """A body that runs in a thread; a coroutine that it returns runs on the loop."""

    __slots__ = (
        "_context",
        "_done",
        "_is_cancelled",
        "_job",
        "_loop",
        "_rest",
        "_threads",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: BodyThreads,
        notes: Notes | None,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        context: contextvars.Context,
        done: Done,
        who: Who,
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._context = context
        self._done = done
        self._is_cancelled = False
        self._rest: OnLoop | None = None

        def work(slot: int) -> None:
            if notes is not None:
                notes.enter(slot, who.tag)
            error, value = called(partial(context.run, fn, **kwargs))
            if called(inspect.isawaitable, value)[
                1
            ]:  # from here on it is closed, whatever becomes of it
                value = Lazy(partial(guarded_rest, value), notes, who.tag, value)
            if notes is not None:
                notes.leave(slot)
            try:
                loop.call_soon_threadsafe(self._ended, error, value)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                pass

        self._job = Job(who.name, work)
        threads.submit(self._job)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._rest is not None:
            self._rest.cancel()
        elif self._threads.give_up(self._job):
            self._loop.call_soon(self._done, asyncio.CancelledError(), None)

    def _ended(self, error: BaseException | None, value: Any) -> None:
        if type(value) is Lazy:
            if self._is_cancelled:
                self._done(asyncio.CancelledError(), None)
            else:
                self._rest = OnLoop(self._loop, value, self._context, self._done)
            return
        self._done(error, value)
