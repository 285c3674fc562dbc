"""What an instance keeps, and how it lets go: its rows, its alarm, its reports, its run.

The base of `phases` and `life`. Every event ends with `_flush`, which writes all rows of the
event or none, and only then asks to be called when they are durable. An event that breaks off
for whatever reason leaves memory as the rows say (`whole`). From the create on, the alarm is set
until the newest report is confirmed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from ..runtime import limits
from ..runtime.entity import Context, DurableObject
from ..runtime.errors import CallerError, EntityReset, InstanceNotFound, SystemFault
from .env import EngineEnv
from .journal import ChildCall, Instance, Record
from .ports import StatusReport, souschef_key
from .present import instance_view
from .rows import InstanceRows
from .run_port import Run, Starts
from .status import FINISHED, SLOT_STATES
from .views import InstanceView, StepView

_log = logging.getLogger("toque.engines")
_M = TypeVar("_M", bound=Callable[..., Any])


class Birth(NamedTuple):
    """A child to ask for: the record that wants it, the attempt, and what is wanted."""

    ordinal: int
    attempt: int
    call: ChildCall


def whole(method: _M) -> _M:
    """An event that may not be done by half: if it breaks off, memory is read anew from the rows.

    (The store's batch may be full, or there is a bug here.) Refusals (`CallerError`) come before
    anything is changed and pass through.
    """

    @functools.wraps(method)
    def guarded(self: KeptInstance, *args: Any, **kwargs: Any) -> Any:
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


class KeptInstance(DurableObject):
    """See the module's description."""

    env: EngineEnv
    _watchers: dict[Any, Any] | None = None

    def __init__(self, ctx: Context, env: EngineEnv) -> None:
        super().__init__(ctx, env)
        self._rows = InstanceRows(ctx, env.blobs, env.codecs)
        self._instance = self._rows.load()
        self._run: Run | None = None
        self._due_timer: asyncio.Handle | None = None
        self._reading: list[Record] | None = None
        self._waiters: dict[asyncio.Future[InstanceView], asyncio.TimerHandle] = {}
        self._confirmed_seq = 0
        self._is_changed = False
        self._must_report = False
        self._starts: Starts = []
        self._births: list[Birth] = []
        self._code_error = ""
        self._code_tries = 0
        self._cut_off = ""

    # --- writing and telling ----------------------------------------------------------------

    def _flush(self) -> None:
        """Write the instance's row; when all is durable, report and start bodies."""
        instance = self._instance
        if instance is not None:
            self._flush_instance(instance)
        if self._watchers:
            self._tell_watchers()

    def _flush_instance(self, instance: Instance) -> None:
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
        starts, self._starts = self._starts, []  # lists of this event's own: the next adds to them
        births, self._births = self._births, []
        if starts or births or report is not None:
            self.ctx.when_durable(partial(self._committed, report, self._run, starts, births))
        if instance.status == "rollingBack":
            self._see_to_rollback()

    def _see_to_rollback(self) -> None:
        """When all is durable, execute `run` anew for its rollbacks (see `life`)."""

    def _tell_watchers(self) -> None:
        """Answer those who wait for an event that is there now (see `observed`)."""

    @whole
    def _committed(
        self, report: StatusReport | None, run: Run | None, starts: Starts, births: list[Birth]
    ) -> None:
        if report is not None and self._instance is not None:
            self._report(report, self._instance.souschef)
        if run is not None and starts:
            run.start(starts)
        if run is not None:
            for birth in births:
                self._bear(run, birth)

    def _bear(self, run: Run, birth: Birth) -> None:
        """The record that asks for a child is durable: ask for it (see `parenting`)."""

    def _report(self, report: StatusReport, souschef: int) -> None:
        self.env.reporter.add(souschef_key(report.key, self._rows.id, souschef), report)

    def _changed(self, now_ms: int) -> None:
        """The status has changed: write it, and report it until the SousChef confirms."""
        instance = self._existing()
        instance.modified_ms = max(now_ms, instance.modified_ms)
        instance.report_seq += 1
        self._rows.note_status(instance, now_ms)
        self._is_changed = self._must_report = True
        if not self.env.faults.no_announce_alarm:
            self._alarm_by(now_ms + limits.ANNOUNCE_ALARM_MS)

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

    # --- the alarm and the run --------------------------------------------------------------

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
        self._cancel_timer()
        if self._run is not None:
            self._run.close()
            self._run = None
        self._reading = None
        self._starts = []
        self._births = []

    def _cancel_timer(self) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None

    def _start_over(self, error: Exception) -> None:
        """Memory can't be trusted: read the rows again."""
        _log.warning("instance %s starts over from its rows: %r", self.ctx.ref.key, error)
        self._drop_run()
        self._rows.forget()
        self._is_changed = self._must_report = False
        self._give_up_waiters()
        if self.env.store.broken is None:  # else the shard ends, and is opened again elsewhere
            self._instance = self._rows.load()

    def _give_up_waiters(self) -> None:
        """Whoever waits for its end is to ask again."""
        for waiter, timer in self._waiters.items():
            timer.cancel()
            if not waiter.done():
                waiter.set_exception(EntityReset(f"instance {self._id()!r} was interrupted."))
        self._waiters.clear()

    # --- small parts ------------------------------------------------------------------------

    def _existing(self) -> Instance:
        if self._instance is None:
            self.ctx.evict()
            raise InstanceNotFound(f"there is no instance {self._id()!r}.")
        return self._instance

    def _id(self) -> str:
        return self._rows.id

    def _keep_answer(self, request_id: str, answer: int, content: int = 0) -> None:
        if request_id:
            instance = self._existing()
            instance.request_seq += 1
            self._is_changed = True
            self._rows.keep_answer(request_id, instance.request_seq, answer, content)

    def _view(self, steps: list[StepView] | None = None) -> InstanceView:
        instance = self._existing()
        is_complete = instance.status == "complete"
        return instance_view(
            instance,
            self._rows.id,
            self._rows.workflow_uuid,
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
