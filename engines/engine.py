"""The Engine: the entity that *is* one workflow instance, and the only truth on it.

Here is what others may ask of it: front ends, the SousChef, its host and the reporter; how it
lives is in `life`, `phases` and `keeping`, and what may be done with it in `operations`.
Invariants:

* A body starts only after the commit of every record that led to it, its own attempt included.
* `run` executes only in a status that holds a slot; a grant is taken only for the current run
  and turn.
* Results are taken only of the current attempt of the current execution.
* From the create on, the alarm is set until the newest report is confirmed, and in `waiting` it
  is never later than the next timer: no instance depends on memory to go on.

A crash loses only what was not committed: `resume_keys` gives what was running, and replay goes
on from the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any, ClassVar

import msgspec

from ..runtime import limits
from ..runtime.codec import check_json, pack
from ..runtime.entity import AlarmInfo
from ..runtime.errors import InstanceAlreadyExists, InstanceFinished, Overloaded
from ..runtime.ids import check_event_type, check_instance_id
from ..runtime.sealed_blobs import SealedStore
from ..runtime.store import Store
from ..runtime.tables import Query, Table
from .failures import EventsBufferFull, StepNotFound
from .journal import (
    BLOBS,
    CHILD_END,
    CHILDREN,
    EVENTS,
    FORMAT_VERSION,
    INSTANCES,
    NOTES,
    OUTPUT_TYPES,
    PAYLOADS,
    REQUESTS,
    STEPS,
    TOMBSTONES,
    Instance,
    Pause,
    Record,
)
from .keeping import whole
from .parenting import ParentInstance
from .ports import ENGINE_KIND, OLD_NUMBER, SOUSCHEF_KIND, souschef_ref
from .present import in_order, part_of, step_output, step_views
from .rows import check_same, content_of
from .status import FINISHED, HOLDS_SLOT, move
from .views import CreateRequest, InstanceView, StepOutput, retention_of

_ACTIVE = Query("active instances", "SELECT entity FROM instances WHERE active = 1")


class Engine(ParentInstance):
    """See the module's description."""

    KIND = ENGINE_KIND
    TABLES: ClassVar[tuple[Table, ...]] = (
        INSTANCES,
        STEPS,
        BLOBS,
        CHILDREN,
        PAYLOADS,
        EVENTS,
        NOTES,
        REQUESTS,
        TOMBSTONES,
    )

    # --- what front ends call ---------------------------------------------------------------

    @whole
    def create(self, request: CreateRequest) -> InstanceView | asyncio.Future[InstanceView]:
        """Make the instance; see `CreateRequest`."""
        instance = self._instance
        content = content_of(request.params, request.retention)
        if instance is not None:
            if not request.request_id or request.request_id != instance.request_id:
                if not self._expire_if_due(self.ctx.clock.now_ms()):
                    raise InstanceAlreadyExists(f"instance {self._id()!r} exists already.")
            else:
                check_same(request.request_id, instance.request_content, content)
                return self.wait(request.wait_ms) if request.wait_ms else self._view()
        check_instance_id(self._id())
        self._refuse_create(request.request_id)
        now_ms = self.ctx.clock.now_ms()
        since_ms = request.created_ms or now_ms
        self._instance = Instance(
            version=FORMAT_VERSION,
            run_id=request.run_id or self.ctx.entropy.new_id(),
            workflow=request.workflow,
            class_name=request.class_name,
            version_id=request.version_id,
            code_hash=request.code_hash,
            request_id=request.request_id,
            request_content=content,
            source=request.source,
            souschef=self._choose_souschef(request.souschefs),
            created_ms=since_ms,
            status="queued",
            modified_ms=since_ms,
            queued_ms=since_ms,
            report_seq=1,
            params=self._rows.keep_payload("params", request.params),
            retention=retention_of(request, self.env.retention),
            steps_max=min(max(0, request.steps_max), limits.STEPS_PER_INSTANCE_MAX),
            parent=request.parent,
        )
        self._inherit(self._instance)
        self._greet_parent(self._instance)
        if not self.env.faults.no_announce_alarm:
            self.ctx.set_alarm(now_ms + limits.ANNOUNCE_ALARM_MS)
        self._rows.note_status(self._instance, now_ms)
        self._is_changed = self._must_report = True
        self._flush()
        return self.wait(request.wait_ms) if request.wait_ms else self._view()

    def _choose_souschef(self, souschefs: int) -> int:
        return self.ctx.entropy.randrange(souschefs) if souschefs > 0 else OLD_NUMBER

    def view(
        self, with_steps: bool, newest_first: bool, most: int = 0
    ) -> InstanceView | Awaitable[InstanceView]:
        """The instance as it is now, with at most so many steps; 0: with all."""
        instance = self._existing()
        if not with_steps:
            return self._view()
        records = self._in_memory()
        if records is not None and 0 < most <= limits.RECORDS_READ_PER_TURN_MAX:
            records = part_of(records, most, newest_first=newest_first)
        elif self._is_long():
            return self._long_view(newest_first, most)
        views = step_views(
            instance,
            self._rows.records() if records is None else records,
            self.ctx.clock.now_ms(),
        )
        return self._view(in_order(instance, views, newest_first=newest_first)[: most or None])

    async def _long_view(self, newest_first: bool, most: int) -> InstanceView:
        """As `view`, a slice a turn: others of the shard have theirs between.

        Steps are encoded in their slices too, since that takes as long as all the rest.
        """
        size = limits.RECORDS_READ_PER_TURN_MAX
        while True:
            run_id = self._existing().run_id
            records = await self._journal()
            steps: list[Any] = []
            at = 0
            while at < len(records) and self._existing().run_id == run_id:
                now_ms = self.ctx.clock.now_ms()
                views = step_views(self._existing(), records[at : at + size], now_ms)
                steps += [msgspec.Raw(pack(view)) for view in views]
                at += size
                await asyncio.sleep(0)
            instance = self._existing()
            if instance.run_id == run_id:
                shown = in_order(instance, steps, newest_first=newest_first)
                return self._view(shown[: most or None])

    def step_output(self, name: str, kind: str, attempt: int) -> StepOutput | Awaitable[StepOutput]:
        """What a step or wait gave, in full, by its public name.

        Args:
            name: for example `fetch-1`.
            kind: `step`, `waitForEvent`, `startChild` or `child`.
            attempt: how that attempt ended; 0: how the step stands.

        Raises:
            StepNotFound
        """
        self._existing()

        def give(records: list[Record]) -> StepOutput:
            return step_output(self._existing(), self._step_named(records, name, kind), attempt)

        return self._of_journal(give)

    def read_stream(self, name: str, offset: int) -> bytes | Awaitable[bytes]:
        """A part of a stream that a step gave, from a place on; empty at its end.

        Raises:
            StepNotFound: there is no such step, or its result is no stream that may be shown.
        """
        self._existing()
        return self._of_journal(partial(self._part_of_stream, name, offset))

    def _part_of_stream(self, name: str, offset: int, records: list[Record]) -> bytes:
        record = self._step_named(records, name, "step")
        blobs = self.env.blobs
        if not record.stream or record.config.sensitive or blobs is None:
            raise StepNotFound(f"step {name!r:.300} has no stream that can be shown.")
        store = SealedStore(blobs.blobs.folder, self._rows.seal)
        return store.read(record.stream, max(0, offset), limits.STREAM_PART_BYTES)

    def _step_named(self, records: list[Record], name: str, kind: str) -> Record:
        wanted = OUTPUT_TYPES.get(kind)
        for record in records:
            if record.kind == wanted and record.public_name == name:
                return record
        raise StepNotFound(
            f"instance {self._id()!r} has no {kind} {name!r:.300}; give a name as its steps show "
            "it, with the number at the end."
        )

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

    @whole
    def send_event(self, event_type: str, payload: bytes, request_id: str) -> int:
        """Take an event, for a wait that is there or will come. Gives the time it was taken."""
        instance = self._existing()
        check_event_type(event_type)
        check_json(payload, "event payload")
        content = content_of("event", event_type, payload)
        known = self._rows.answer_of(request_id, content)
        if known is not None:
            return known
        if instance.status in FINISHED:
            raise InstanceFinished(
                f"instance {self._id()!r} is {instance.status} and takes no events."
            )
        if instance.events_buffered >= limits.EVENTS_BUFFERED_MAX:
            ends = (kind.startswith(CHILD_END) for _, kind, _ in self._rows.events())
            sent = instance.events_buffered - sum(ends)  # its children's ends nobody sent
            if sent >= limits.EVENTS_BUFFERED_MAX:
                raise EventsBufferFull(
                    f"instance {self._id()!r} has {sent} events that it has not waited for yet; "
                    "no more are taken."
                )
        now_ms = self.ctx.clock.now_ms()
        self._keep_answer(request_id, now_ms, content)
        self._take_in(event_type, payload, now_ms)
        self._flush()
        return now_ms

    # --- what the SousChef calls, through EngineShard ---------------------------------------

    @whole
    def grant(self, run_id: str, turn: int) -> bool:
        """A slot. False: it is not wanted (any more), and free again."""
        instance = self._instance
        if instance is None:
            self._leave()
            return False
        if instance.run_id != run_id or instance.turn != turn:
            return False
        if instance.status != "queued":
            self._keep_running()
            self._flush()  # it may end or park at once; and the answer says that its slot is free
            return instance.status in HOLDS_SLOT
        now_ms = self.ctx.clock.now_ms()
        instance.status = move(instance.status, "grant")
        self.env.starts_ms.add(now_ms - instance.queued_ms)
        instance.modified_ms = max(now_ms, instance.modified_ms)
        self._is_changed = True
        is_first = instance.started_ms is None
        if instance.forked and instance.pauses:  # what lies behind is no time that `run` has had
            last = instance.pauses[-1]
            length_ms = max(0, now_ms - last.from_ms)
            instance.pauses = (*instance.pauses[:-1], Pause(last.order, last.from_ms, length_ms))
        self._rows.note_status(instance, now_ms)
        if is_first:
            instance.started_ms = now_ms
        if instance.undo is not None:
            self._roll_back(now_ms)
            self._flush()
            return True
        self._go_on(now_ms, is_first=is_first)
        self._flush()
        return True

    @whole
    def poke(self, souschef: str) -> bool:
        """Look at the timers and report anew. False: that SousChef has no such instance."""
        if self._instance is None:
            self._leave()
            return False
        if self._instance.souschef != OLD_NUMBER and souschef_ref(souschef).kind != SOUSCHEF_KIND:
            return False  # V1's entity means one that was deleted
        self._keep_running()
        self._wake_if_due(self.ctx.clock.now_ms())
        self._must_report = True
        self._flush()
        return True

    # --- what the host and the reporter call ------------------------------------------------

    @whole
    def alarm(self, info: AlarmInfo) -> None:
        """The next timer is due, or a report was not confirmed in time."""
        instance = self._instance
        now_ms = self.ctx.clock.now_ms()
        if instance is None:
            self._tend_tombstone(now_ms)
            return
        if self._expire_if_due(now_ms):
            return
        self._sweep()
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
        if instance is None:
            self._tombstone_confirmed(run_id, seq)
            return False
        if instance.run_id != run_id or instance.report_seq != seq:
            return False
        self._confirmed_seq = seq
        if instance.status in FINISHED:
            self._tidy_alarm(instance.expires_ms)
            self.ctx.evict()
            return False
        return instance.status != "running"

    def settle(self, run_id: str, seq: int) -> None:
        """Nothing has changed for a while: move the alarm to the next timer, or clear it."""
        instance = self._instance
        if instance is None or instance.run_id != run_id or instance.report_seq != seq:
            return
        if instance.status == "paused":
            self._tidy_alarm(0)
        elif instance.status in ("queued", "waiting"):
            self._tidy_alarm(instance.wake_ms)
            is_idle = instance.status == "queued" and self._run is None and not self._waiters
            if is_idle and self.env.crowded():
                self.ctx.evict()  # its turn may be hours away, and there may be millions

    @classmethod
    def resume_keys(cls, store: Store) -> Iterable[str]:
        return [row[0] for row in store.query_now(_ACTIVE)]

    @whole
    def on_resume(self) -> None:
        self._keep_running()
        self._flush()

    def on_evict(self) -> None:
        super().on_evict()
        self._drop_run()
        self._give_up_waiters()
