"""How an instance lives: running, parking, waking, ending, and what is written when.

The base of `engine.Engine`, which adds what others may ask of it. A thin shell around a `Run`
(see `run_port`), wherever that lives: it loads and writes rows, lets bodies start, keeps the
alarm, and tells the SousChef how things stand. Every event ends with `_flush`, which writes all
rows of the event or none, and only then asks to be called when they are durable. An event that
breaks off for whatever reason leaves memory as the rows say (`whole`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from ..runtime import limits
from ..runtime.entity import Context, DurableObject
from ..runtime.errors import (
    CallerError,
    EntityReset,
    InstanceNotFound,
    SystemFault,
    WorkerLost,
    WorkflowLoadError,
)
from ..runtime.ids import split_engine_key
from .env import EngineEnv
from .failures import (
    FAILED,
    InstanceCrashed,
    RecordedError,
    WorkflowStuck,
    cancelled_error,
    record_of,
)
from .journal import Instance, Undoing
from .ports import StatusReport
from .present import instance_view
from .rollback import is_undone
from .rows import InstanceRows
from .run_port import Plan, Run, RunHooks, Starts, Turn
from .status import FINISHED, HOLDS_SLOT, SLOT_STATES, Event, move
from .views import InstanceView, StepView

_log = logging.getLogger("toque.engines")
_M = TypeVar("_M", bound=Callable[..., Any])


def whole(method: _M) -> _M:
    """An event that may not be done by half: if it breaks off, memory is read anew from the rows.

    (The store's batch may be full, or there is a bug here.) Refusals (`CallerError`) come before
    anything is changed and pass through.
    """

    @functools.wraps(method)
    def guarded(self: InstanceLife, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except CallerError:
            raise
        except Exception as error:
            self._start_over(error)
            if not isinstance(error, SystemFault):
                raise
            if not method.__name__.startswith("_"):  # somebody waits for the answer
                raise

    return cast(_M, guarded)


class InstanceLife(DurableObject):
    """See the module's description."""

    env: EngineEnv

    def __init__(self, ctx: Context, env: EngineEnv) -> None:
        super().__init__(ctx, env)
        self._rows = InstanceRows(ctx, env.store, env.blobs, env.codecs)
        self._instance = self._rows.load()
        self._run: Run | None = None
        self._due_timer: asyncio.TimerHandle | None = None
        self._waiters: dict[asyncio.Future[InstanceView], asyncio.TimerHandle] = {}
        self._confirmed_seq = 0
        self._is_changed = False
        self._must_report = False
        self._starts: Starts = []
        self._code_error = ""

    # --- running ----------------------------------------------------------------------------

    def _keep_running(self) -> None:
        """Take up what holds a slot but is not in memory: after a crash, or a reset."""
        instance = self._instance
        if (
            instance is not None
            and instance.status in HOLDS_SLOT
            and self._run is None
            and self._due_timer is None
        ):
            now_ms = self.ctx.clock.now_ms()
            if instance.status == "waitingForPause":  # the bodies that it waited for are gone
                self._quiesce(now_ms, now_ms, ())
            else:
                self._go_on(now_ms)

    def _go_on(self, now_ms: int, *, is_first: bool = False) -> None:
        """Run `run`, from where it waits or, if it is not in memory, by replay."""
        self.ctx.keep_active()
        if self._run is None:
            try:
                turn = self._begin(now_ms, is_first=is_first)
            except WorkflowLoadError as error:
                self._cannot_run(error)
                return
        else:
            turn = self._run.act("cancel" if self._existing().cancel_ms else "tick", now_ms)
        if turn is not None:
            self._after_turn(turn, now_ms)

    def _begin(self, now_ms: int, *, is_first: bool) -> Turn | None:
        instance = self._existing()
        self._suspect(self.env.code_host.suspicion(self.ctx.ref.key))
        plan = Plan(
            self.ctx.ref.key,
            instance.is_apart,
            instance.run_id,
            instance.workflow,
            instance.code_hash,
            instance.created_ms,
            instance.started_ms or now_ms,
            now_ms,
            self._rows.payload("params", instance.params),
            [] if is_first else self._rows.records(),
            self._rows.events() if instance.events_buffered else [],
            instance.pauses,
            instance.lineage_run,
            instance.forked,
            self._undo_error(instance),
            instance.cancel_ms > 0,
            str(self.env.blobs.blobs.folder) if self.env.blobs else "",
        )
        hooks = RunHooks(
            self._turned,
            self._lost,
            self._rows.event_payload,
            self.ctx.clock.now_ms,
            self.env.faults.unfenced_attempts,
        )
        self._run = self.env.code_host.open(plan, hooks)
        self._code_error = ""
        return self._run.begin()

    def _cannot_run(self, error: Exception) -> None:
        """There is nothing to run it with, just now."""
        _log.error("instance %s can't go on: %s", self.ctx.ref.key, error)
        self._code_error = str(error)
        self._due_timer = self.env.loop.call_later(limits.CODE_RETRY_MS / 1_000, self._retry)

    @whole
    def _retry(self) -> None:
        self._due_timer = None
        if self._instance is not None:
            self._keep_running()
            self._must_report = True
            self._flush()

    def _after_turn(self, turn: Turn, now_ms: int) -> None:
        """Write what a turn of `run` brought, and see to what follows from it."""
        instance = self._existing()
        is_copy = self._run is not None and self._run.records() is None
        outcome = turn.outcome
        next_params = None
        if outcome is not None and not turn.cancelled and instance.status != "rollingBack":
            next_params = outcome.next_params
        for record in turn.records if next_params is None else ():
            self._rows.put_record(record, is_copy=is_copy)
        if turn.consumed:
            for seq in turn.consumed:
                self._rows.delete_event(seq)
            instance.events_buffered -= len(turn.consumed)
            self._is_changed = True
        if turn.code_hash != instance.code_hash and not instance.code_changed:
            self._note_other_code(turn.code_hash)
        if turn.records and instance.deaths:
            instance.deaths = 0
            self._is_changed = True
        instance.step_count = turn.shown
        if instance.forked:
            instance.forked, self._is_changed = False, True
        if not instance.has_undo and any(map(is_undone, turn.records)):
            instance.has_undo = self._is_changed = True
        if next_params is not None:
            self._follow(now_ms, next_params)
        elif outcome is not None:
            if instance.status == "rollingBack":
                self._rolled_back(now_ms, outcome.error)
            elif turn.cancelled:
                self._finish(now_ms, "terminate", None, cancelled_error(outcome.error))
            elif outcome.error is None:
                self._finish(now_ms, "complete", outcome.output, None)
            else:
                self._fail(now_ms, outcome.error)
        elif not turn.is_busy and instance.status != "rollingBack":
            self._park(turn, now_ms)
        else:
            self._starts += turn.starts
            self._arm(0 if instance.status == "waitingForPause" else turn.due_ms, now_ms)

    def _note_other_code(self, code_hash: str) -> None:
        instance = self._existing()
        instance.code_changed = self._is_changed = True
        _log.warning(
            "instance %s of workflow %s began with code %.12s and goes on with %.12s",
            self.ctx.ref.key,
            instance.workflow,
            instance.code_hash,
            code_hash,
        )

    def _flush(self) -> None:
        """Write the instance's row; when all is durable, report and start bodies."""
        instance = self._instance
        if instance is None:
            return
        if self._is_changed:
            self._is_changed = False
            self._rows.save(instance)
        self._rows.flush()
        if self._waiters and instance.status in FINISHED:  # not before it is written
            for waiter in list(self._waiters):
                self._answer_waiter(waiter)
        report = None
        if self._must_report:
            self._must_report = False
            if not instance.sweep_from:  # else when all is swept
                report = self._status_report(instance)
        if instance.status == "rollingBack" and self._run is None and self._due_timer is None:
            self.ctx.when_durable(self._unwind)
        starts, self._starts = self._starts, []  # a list of this event's own: the next adds to it
        if starts or report is not None:
            self.ctx.when_durable(partial(self._committed, report, self._run, starts))

    @whole
    def _committed(self, report: StatusReport | None, run: Run | None, starts: Starts) -> None:
        if report is not None and self._instance is not None:
            self._report(report, self._instance.souschef)
        if run is not None and starts:
            run.start(starts)

    def _report(self, report: StatusReport, souschef: int) -> None:
        account, workflow_uuid, _ = split_engine_key(report.key)
        self.env.reporter.add(f"{account}/{workflow_uuid}/{souschef}", report)

    @whole
    def _turned(self, run: Run, turn: Turn) -> None:
        """`run` went on by itself."""
        if self._run is run:
            self._after_turn(turn, self.ctx.clock.now_ms())
            self._flush()

    @whole
    def _lost(self, run: Run, error: Exception) -> None:
        """The run is gone, without a fault of the instance's rows: open another."""
        if self._run is run:
            self._drop_run()
            if isinstance(error, WorkflowLoadError):
                self._cannot_run(error)
                return
            self._go_on_after(error)
            self._flush()

    def _go_on_after(self, error: Exception) -> None:
        """The worker that the instance was in has ended: it goes on in another."""
        instance = self._existing()
        _log.warning("instance %s was interrupted: %s", self.ctx.ref.key, error)
        data = error.data if isinstance(error, WorkerLost) else {}
        if not data.get("was_up"):
            self._cannot_run(error)
            return
        if data["suspicion"]:
            self._suspect(data["suspicion"])
            instance.deaths += 1
            self._is_changed = True
        if instance.deaths > limits.INSTANCE_DEATHS_MAX:
            text = (
                f"run() ended or blocked its process {instance.deaths} times without getting any "
                f"further; the last time {error}"
            )
            failure = record_of(InstanceCrashed(text))
            self._finish(self.ctx.clock.now_ms(), "fail", None, failure)
        else:
            self._keep_running()

    def _suspect(self, weight: int) -> None:
        """Its code was running when a process ended; past a measure it gets one of its own."""
        instance = self._existing()
        if weight and not instance.is_apart:
            instance.suspicion += weight
            self._is_changed = True
            if instance.suspicion >= limits.SUSPICION_MAX:
                instance.is_apart = True
                _log.warning(
                    "instance %s has ended or blocked the process it ran in; from now on it has "
                    "one of its own",
                    self.ctx.ref.key,
                )

    def _arm(self, due_ms: int, now_ms: int) -> None:
        """While bodies are in flight a timer in memory is enough: a crash replays anyway."""
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        if due_ms:
            delay_ms = max(0, due_ms - now_ms)
            self._due_timer = self.env.loop.call_later(delay_ms / 1_000, self._fall_due)

    @whole
    def _fall_due(self) -> None:
        self._due_timer = None
        if self._run is not None:
            now_ms = self.ctx.clock.now_ms()
            turn = self._run.act("tick", now_ms)
            if turn is not None:
                self._after_turn(turn, now_ms)
                self._flush()

    # --- changes of status ------------------------------------------------------------------

    def _park(self, turn: Turn, now_ms: int) -> None:
        """Nothing is in flight: give the slot up until the next timer or event."""
        instance = self._existing()
        due_ms = turn.due_ms
        if not due_ms:
            error = WorkflowStuck(
                "run() waits for something that nothing can bring about: no step, sleep or event "
                "wait is left. Is there a future that nobody completes, or a lock held twice?"
            )
            if turn.cancelled:
                self._finish(now_ms, "terminate", None, cancelled_error(record_of(error)))
            else:
                self._fail(now_ms, record_of(error))
            return
        if instance.status == "waitingForPause":
            self._quiesce(now_ms, due_ms, turn.awaited)
            return
        instance.status = move(instance.status, "park")
        instance.suspicion = 0
        instance.wake_ms = due_ms
        instance.awaited = turn.awaited
        self._changed(now_ms)
        self._alarm_by(due_ms)
        self._arm(0, now_ms)
        if self._run is not None and self._run.parked():
            self._drop_run()
        self.ctx.may_evict()

    def _quiesce(self, now_ms: int, due_ms: int, awaited: tuple[str, ...]) -> None:
        """The last body that a pause waited for has ended. A paused instance needs no memory."""
        instance = self._existing()
        instance.status = move(instance.status, "quiesce")
        instance.quiesced_ms = now_ms
        instance.wake_ms = due_ms
        instance.awaited = awaited
        self._changed(now_ms)
        self._drop_run()
        self.ctx.may_evict()

    def _wake_if_due(self, now_ms: int) -> bool:
        instance = self._existing()
        if instance.status != "waiting" or now_ms < instance.wake_ms:
            return False
        self._wake(now_ms)
        return True

    def _wake(self, now_ms: int) -> None:
        """Ask for a slot again; what has come is delivered once it is granted."""
        self._queue(now_ms, "wake")

    def _queue(self, now_ms: int, event: Event) -> None:
        instance = self._existing()
        instance.status = move(instance.status, event)
        instance.turn += 1
        instance.awakened = instance.started_ms is not None
        instance.wake_ms = 0
        self._changed(now_ms)

    def _fail(self, now_ms: int, error: RecordedError) -> None:
        """`run` has failed: undo what it did, if its steps say how; else that is the end."""
        instance = self._existing()
        if not instance.has_undo or error.name == "NonDeterminism":  # it would not repeat itself
            self._finish(now_ms, "fail", None, error)
            return
        instance.error = error
        instance.undo = Undoing(is_terminated=False)
        self._roll_back(now_ms)

    def _roll_back(self, now_ms: int) -> None:
        """Let `run` go; when all is written it is executed anew for its rollbacks (`_flush`)."""
        instance = self._existing()
        instance.status = move(instance.status, "roll_back")
        self._drop_run()
        self._changed(now_ms)

    def _undo_error(self, instance: Instance) -> RecordedError | None:
        if instance.status != "rollingBack":
            return None
        return instance.error or RecordedError(FAILED, "Terminated", "the instance is terminated")

    @whole
    def _unwind(self) -> None:
        instance = self._instance
        if instance is not None and instance.status == "rollingBack":
            self._keep_running()
            self._flush()

    def _rolled_back(self, now_ms: int, error: RecordedError | None) -> None:
        instance = self._existing()
        assert instance.undo is not None
        instance.undo = Undoing(
            instance.undo.is_terminated, "complete" if error is None else "failed", error
        )
        event: Event = "terminate" if instance.undo.is_terminated else "fail"
        self._finish(now_ms, event, None, instance.error)

    def _finish(
        self, now_ms: int, event: Event, output: bytes | None, error: RecordedError | None
    ) -> None:
        instance = self._existing()
        instance.status = move(instance.status, event)
        instance.ended_ms = now_ms
        instance.expires_ms = now_ms + instance.retention[instance.status != "complete"]
        instance.wake_ms = 0
        instance.awaited = ()
        instance.error = error
        if output is not None:
            instance.output = self._rows.keep_payload("output", output)
        self._changed(now_ms)
        self._drop_run()
        self.ctx.may_evict()

    def _follow(self, now_ms: int, params: bytes) -> None:
        """`run` continues as new: another run takes its place, and asks for a slot of its own.

        In one commit: what the old run did goes, events that nobody took stay.
        """
        instance = self._existing()
        instance.status = move(instance.status, "continue")
        self._drop_run()
        self._rows.drop_payload("params")
        instance.params = self._rows.keep_payload("params", params)
        instance.started_ms = None
        instance.pauses = ()
        instance.step_count = instance.deaths = 0
        instance.lineage_run = ""
        instance.forked = instance.has_undo = False
        instance.undo = None
        instance.continued += 1
        instance.wake_ms = now_ms if instance.status == "paused" else 0
        instance.quiesced_ms = now_ms
        self._rows.drop_notes(instance)
        self._begin_run(now_ms)
        instance.awakened = True

    def _begin_run(self, now_ms: int, first: int = 1) -> None:
        """Another run of the instance begins; records from an ordinal on are not of it."""
        instance = self._existing()
        instance.sweep_from = self._rows.wipe_records(first)
        instance.run_id = self.ctx.entropy.new_id()
        instance.awaited = ()
        instance.turn += 1
        later_ms = max(now_ms, instance.modified_ms + 1, instance.queued_ms + 1)
        instance.queued_ms = instance.modified_ms = later_ms
        self._changed(now_ms)
        if instance.sweep_from:
            self.ctx.when_durable(self._sweep)

    def _changed(self, now_ms: int) -> None:
        """The status has changed: write it, and report it until the SousChef confirms."""
        instance = self._existing()
        instance.modified_ms = max(now_ms, instance.modified_ms)
        instance.report_seq += 1
        self._rows.note_status(instance, now_ms)
        self._is_changed = self._must_report = True
        if not self.env.faults.no_announce_alarm:
            self._alarm_by(now_ms + limits.ANNOUNCE_ALARM_MS)

    def _alarm_by(self, due_ms: int) -> None:
        """See that the alarm is no later than that.

        An earlier one is left alone, which saves a write: when it fires it looks, and sets
        itself anew.
        """
        known_ms = self.ctx.alarm_due_ms()
        if known_ms is None or known_ms > due_ms:
            self.ctx.set_alarm(due_ms)

    def _tidy_alarm(self, due_ms: int) -> None:
        """Move the alarm to `due_ms`; 0: clear it. Needs no success: early, it only looks."""
        try:
            if due_ms:
                self.ctx.set_alarm(due_ms)
            else:
                self.ctx.delete_alarm()
        except SystemFault as error:
            _log.debug("the alarm of %s stays as it is: %s", self.ctx.ref.key, error)

    def _drop_run(self) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        if self._run is not None:
            self._run.close()
            self._run = None
        self._starts = []

    @whole
    def _sweep(self) -> None:
        """Delete records that a restart left over; only then ask for a slot."""
        instance = self._instance
        if instance is not None and instance.sweep_from:
            instance.sweep_from = self._rows.wipe_records(instance.sweep_from)
            self._is_changed = True
            self._must_report = not instance.sweep_from
            self._flush()
            if instance.sweep_from:
                self.ctx.when_durable(self._sweep)

    def _start_over(self, error: Exception) -> None:
        """Memory can't be trusted: read the rows again, and go on from them in a while."""
        _log.warning("instance %s starts over from its rows: %r", self.ctx.ref.key, error)
        self._drop_run()
        self._rows.forget()
        self._is_changed = self._must_report = False
        for waiter, timer in self._waiters.items():
            timer.cancel()
            if not waiter.done():
                waiter.set_exception(EntityReset(f"instance {self._id()!r} was interrupted."))
        self._waiters.clear()
        if self.env.store.broken is not None:
            return  # the shard ends, and is opened again elsewhere
        self._instance = self._rows.load()
        self._due_timer = self.env.loop.call_later(limits.ENGINE_RETRY_MS / 1_000, self._retry)

    # --- small parts ------------------------------------------------------------------------

    def _existing(self) -> Instance:
        if self._instance is None:
            self.ctx.evict()
            raise InstanceNotFound(f"there is no instance {self._id()!r}.")
        return self._instance

    def _id(self) -> str:
        return split_engine_key(self.ctx.ref.key)[2]

    def _keep_answer(self, request_id: str, answer: int, content: int = 0) -> None:
        if request_id:
            instance = self._existing()
            instance.request_seq += 1
            self._is_changed = True
            self._rows.keep_answer(request_id, instance.request_seq, answer, content)

    def _status_report(self, instance: Instance) -> StatusReport:
        return StatusReport(
            self.ctx.ref.key,
            instance.run_id,
            instance.report_seq,
            SLOT_STATES[instance.status],
            instance.turn,
            instance.awakened,
            instance.modified_ms,
            instance.wake_ms,
            instance.status,
            self.env.shard,
        )

    def _view(self, steps: list[StepView] | None = None) -> InstanceView:
        instance = self._existing()
        _, workflow_uuid, instance_id = split_engine_key(self.ctx.ref.key)
        is_complete = instance.status == "complete"
        return instance_view(
            instance,
            instance_id,
            workflow_uuid,
            self._rows.payload("params", instance.params),
            self._rows.payload("output", instance.output) if is_complete else None,
            steps or [],
        )

    def _answer_waiter(self, future: asyncio.Future[InstanceView]) -> None:
        timer = self._waiters.pop(future, None)
        if timer is not None:
            timer.cancel()
        if not future.done():
            future.set_result(self._view())
