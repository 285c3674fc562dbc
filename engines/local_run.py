"""A run in this process: `run` on its deterministic loop, and the bodies of its steps.

The same object serves in a shard and in a worker; who holds it writes what it brings. Results are
encoded here, before anything is told: a value that has no JSON form ends the instance, since no
other attempt would do better.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..runtime.codec import encode_json
from ..runtime.errors import SystemFault
from ..runtime.guarded import called, kind_of, log, text_of
from ..runtime.ids import split_engine_key, stable_hash
from ..runtime.limits import REPLAYED_PER_TURN_MAX
from ..runtime.notes import LOOP, Notes
from ..runtime.payload_codec import Seal
from .bodies import Bodies
from .claims import Claim
from .failures import RecordedError, record_of
from .journal import DO, UNDO, Journal, Record
from .logs import Whose
from .outcomes import interrupted, record_unfit
from .replay import Execution
from .resource_body import Encoded
from .rollback import Unwinding
from .run_port import ACTS, BodyRunner, Outcome, Pending, Plan, RunHooks, Starts, Turn
from .step import WorkflowStep
from .stream_store import StreamStore
from .streams import StreamRef
from .workflow import WorkflowDefinition

_log = logging.getLogger("toque.engines")


class LocalRun:
    """See the module's description.

    Args:
        plan: what to begin with.
        definition: the code.
        hooks: of whom holds it.
        loop: the event loop of timers and asynchronous bodies.
        runner: where bodies run.
        notes: where it is noted that its code is on the loop.
    """

    __slots__ = (
        "_acts",
        "_bodies",
        "_claims",
        "_definition",
        "_execution",
        "_hooks",
        "_is_closed",
        "_loop",
        "_notes",
        "_plan",
        "_tag",
    )

    def __init__(
        self,
        plan: Plan,
        definition: WorkflowDefinition,
        hooks: RunHooks,
        loop: asyncio.AbstractEventLoop,
        runner: BodyRunner,
        notes: Notes | None,
    ) -> None:
        self._plan = plan
        self._definition = definition
        self._hooks = hooks
        self._loop = loop
        self._is_closed = False
        self._notes = notes
        self._tag = Notes.tag(plan.key)
        self._acts: list[tuple[str, tuple[Any, ...]]] | None = None
        self._claims: dict[int, Claim] = {}
        self._execution: Execution | Unwinding = Execution(
            Journal.of(plan.records),
            stable_hash(plan.lineage_run or plan.run_id),
            f"workflow {plan.workflow!r}",
            hooks.payload_of,
            plan.pauses,
            definition.returns,
            plan.forked,
            plan.undo_error is not None,
            plan.cancel,
            plan.steps_max or definition.steps_max,
        )
        if plan.cut_off:
            self._execution.interruption = interrupted(plan.cut_off)
        self._execution.blobs = _blobs_of(plan, runner, hooks)
        if hooks.ahead is not None:
            self._execution.ending = self._tell_ahead
        whose = Whose(plan.workflow, split_engine_key(plan.key)[2], plan.run_id)
        self._execution.whose = whose
        self._bodies = Bodies(
            loop,
            runner,
            self._attempt_ended,
            self._delay_told,
            (self._tag, plan.key, whose),
            unfenced=hooks.unfenced,
        )

    def begin(self) -> Turn | None:
        """See `run_port.Run`. A long replay is done in slices, and the rest told later."""
        plan, execution = self._plan, self._execution
        assert isinstance(execution, Execution)
        if self._notes is not None:
            self._notes.enter(LOOP, self._tag)
        for event in plan.events:
            execution.buffer_event(*event)
        try:
            coro = self._definition.start(
                plan.params,
                datetime.fromtimestamp(plan.created_ms / 1_000, UTC),
                split_engine_key(plan.key)[2],
                WorkflowStep(execution),
            )
        except BaseException as error:  # the author's constructor, or params of another type
            execution.fail(record_of(error))
        else:
            is_long = len(plan.records) > REPLAYED_PER_TURN_MAX  # reading it has taken a while
            most = 0 if is_long else REPLAYED_PER_TURN_MAX
            if not execution.begin(coro, plan.started_ms, plan.now_ms, most):
                self._acts = []
                self._loop.call_soon(self._replay_on)
        plan.records = []  # the journal holds them now
        if self._acts is None:
            self._replayed(plan.now_ms)
            return self._turn()
        self._leave()
        return None

    def act(self, what: str, now_ms: int, *args: Any) -> Turn | None:
        """See `run_port.Run`. What comes during a long replay is done after it."""
        assert what in ACTS, what
        if self._acts is not None:
            self._acts.append((what, args))
            return None
        if self._notes is not None:
            self._notes.enter(LOOP, self._tag)
        getattr(self._execution, what)(now_ms, *args)
        return self._turn()

    def buffer_event(self, seq: int, event_type: str, at_ms: int) -> None:
        """See `run_port.Run`."""
        self._execution.buffer_event(seq, event_type, at_ms)

    def start(self, starts: Starts) -> None:
        """See `run_port.Run`."""
        if not self._is_closed:
            claims = self._claims
            self._bodies.start([(claims[ordinal], number) for ordinal, number in starts])

    def close(self) -> None:
        """See `run_port.Run`."""
        self._is_closed = True
        self._bodies.close()
        if self._notes is None:
            self._execution.close()
            return
        self._notes.enter(LOOP, self._tag)  # `finally` blocks run
        self._execution.close()
        self._notes.leave(LOOP)

    def parked(self) -> bool:
        """See `run_port.Run`."""
        return False

    def pending(self) -> Pending:
        """See `run_port.Run`."""
        return Pending("", self._bodies.tasks())

    def records(self) -> list[Record]:
        """See `run_port.Run`."""
        return self._execution.journal.records

    # --- inside -----------------------------------------------------------------------------

    def _replay_on(self) -> None:
        """The next slice of a long replay; others of the shard had their turn meanwhile."""
        if self._is_closed:
            return
        if self._notes is not None:
            self._notes.enter(LOOP, self._tag)
        now_ms = self._hooks.now_ms()
        try:
            execution = self._execution
            assert isinstance(execution, Execution)
            if not execution.replay(now_ms, REPLAYED_PER_TURN_MAX):
                self._loop.call_soon(self._replay_on)
                self._leave()
                return
            self._replayed(now_ms)
            acts, self._acts = self._acts or [], None
            for what, args in acts:
                getattr(self._execution, what)(now_ms, *args)
            turn = self._turn()
        except Exception as error:
            self._hooks.lost(self, error)
            return
        self._hooks.turned(self, turn)

    def _replayed(self, now_ms: int) -> None:
        """If the instance rolls back, what has been executed was for its handlers only."""
        why, execution = self._plan.undo_error, self._execution
        if why is not None and isinstance(execution, Execution):
            self._execution = unwinding = Unwinding(execution.journal, execution.handlers, why)
            execution.close()
            unwinding.begin(now_ms)

    def _tell_ahead(self, record: Record) -> None:
        """`run` goes on next, and may end the process: the step that led to it is not to blame.

        Only what stands by itself is told: nothing else has happened since the last turn.
        """
        execution, ahead = self._execution, self._hooks.ahead
        if record.kind == DO and len(execution.dirty) == 1 and ahead is not None:
            del execution.dirty[record.ordinal]
            ahead(self, self._turn_of([record], [], [], None, is_busy=True))

    def _leave(self) -> None:
        if self._notes is not None:
            self._notes.leave(LOOP)

    def _turn(self) -> Turn:
        """Take what the execution has brought; bodies that it gave up stop at once."""
        self._leave()
        execution = self._execution
        records = list(execution.dirty.values())
        execution.dirty.clear()
        for ordinal in execution.stops:
            self._bodies.stop(ordinal)
        execution.stops.clear()
        starts: Starts = []
        for claim, number in execution.starts:
            ordinal = claim.record.ordinal
            self._claims[ordinal] = claim
            starts.append((ordinal, number))
        execution.starts.clear()
        consumed, execution.consumed = execution.consumed, []
        is_busy = bool(execution.in_flight)
        return self._turn_of(records, starts, consumed, execution.outcome, is_busy=is_busy)

    def _turn_of(
        self,
        records: list[Record],
        starts: Starts,
        consumed: list[int],
        outcome: Outcome | None,
        *,
        is_busy: bool,
    ) -> Turn:
        execution = self._execution
        return Turn(
            records,
            starts,
            consumed,
            outcome,
            is_busy,
            execution.next_due_ms(),
            () if is_busy else execution.awaited_types(),
            execution.journal.shown,
            self._definition.code_hash,
            isinstance(execution, Execution) and execution.cancelled,
        )

    def _attempt_ended(
        self, claim: Claim, number: int, error: RecordedError | None, value: Any
    ) -> None:
        self._claims.pop(claim.record.ordinal, None)
        self._take(claim, number, self._ended, error, value)

    def _ended(self, claim: Claim, number: int, error: RecordedError | None, value: Any) -> bool:
        execution = self._execution
        now_ms = self._hooks.now_ms()
        result, stream = None, ""
        if type(value) is StreamRef:
            value, stream = {"stream": value}, value.file
        if error is None and claim.record.kind != UNDO:
            result, unfit = self._encoded(claim.record, value)
            if unfit is not None:
                execution.refuse_result(claim, unfit, now_ms)
                return True
        fenced = not self._hooks.unfenced
        return execution.body_done(claim, number, error, result, now_ms, fenced, stream)

    def _encoded(self, record: Record, value: Any) -> Encoded:
        if type(value) is Encoded:
            return value
        try:
            return Encoded(encode_json(value), None)
        except BaseException as fault:
            error = fault
        what = f"the result of step {record.public_name!r} of workflow {self._plan.workflow!r}"
        unfit, _ = called(encode_json, value, what)  # again, to say whose it is
        return Encoded(None, record_unfit(unfit or error, what))

    def _delay_told(
        self, claim: Claim, number: int, told_ms: int, problem: RecordedError | None
    ) -> None:
        told = self._execution.delay_told
        self._take(claim, number, told, told_ms, problem, self._hooks.now_ms())

    def _take(self, claim: Claim, number: int, change: Callable[..., bool], *args: Any) -> None:
        """Take in what became of an attempt. Should that fail, the run is given up and made anew:
        an attempt that nobody has heard of any more would be waited for for ever.
        """
        if self._notes is not None:
            self._notes.enter(LOOP, self._tag)
        fault: BaseException | None = None
        is_changed = False
        try:
            is_changed = change(claim, number, *args)
        except BaseException as error:
            fault = error  # told outside of this handler, which another run would see
        if fault is not None:
            self._leave()
            text = (
                f"what became of attempt {number} of step {claim.record.public_name!r} can't be "
                f"taken in: {kind_of(fault)}: {text_of(fault)}"
            )
            log(_log, logging.ERROR, "%s: %s", self._plan.key, text, error=fault)
            self._hooks.lost(self, SystemFault(text))
        elif is_changed:
            self._hooks.turned(self, self._turn())
        else:
            self._leave()


def _blobs_of(plan: Plan, runner: BodyRunner, hooks: RunHooks) -> StreamStore | None:
    if not plan.blobs:
        return None
    seal = hooks.seal or Seal(split_engine_key(plan.key)[0])
    return StreamStore(_folder(plan.blobs), seal, is_inline=runner.is_inline)


@lru_cache(maxsize=16)
def _folder(path: str) -> Path:
    return Path(path)  # takes longer than all else that makes a store
