"""What `run` asks for: steps, sleeps, waits and timers, each found in the journal or added to it.

The part of `replay.Execution` that code inside `run` calls, by `step` and by asyncio. A thing is
identified by the task that asks (`loop.Lineage`), its kind and name, and its n-th use there.

Why a new step may not appear while recorded outcomes are left: a step that begins is written in
the same commit as the outcome that led to it. So if a later outcome is on disk, the step is too,
and one that is not there means that `run` took another way: `NonDeterminism`, without re-running
anything.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import msgspec

from ..runtime.blobs import BlobStore
from ..runtime.limits import (
    RECORDS_PER_INSTANCE_MAX,
    SLEEP_MAX_MS,
    STEPS_PER_INSTANCE_DEFAULT,
    STEPS_PER_INSTANCE_MAX,
    WAITERS_PER_INSTANCE_MAX,
)
from .agenda import Inbox
from .attempts import Attempts
from .body_call import BodyCall
from .calls import ContinueAsNew, StepCall, is_continuing, refuse_misuse
from .child_calls import STARTING, Wanted, child_id
from .claims import Claim, Deadline, shown
from .declared import StepFunction
from .failures import FAILED, LimitExceeded, RecordedError, StepMisuse, record_of
from .journal import (
    AWAITS,
    CANCELLED,
    CHILD,
    CHILD_END,
    COUNTED,
    DO,
    PENDING,
    RUNNING,
    SLEEP,
    START,
    WAIT,
    ChildCall,
    Journal,
    Pause,
    Record,
)
from .logs import Whose
from .loop import DurableTimer, WorkflowLoop, WorkflowTask
from .outcomes import diverged
from .run_port import Outcome

_ABANDONED = RecordedError(FAILED, "CancelledError", "the workflow stopped waiting for it")


class Claiming(Attempts):
    """See the module's description.

    Args:
        journal: what is recorded so far.
        hash_base: see `WorkflowLoop`.
        workflow: named in messages.
        payload_of: gives a buffered event's payload by its number.
        pauses: those that are over.
        returns: what `run`'s result must fit.
        forked: the instance was restarted from a step: results of steps that began before it and
            ended after are kept, and what `run` gave up after it is taken up again.
        rebuilding: only what is recorded is given to `run`, and nothing new begins: what is
            wanted are the `handlers`.
        cancel: the instance is to be cancelled, or has been.
        steps_max: how many steps and waits it may make.

    Attributes:
        holding: a pause is wanted: bodies in flight may end, by their steps' deadlines too;
            nothing else happens or begins.
        ending: told of each record that is over, just before `run` hears of it.
    """

    def __init__(
        self,
        journal: Journal,
        hash_base: int,
        workflow: str,
        payload_of: Callable[[int], bytes],
        pauses: Iterable[Pause] = (),
        returns: Any = Any,
        forked: bool = False,
        rebuilding: bool = False,
        cancel: bool = False,
        steps_max: int = STEPS_PER_INSTANCE_DEFAULT,
    ) -> None:
        super().__init__()
        self.journal = journal
        self.loop = WorkflowLoop(hash_base, self._timer_started)  # type: ignore[abstract]
        self.outcome: Outcome | None = None
        self.consumed: list[int] = []
        self.holding = False
        self._pauses = list(pauses)
        self.calls: dict[int, StepCall[Any]] = {}
        self.declared: list[StepFunction[Any]] = []
        self.blobs: BlobStore | None = None
        self.ending: Callable[[Record], None] | None = None
        self._forked = forked
        self._rebuilding = rebuilding
        self._wants_cancel = cancel
        self.cancelled = False
        self._others_told = False
        self.handlers: dict[int, Claim] = {}
        self._workflow = workflow
        self._returns = returns
        self._payload_of = payload_of
        records = journal.records
        self._steps = sum(record.kind in COUNTED for record in records) if records else 0
        self._inbox = Inbox()
        # of those that are left the next is the last
        self._queue = journal.delivered()[::-1] if records else []
        self._claimed: dict[str, Claim | DurableTimer | None] | None = {} if records else None
        self.loop.is_replaying = bool(records)
        self._cut_off: list[Claim] = []
        self._main: WorkflowTask | None = None
        self.whose = Whose()
        self._steps_max = steps_max
        self._next_params: bytes | None = None

    # --- what `step` calls, inside `run` ----------------------------------------------------

    def claim_do(self, name: str, body: BodyCall) -> Claim:
        """A body to run, or its recorded outcome to give."""
        claim, is_new = self._claim(DO, name)
        body.blobs = self.blobs
        claim.decode = body.decode
        claim.body = body
        claim.context = contextvars.copy_context()
        record = claim.record
        if body.undo is not None:
            self.handlers[record.ordinal] = claim
            if is_new:
                record.undo = body.undo.config
        if is_new:
            record.config = body.config
            if body.config.deadline_ms:
                record.deadline_ms = self._begins_ms + body.config.deadline_ms
        self._begin_or_go_on(claim, is_new=is_new)
        if record.deadline_ms and not record.is_over:
            self._due.put(record.deadline_ms, Deadline(claim))
        return claim

    def _begin_or_go_on(self, claim: Claim, *, is_new: bool) -> None:
        """What has attempts: the first one, or where the record stands."""
        record = claim.record
        if is_new and not self.holding:
            self._open_attempt(claim)
        elif is_new:
            record.due_ms = self._begins_ms
            self._due.put(record.due_ms, claim)
        elif record.state == RUNNING:
            self._cut_off.append(claim)
        elif record.state == PENDING:
            if record.due_ms:
                self._due.put(record.due_ms, claim)
            else:
                self._cut_off.append(claim)

    def claim_start(self, name: str, wanted: Wanted, decode: Callable[[Record], Any]) -> Claim:
        """A child to make. What it is stands in the record from the first time on."""
        claim, is_new = self._claim(START, name)
        claim.decode = decode
        record = claim.record
        if is_new:
            call = f"{self.whose.run}.{record.ordinal}"
            id = wanted.id or child_id(self.whose.instance, call)
            record.child = ChildCall(call, wanted.workflow, id, wanted.on_end, wanted.params)
            record.config = STARTING
        self._begin_or_go_on(claim, is_new=is_new)
        return claim

    def claim_child(
        self, name: str, child: ChildCall, is_owned: bool, decode: Callable[[Record], Any]
    ) -> Claim:
        """A child's end to wait for. `decode` raises if its output does not fit."""
        claim, is_new = self._claim(CHILD, name)
        claim.decode = decode
        if is_new:
            claim.record.child = msgspec.structs.replace(child, params=b"", is_owned=is_owned)
        self._await(claim, CHILD_END + child.call, SLEEP_MAX_MS, is_new=is_new)
        return claim

    def claim_sleep(self, name: str, for_ms: int | None, until_ms: int | None) -> Claim:
        """A sleep to sit out. Its end is fixed when it begins."""
        claim, is_new = self._claim(SLEEP, name)
        record = claim.record
        if is_new:
            now_ms = self._begins_ms
            record.is_instant = until_ms is not None
            record.due_ms = max(1, until_ms) if until_ms is not None else now_ms + (for_ms or 0)
        if record.state == PENDING:
            self._due.put(record.due_ms, claim)
        return claim

    def claim_wait(
        self, name: str, event_type: str, timeout_ms: int, decode: Callable[[Record], Any]
    ) -> Claim:
        """An event to wait for. `decode` raises if its payload does not fit."""
        claim, is_new = self._claim(WAIT, name)
        claim.decode = decode
        self._await(claim, event_type, timeout_ms, is_new=is_new)
        return claim

    def _await(self, claim: Claim, event_type: str, timeout_ms: int, *, is_new: bool) -> None:
        record = claim.record
        if is_new:
            record.event_type = event_type
            record.due_ms = self._begins_ms + timeout_ms
        if record.state == PENDING:
            self._due.put(record.due_ms, claim)
            self._inbox.wait(claim)
            if self._inbox.waiting > WAITERS_PER_INSTANCE_MAX:
                self._over_limit(f"{WAITERS_PER_INSTANCE_MAX} waits for events at a time")

    def continue_as_new(self, params: bytes) -> NoReturn:
        """End this run and let another follow it."""
        self.refuse_misuse("continue_as_new")
        if asyncio.current_task(self.loop) is not self._main:
            raise StepMisuse(
                "step.continue_as_new was called by a task that run() had started. Call it in "
                "run() itself, after the tasks that still matter."
            )
        self._next_params = params
        raise ContinueAsNew(params)

    def refuse_misuse(self, name: str) -> None:
        """Refuse a step that is called where it can't be.

        Raises:
            StepMisuse
        """
        loop = self.loop
        if (
            self.outcome is not None
            or asyncio._get_running_loop() is not loop
            or not isinstance(asyncio.current_task(loop), WorkflowTask)
            or loop.is_closed()
        ):
            refuse_misuse(name, loop, self.outcome is not None)

    def abandon(self, claim: Claim) -> None:
        """`run` was cancelled where it awaited the claim, and gives it up."""
        record = claim.record
        if record.is_over or self.outcome is not None or self.loop.is_closed():
            return
        self._stop_body(claim, self.loop.now_ms, _ABANDONED)
        record.end(self.loop.now_ms, CANCELLED)
        self.dirty[record.ordinal] = record
        if record.kind in AWAITS:
            self._inbox.give_up(claim)

    # --- inside -----------------------------------------------------------------------------

    @property
    def _begins_ms(self) -> int:
        """When what is new begins: now, though after a restart from a step `run` comes to it in a
        replay, whose loop stands at an outcome of long ago."""
        return max(self.loop.now_ms, self.now_ms)

    def _claim(self, kind: str, name: str) -> tuple[Claim, bool]:
        loop = self.loop
        task = asyncio.current_task(loop)
        if (
            self.outcome is not None
            or asyncio._get_running_loop() is not loop
            or not isinstance(task, WorkflowTask)
            or loop.is_closed()
        ):
            refuse_misuse(name, loop, self.outcome is not None)
        assert isinstance(task, WorkflowTask)
        if self.cancelled and not task.shields:
            raise asyncio.CancelledError(f"the instance is cancelled; {name!r} is not done")
        lineage = task.lineage
        use = f"{kind}!{name}"
        ident = f"{lineage.path}!{use}:{lineage.nth(use)}"
        record = self.journal.by_ident.get(ident)
        is_new = record is None
        if record is None:
            record = self.journal.new(kind, ident, name, self._begins_ms)
            if self._queue:
                self._diverged(f"run() came to the new {shown(record)}", reversed(self._queue))
            if (
                self._queue
                or self._rebuilding
                or (self._next_params is not None and self._has_swallowed_its_end())
                or self._is_over_limit(record)
            ):
                record.end(loop.now_ms, CANCELLED)  # in memory only: it is never done
                return Claim(record, loop.create_future()), False
            self._add(record)
        claim = Claim(record, loop.create_future())
        if self._claimed is not None:
            self._claimed[ident] = claim
        return claim, is_new

    def _add(self, record: Record) -> None:
        self.journal.apply(record)
        self.dirty[record.ordinal] = record
        self._steps += record.kind in COUNTED

    def _timer_started(self, timer: DurableTimer) -> None:
        if timer.due_ms <= self.loop.now_ms:
            self.loop.ready.append(timer)  # due at once at each replay too: no record needed
            return
        if self._has_swallowed_its_end():
            return
        if self._claimed is not None:
            self._claimed[timer.ident] = timer
            if timer.ident in self.journal.by_ident:
                return
        self._due.put(timer.due_ms, timer)

    def _has_swallowed_its_end(self) -> bool:
        """Whether `run` goes on although it was to continue as new; then it ends here.

        What it does while it handles that (`finally`, `except BaseException`) is its cleanup.
        """
        if (
            self._next_params is None
            or asyncio.current_task(self.loop) is not self._main
            or is_continuing()
        ):
            return False
        self.outcome = self.outcome or Outcome(None, None, self._next_params)
        self.loop.stopping = True
        return True

    def _is_over_limit(self, record: Record) -> bool:
        """Whether a new record is one too many; the instance ends then."""
        if record.kind in COUNTED and self._steps >= self._steps_max:
            self._over_limit(
                f"{self._steps_max} steps. Right: `limits = {{'steps': ...}}` on the workflow (at "
                f"most {STEPS_PER_INSTANCE_MAX}), or step.continue_as_new"
            )
            return True
        if record.ordinal > RECORDS_PER_INSTANCE_MAX:
            self._over_limit(f"{RECORDS_PER_INSTANCE_MAX} steps, sleeps, waits and timers in all")
            return True
        return False

    def _over_limit(self, what: str) -> None:
        self.fail(record_of(LimitExceeded(f"an instance of {self._workflow} may make {what}.")))

    def fail(self, error: RecordedError) -> None:
        """End the instance with an error that `run` can't catch."""
        if self.outcome is None or self.outcome.error is None:
            self.outcome = Outcome(None, error)
        self.loop.stopping = True

    def _diverged(self, found: str, recorded: Iterable[Record]) -> None:
        """Park the instance. Nothing of this turn is written or started."""
        asked = [
            shown(claim.record)
            for claim in (self._claimed or {}).values()
            if isinstance(claim, Claim) and not claim.future.done()
        ]
        self.dirty.clear()
        self.starts.clear()
        next_up = next((shown(record) for record in recorded), "its end")
        self.fail(diverged(self._workflow, found, asked, next_up))
