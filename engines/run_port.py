"""The port between an instance's rows and its code: what the Engine asks of a run, and hears.

A *run* is one life of an instance's user code, `run` and the bodies of its steps, from a replay
on. It may live in the shard's process (`local_run`) or in a worker (`remote_run`); the Engine,
which alone writes, can't tell. All that crosses is plain data: a `Plan` to begin with, acts and
events in, a `Turn` out for each time that `run` went on. Bodies start when the Engine says that
what led to them is durable. A run that is lost is no error of the instance: the Engine opens
another from its rows, and what was in flight counts as interrupted.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from ..runtime.blobs import BlobStore
from ..runtime.payload_codec import Seal
from .failures import RecordedError
from .journal import Pause, Record

Starts = list[tuple[int, int]]
"""Attempts to start once they are durable: `(ordinal of the record, attempt)`."""

ACTS = frozenset({"cancel", "made", "pause", "resume", "tick"})
"""Methods of `Execution` that the Engine may call by `Run.act`; the first argument is the time."""


class Plan(msgspec.Struct, array_like=True):
    """All that a run needs to begin.

    Attributes:
        key: the Engine's key.
        is_apart: it must have a process of its own.
        run_id, workflow, code_hash, created_ms, params: as the instance has them.
        started_ms: when `run` was first executed.
        now_ms: the shard's time.
        records: the journal so far.
        events: `(number, type, time)` of the buffered events, oldest first.
        pauses: those that are over.
        lineage_run: the run whose order of tasks is repeated.
        forked: see `Execution`.
        cancel: see `Execution`.
        undo_error: the instance is rolling back, and this is the error that handlers get.
        blobs: folder of the shard's streams; empty: there is none.
        steps_max: how many steps it may make; 0: as many as its code says.
        class_name: of the class or function that is run; empty: the one of the workflow's name.
        cut_off: how its own code ended the process that it ran in; empty: it did not.
    """

    key: str
    is_apart: bool
    run_id: str
    workflow: str
    code_hash: str
    created_ms: int
    started_ms: int
    now_ms: int
    params: bytes
    records: list[Record]
    events: list[tuple[int, str, int]]
    pauses: tuple[Pause, ...] = ()
    lineage_run: str = ""
    forked: bool = False
    undo_error: RecordedError | None = None
    cancel: bool = False
    blobs: str = ""
    steps_max: int = 0
    class_name: str = ""
    cut_off: str = ""


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """How `run` ended: with JSON, with an error, or with the params of the run that follows it."""

    output: bytes | None
    error: RecordedError | None
    next_params: bytes | None = None


class Turn(msgspec.Struct, array_like=True):
    """What came of letting `run` go on.

    Attributes:
        records: to be written.
        starts: bodies to start once those are durable.
        consumed: numbers of buffered events that are used up.
        outcome: how `run` ended, if it has.
        is_busy: whether bodies are in flight, or about to be.
        due_ms: when something is due next; 0: nothing is timed.
        awaited: types of events that are waited for (told only if not busy).
        shown: how many steps there are to show.
        code_hash: of the code that runs it.
        cancelled: `run` has been cancelled.
    """

    records: list[Record]
    starts: Starts
    consumed: list[int]
    outcome: Outcome | None
    is_busy: bool
    due_ms: int
    awaited: tuple[str, ...]
    shown: int
    code_hash: str
    cancelled: bool = False


class Pending(NamedTuple):
    """What a run waits for that is no row of its instance.

    Attributes:
        worker: the process it is to live in, with what that needs; empty: it has one.
        tasks: resources of bodies that run as tasks, or wait for them, by the record's ordinal.
    """

    worker: str
    tasks: dict[int, str]


class Run(Protocol):
    """A live run. What `begin` and `act` bring is given back, or told to `turned` later."""

    def begin(self) -> Turn | None:
        """Execute `run` through the records, then on. Called once."""

    def act(self, what: str, now_ms: int, *args: Any) -> Turn | None:
        """One of `ACTS`, as a method of `Execution`."""

    def buffer_event(self, seq: int, event_type: str, at_ms: int) -> None:
        """An event has come; the next act delivers it."""

    def start(self, starts: Starts) -> None:
        """The records of these attempts are durable: run their bodies."""

    def close(self) -> None:
        """Drop `run`, cancel its bodies. Nothing is told any more."""

    def parked(self) -> bool:
        """Nothing is in flight; `run` waits. True: it has been given up, and must begin anew."""

    def pending(self) -> Pending:
        """What the run waits for that is no row of its instance."""

    def records(self) -> list[Record] | None:
        """The journal as it is in memory; None: it is not in this process."""


class RunHooks(msgspec.Struct, frozen=True, gc=False):
    """What a run may ask of its Engine, and tell it.

    Attributes:
        turned: `run` went on by itself (a body ended), or later than it was asked to.
        lost: the run is gone, with why. It need not be closed.
        payload_of: a buffered event's payload by its number.
        now_ms: the shard's time.
        unfenced: a deliberate fault: results of attempts that were given up are taken.
        ahead: told how a step has ended before `run` hears of it, by a busy turn with that one
            record, which the turn that follows does not bring again. For runs whose process may
            end before they can tell more. None: nobody wants to know.
        seal: what streams go through on their way to disk.
    """

    turned: Callable[[Run, Turn], None]
    lost: Callable[[Run, Exception], None]
    payload_of: Callable[[int], bytes]
    now_ms: Callable[[], int]
    unfenced: bool = False
    ahead: Callable[[Run, Turn], None] | None = None
    seal: Seal | None = None


Around = Callable[[], AbstractContextManager[None]]
"""Makes what is entered around a body; it can be pickled."""
Done = Callable[[BaseException | None, Any], None]
"""Called once, on the loop and outside any task: the error, or None and the value."""


Keep = tuple[BlobStore | None, bool]
"""Where a stream that a body on the loop gives is written, and whether it is kept."""


class Who(NamedTuple):
    """Whose body runs.

    Attributes:
        tag: the instance, as `Notes.tag` gives it.
        key, step: the instance and the step, for people.
        attempt: its number; 0: no body runs, but a function that tells a delay.
    """

    tag: bytes
    key: str
    step: str
    attempt: int = 0

    @property
    def name(self) -> str:
        """Both."""
        return f"{self.key} {self.step}"


NOBODY = Who(b"", "", "")


class Body(Protocol):
    """A body that runs."""

    def cancel(self) -> None:
        """Ask it to stop; `done` is called all the same when it ends."""


@runtime_checkable
class Noted(Protocol):
    """A body that can tell something of what it waits for."""

    def note(self) -> str:
        """What there is to tell; empty: nothing."""


class BodyRunner(Protocol):
    """Where bodies run; `is_inline`: all on the loop, without threads."""

    is_inline: bool

    def run_body(
        self,
        fn: Callable[..., Any],
        kwargs: dict[str, Any],
        is_async: bool,
        context: contextvars.Context,
        done: Done,
        who: Who,
        keep: Keep | None = None,
    ) -> Body:
        """Run a body. `done` is never called before this returns.

        Args:
            keep: of an async body; None: what it gives is no stream, whatever it looks like.
        """

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
        """Run a body as a task with resources of its own; as `run_body`.

        Args:
            blobs: where it writes a stream, if it gives one.
            around: see `tracing.AttemptTracer.around`.
        """
