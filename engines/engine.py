"""The Engine: the entity that *is* one workflow instance, and the only truth on it.

A thin shell around `replay.Execution`: it loads and writes rows, starts bodies, keeps the alarm,
and tells its SousChef how things stand. Invariants:

* A body starts only after the commit of every record that led to it, its own attempt included.
* `run` executes only in a status that holds a slot; a grant is taken only for the current run
  and turn.
* Results are taken only of the current attempt of the current execution.
* From the create on, the alarm is set until the newest report is confirmed, and in `waiting` it
  is never later than the next timer: no instance depends on memory to go on.

A crash loses only what was not committed: `resume_keys` gives what was running, and replay goes
on from the records. Every event ends with `_flush`, which writes first and only then asks to be
called when that is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from ..runtime import limits
from ..runtime.codec import check_json, encode_json
from ..runtime.entity import AlarmInfo, Context, DurableObject
from ..runtime.errors import (
    InstanceAlreadyExists,
    InstanceFinished,
    InstanceNotFound,
    Overloaded,
    WorkflowLoadError,
)
from ..runtime.ids import check_event_type, check_instance_id, split_engine_key, stable_hash
from ..runtime.store import Store
from ..runtime.tables import Query, Table
from .bodies import Bodies, Starts
from .env import EngineEnv
from .failures import EventsBufferFull, RecordedError, WorkflowStuck, record_of
from .journal import (
    EVENTS,
    FORMAT_VERSION,
    INSTANCES,
    PAYLOADS,
    REQUESTS,
    STEPS,
    Instance,
    Journal,
)
from .ports import ENGINE_KIND, StatusReport
from .present import instance_view, step_views
from .replay import Claim, Execution
from .rows import InstanceRows
from .status import FINISHED, HOLDS_SLOT, SLOT_STATES, Event, move
from .step import WorkflowStep
from .views import CreateRequest, InstanceView, StepView
from .workflow import WorkflowDefinition

_log = logging.getLogger("toque.engines")
_ACTIVE = Query("active instances", "SELECT entity FROM instances WHERE active = 1")


class Engine(DurableObject):
    """See the module's description."""

    KIND = ENGINE_KIND
    TABLES: ClassVar[tuple[Table, ...]] = (INSTANCES, STEPS, PAYLOADS, EVENTS, REQUESTS)

    env: EngineEnv

    def __init__(self, ctx: Context, env: EngineEnv) -> None:
        super().__init__(ctx, env)
        self._rows = InstanceRows(ctx)
        self._instance = self._rows.load()
        self._execution: Execution | None = None
        self._bodies: Bodies | None = None
        self._due_timer: asyncio.TimerHandle | None = None
        self._waiters: dict[asyncio.Future[InstanceView], asyncio.TimerHandle] = {}
        self._confirmed_seq = 0
        self._is_changed = False
        self._must_report = False
        self._starts: Starts = []

    # --- what front ends call ---------------------------------------------------------------

    def create(self, request: CreateRequest) -> InstanceView | asyncio.Future[InstanceView]:
        """Make the instance; see `CreateRequest`."""
        instance = self._instance
        if instance is not None:
            if not request.request_id or request.request_id != instance.request_id:
                raise InstanceAlreadyExists(f"instance {self._id()!r} exists already.")
            return self.wait(request.wait_ms) if request.wait_ms else self._view()
        check_instance_id(self._id())
        now_ms = self.ctx.clock.now_ms()
        self._instance = Instance(
            version=FORMAT_VERSION,
            run_id=self.ctx.entropy.new_id(),
            workflow=request.workflow,
            class_name=request.class_name,
            version_id=request.version_id,
            code_hash=request.code_hash,
            request_id=request.request_id,
            source=request.source,
            souschef=self.ctx.entropy.randrange(max(1, request.souschefs)),
            created_ms=now_ms,
            status="queued",
            modified_ms=now_ms,
            queued_ms=now_ms,
            report_seq=1,
            params=self._rows.keep_payload("params", request.params),
        )
        if not self.env.faults.no_announce_alarm:
            self.ctx.set_alarm(now_ms + limits.ANNOUNCE_ALARM_MS)
        self._is_changed = self._must_report = True
        self._flush()
        return self.wait(request.wait_ms) if request.wait_ms else self._view()

    def view(self, with_steps: bool, newest_first: bool) -> InstanceView:
        """The instance as it is now."""
        instance = self._existing()
        steps = []
        if with_steps:
            execution = self._execution
            records = execution.journal.records if execution else self._rows.records()
            steps = step_views(instance, records, newest_first=newest_first)
        return self._view(steps)

    def wait(self, wait_ms: int) -> InstanceView | asyncio.Future[InstanceView]:
        """The instance when it has ended, or after `wait_ms`."""
        if self._existing().status in FINISHED or wait_ms <= 0:
            return self._view()
        if len(self._waiters) >= limits.WAITERS_PER_INSTANCE_MAX:
            raise Overloaded(f"too many callers wait for instance {self._id()!r}.")
        future: asyncio.Future[InstanceView] = self.env.loop.create_future()
        delay_ms = min(wait_ms, limits.WAIT_MAX_MS)
        self._waiters[future] = self.env.loop.call_later(
            delay_ms / 1_000, self._answer_waiter, future
        )
        return future

    def send_event(self, event_type: str, payload: bytes, request_id: str) -> int:
        """Take an event, for a wait that is there or will come. Gives the time it was taken."""
        instance = self._existing()
        check_event_type(event_type)
        check_json(payload, "event payload")
        known = self._rows.answer_of(request_id)
        if known is not None:
            return known
        if instance.status in FINISHED:
            raise InstanceFinished(
                f"instance {self._id()!r} is {instance.status} and takes no events."
            )
        if instance.events_buffered >= limits.EVENTS_BUFFERED_MAX:
            raise EventsBufferFull(
                f"instance {self._id()!r} has {instance.events_buffered} events that it has not "
                "waited for yet; no more are taken."
            )
        now_ms = self.ctx.clock.now_ms()
        instance.event_seq += 1
        instance.events_buffered += 1
        self._rows.put_event(instance.event_seq, event_type, now_ms, payload)
        self._keep_answer(request_id, now_ms)
        self._is_changed = True
        execution = self._execution
        if execution is not None:
            execution.buffer_event(instance.event_seq, event_type, now_ms)
        if instance.status == "running" and execution is not None:
            execution.tick(now_ms)
            self._after_turn(now_ms)
        elif instance.status == "waiting" and event_type in instance.awaited:
            self._wake(now_ms)
        self._flush()
        return now_ms

    def terminate(self, request_id: str) -> InstanceView:
        """End the instance at once; bodies in flight are cancelled, their results refused."""
        self._existing()
        if self._rows.answer_of(request_id) is None:
            now_ms = self.ctx.clock.now_ms()
            self._finish(now_ms, "terminate", None, None)
            self._keep_answer(request_id, now_ms)
            self._flush()
        return self._view()

    # --- what the SousChef calls, through EngineShard ---------------------------------------

    def grant(self, run_id: str, turn: int) -> bool:
        """A slot. False: it is not wanted (any more), and free again."""
        instance = self._instance
        if instance is None:
            self.ctx.evict()
            return False
        if instance.run_id != run_id or instance.turn != turn:
            return False
        if instance.status != "queued":
            self._keep_running()
            return instance.status in HOLDS_SLOT
        now_ms = self.ctx.clock.now_ms()
        instance.status = move(instance.status, "grant")
        instance.modified_ms = now_ms
        self._is_changed = True
        is_first = instance.started_ms is None
        if is_first:
            instance.started_ms = now_ms
        self._go_on(now_ms, is_first=is_first)
        self._flush()
        return True

    def poke(self) -> bool:
        """Look at the timers and report anew. False: there is no such instance."""
        if self._instance is None:
            self.ctx.evict()
            return False
        self._keep_running()
        self._wake_if_due(self.ctx.clock.now_ms())
        self._must_report = True
        self._flush()
        return True

    # --- what the host and the reporter call ------------------------------------------------

    def alarm(self, info: AlarmInfo) -> None:
        """The next timer is due, or a report was not confirmed in time."""
        instance = self._instance
        if instance is None:
            self.ctx.evict()
            return
        now_ms = self.ctx.clock.now_ms()
        self._keep_running()
        if not self._wake_if_due(now_ms):
            if instance.report_seq > self._confirmed_seq:
                self._must_report = True
                self.ctx.set_alarm(now_ms + limits.ANNOUNCE_ALARM_MS)
            if instance.status == "waiting":
                self._alarm_by(instance.wake_ms)
        self._flush()

    def report_confirmed(self, run_id: str, seq: int) -> bool:
        """The SousChef has noted a report; see `reporter.Confirmable`."""
        instance = self._instance
        if instance is None or instance.run_id != run_id or instance.report_seq != seq:
            return False
        self._confirmed_seq = seq
        if instance.status in FINISHED:
            self.ctx.delete_alarm()
            self.ctx.evict()
            return False
        return instance.status != "running"

    def settle(self, run_id: str, seq: int) -> None:
        """Nothing has changed for a while: move the alarm to the next timer, or clear it."""
        instance = self._instance
        if instance is None or instance.run_id != run_id or instance.report_seq != seq:
            return
        if instance.status == "queued":
            self.ctx.delete_alarm()
        elif instance.status == "waiting":
            self.ctx.set_alarm(instance.wake_ms)

    @classmethod
    def resume_keys(cls, store: Store) -> Iterable[str]:
        return [row[0] for row in store.query_now(_ACTIVE)]

    def on_resume(self) -> None:
        self._keep_running()
        self._flush()

    def on_evict(self) -> None:
        self._drop_run()
        for timer in self._waiters.values():
            timer.cancel()
        self._waiters.clear()

    # --- running ----------------------------------------------------------------------------

    def _keep_running(self) -> None:
        """Take up what holds a slot but is not in memory: after a crash, or a reset."""
        instance = self._instance
        if (
            instance is not None
            and instance.status in HOLDS_SLOT
            and self._execution is None
            and self._due_timer is None
        ):
            self._go_on(self.ctx.clock.now_ms())

    def _go_on(self, now_ms: int, *, is_first: bool = False) -> None:
        """Run `run`, from where it waits or, if it is not in memory, by replay."""
        self.ctx.keep_active()
        execution = self._execution
        if execution is not None:
            execution.tick(now_ms)
        else:
            try:
                self._begin(self._definition(), now_ms, is_first=is_first)
            except WorkflowLoadError as error:
                _log.error("instance %s can't go on: %s", self.ctx.ref.key, error)
                self._due_timer = self.env.loop.call_later(
                    limits.CODE_RETRY_MS / 1_000, self._retry_code
                )
                return
        self._after_turn(now_ms)

    def _definition(self) -> WorkflowDefinition:
        instance = self._existing()
        account = split_engine_key(self.ctx.ref.key)[0]
        definition = self.env.code_host.definition(account, instance.workflow, instance.code_hash)
        if definition.code_hash != instance.code_hash and not instance.code_changed:
            instance.code_changed = self._is_changed = True
            _log.warning(
                "instance %s of workflow %s began with code %.12s and goes on with %.12s",
                self.ctx.ref.key,
                instance.workflow,
                instance.code_hash,
                definition.code_hash,
            )
        return definition

    def _begin(self, definition: WorkflowDefinition, now_ms: int, *, is_first: bool) -> None:
        instance = self._existing()
        execution = Execution(
            Journal() if is_first else Journal.of(self._rows.records()),
            stable_hash(instance.run_id),
            f"workflow {instance.workflow!r}",
            self._rows.event_payload,
        )
        self._execution = execution
        self._bodies = Bodies(self.env, partial(self._attempt_ended, execution))
        if instance.events_buffered:
            for event in self._rows.events():
                execution.buffer_event(*event)
        try:
            coro = definition.start(
                self._rows.payload("params", instance.params),
                datetime.fromtimestamp(instance.created_ms / 1_000, UTC),
                self._id(),
                WorkflowStep(execution),
            )
        except BaseException as error:  # the author's constructor, or params of another type
            execution.fail(record_of(error))
        else:
            execution.begin(coro, instance.started_ms or now_ms, now_ms)

    def _retry_code(self) -> None:
        self._due_timer = None
        self._keep_running()
        self._flush()

    def _after_turn(self, now_ms: int) -> None:
        """Write what a turn of `run` brought, and see to what follows from it."""
        execution, instance, bodies = self._execution, self._existing(), self._bodies
        assert execution is not None
        assert bodies is not None
        for record in execution.dirty.values():
            self._rows.put_record(record)
        execution.dirty.clear()
        for ordinal in execution.stops:
            bodies.stop(ordinal)
        execution.stops.clear()
        if execution.consumed:
            for seq in execution.consumed:
                self._rows.delete_event(seq)
            instance.events_buffered -= len(execution.consumed)
            execution.consumed.clear()
            self._is_changed = True
        instance.step_count = execution.journal.shown
        starts, execution.starts = execution.starts, []
        outcome = execution.outcome
        if outcome is not None:
            event: Event = "complete" if outcome.error is None else "fail"
            self._finish(now_ms, event, outcome.output, outcome.error)
        elif not execution.in_flight:
            self._park(execution, now_ms)
        else:
            self._starts += starts
            self._arm(execution.next_due_ms(), now_ms)

    def _flush(self) -> None:
        """Write the instance's row; when all is durable, report and start bodies."""
        instance = self._instance
        if instance is None:
            return
        if self._is_changed:
            self._is_changed = False
            self._rows.save(instance)
        report = None
        if self._must_report:
            self._must_report = False
            report = self._status_report(instance)
        starts = self._starts
        if starts:
            self._starts = []
        elif report is None:
            return
        self.ctx.when_durable(partial(self._committed, report, self._bodies, starts))

    def _committed(
        self, report: StatusReport | None, bodies: Bodies | None, starts: Starts
    ) -> None:
        if report is not None:
            account, workflow_uuid, _ = split_engine_key(report.key)
            number = self._existing().souschef
            self.env.reporter.add(f"{account}/{workflow_uuid}/{number}", report)
        if bodies is not None:
            bodies.start(starts)

    def _attempt_ended(
        self,
        execution: Execution,
        claim: Claim,
        number: int,
        error: RecordedError | None,
        value: Any,
    ) -> None:
        if self._execution is not execution:
            return
        record = claim.record
        now_ms = self.ctx.clock.now_ms()
        result = None
        if error is None:
            workflow = self._existing().workflow
            try:
                result = encode_json(
                    value, f"the result of step {record.public_name!r} of workflow {workflow!r}"
                )
            except Exception as unfit:  # no other attempt would do better: the instance ends
                execution.refuse_result(claim, record_of(unfit), now_ms)
                self._after_turn(now_ms)
                self._flush()
                return
        fenced = not self.env.faults.unfenced_attempts
        if execution.body_done(claim, number, error, result, now_ms, fenced):
            self._after_turn(now_ms)
            self._flush()

    def _arm(self, due_ms: int, now_ms: int) -> None:
        """While bodies are in flight a timer in memory is enough: a crash replays anyway."""
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        if due_ms:
            delay_ms = max(0, due_ms - now_ms)
            self._due_timer = self.env.loop.call_later(delay_ms / 1_000, self._fall_due)

    def _fall_due(self) -> None:
        self._due_timer = None
        if self._execution is not None:
            now_ms = self.ctx.clock.now_ms()
            self._execution.tick(now_ms)
            self._after_turn(now_ms)
            self._flush()

    # --- changes of status ------------------------------------------------------------------

    def _park(self, execution: Execution, now_ms: int) -> None:
        """Nothing is in flight: give the slot up until the next timer or event."""
        instance = self._existing()
        due_ms = execution.next_due_ms()
        if not due_ms:
            error = WorkflowStuck(
                "run() waits for something that nothing can bring about: no step, sleep or event "
                "wait is left. Is there a future that nobody completes, or a lock held twice?"
            )
            self._finish(now_ms, "fail", None, record_of(error))
            return
        instance.status = move(instance.status, "park")
        instance.wake_ms = due_ms
        instance.awaited = execution.awaited_types()
        self._changed(now_ms)
        self._alarm_by(due_ms)
        self._arm(0, now_ms)
        self.ctx.may_evict()

    def _wake_if_due(self, now_ms: int) -> bool:
        instance = self._existing()
        if instance.status != "waiting" or now_ms < instance.wake_ms:
            return False
        self._wake(now_ms)
        return True

    def _wake(self, now_ms: int) -> None:
        """Ask for a slot again; what has come is delivered once it is granted."""
        instance = self._existing()
        instance.status = move(instance.status, "wake")
        instance.turn += 1
        instance.awakened = True
        instance.queued_ms = now_ms
        instance.wake_ms = 0
        self._changed(now_ms)

    def _finish(
        self, now_ms: int, event: Event, output: bytes | None, error: RecordedError | None
    ) -> None:
        instance = self._existing()
        instance.status = move(instance.status, event)
        instance.ended_ms = now_ms
        instance.wake_ms = 0
        instance.awaited = ()
        instance.error = error
        if output is not None:
            instance.output = self._rows.keep_payload("output", output)
        self._changed(now_ms)
        self._drop_run()
        for waiter in list(self._waiters):
            self._answer_waiter(waiter)
        self.ctx.may_evict()

    def _changed(self, now_ms: int) -> None:
        """The status has changed: write it, and report it until the SousChef confirms."""
        instance = self._existing()
        instance.modified_ms = now_ms
        instance.report_seq += 1
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

    def _drop_run(self) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        if self._bodies is not None:
            self._bodies.close()
            self._bodies = None
        if self._execution is not None:
            self._execution.close()
            self._execution = None
        self._starts = []

    # --- small parts ------------------------------------------------------------------------

    def _existing(self) -> Instance:
        if self._instance is None:
            self.ctx.evict()
            raise InstanceNotFound(f"there is no instance {self._id()!r}.")
        return self._instance

    def _id(self) -> str:
        return split_engine_key(self.ctx.ref.key)[2]

    def _keep_answer(self, request_id: str, answer: int) -> None:
        if request_id:
            instance = self._existing()
            instance.request_seq += 1
            self._is_changed = True
            self._rows.keep_answer(request_id, instance.request_seq, answer)

    def _status_report(self, instance: Instance) -> StatusReport:
        is_queued = instance.status == "queued"
        return StatusReport(
            self.ctx.ref.key,
            instance.run_id,
            instance.report_seq,
            SLOT_STATES[instance.status],
            instance.turn,
            instance.awakened,
            instance.queued_ms if is_queued else instance.modified_ms,
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
