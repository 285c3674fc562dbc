"""How an instance lives: its `run` executed, replayed and taken up again.

Between `phases` and `observed`. A thin shell around a `Run` (see `run_port`), wherever that lives:
it gives it the rows, writes what its turns bring, lets bodies start once that is durable, and
opens another when one is lost.
"""

from __future__ import annotations

import logging

from ..runtime import limits
from ..runtime.errors import ProgramRunsAtImport, ToqueError, WorkerLost, WorkflowLoadError
from .failures import InstanceCrashed, cancelled_error, record_of
from .journal import Record
from .keeping import whole
from .outcomes import UNBLOCK
from .phases import InstancePhases
from .plans import plan_of
from .rollback import is_undone
from .run_port import Run, RunHooks, Turn
from .status import HOLDS_SLOT

_log = logging.getLogger("toque.engines")


class InstanceLife(InstancePhases):
    """See the module's description."""

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
        if self._run is not None:
            turn = self._run.act("cancel" if self._existing().cancel_ms else "tick", now_ms)
        elif is_first:
            turn = self._begin([], now_ms)
        else:
            self._reading = []
            turn = self._read_on(self._reading, now_ms)
        if turn is not None:
            self._after_turn(turn, now_ms)

    def _read_on(self, records: list[Record], now_ms: int) -> Turn | None:
        """Read the journal, then begin; of a long one a slice, and the next one later.

        Until it is read the instance stands as one whose code can't be loaded just now.
        """
        if self._rows.read_on(records, limits.RECORDS_READ_PER_TURN_MAX):
            self._reading = None
            return self._begin(records, now_ms)
        self._due_timer = self.env.loop.call_soon(self._read_more)
        return None

    @whole
    def _read_more(self) -> None:
        self._due_timer = None
        if self._reading is not None:
            now_ms = self.ctx.clock.now_ms()
            turn = self._read_on(self._reading, now_ms)
            if turn is not None:
                self._after_turn(turn, now_ms)
            self._flush()

    def _begin(self, records: list[Record], now_ms: int) -> Turn | None:
        instance = self._existing()
        weight = self.env.code_host.suspicion(self.ctx.ref.key)
        self._suspect(weight)
        if weight >= limits.SUSPICION_MAX:
            self._cut_off = (
                "the process ended while code of this instance was on its event loop; what blocks "
                f"that for long is ended: {UNBLOCK}"
            )
        plan = plan_of(
            self.ctx.ref.key,
            instance,
            records,
            params=self._rows.payload("params", instance.params),
            events=self._rows.events() if instance.events_buffered else [],
            now_ms=now_ms,
            blobs=str(self.env.blobs.blobs.folder) if self.env.blobs else "",
            cut_off=self._cut_off,
        )
        self._cut_off = ""
        hooks = RunHooks(
            self._turned,
            self._lost,
            self._rows.event_payload,
            self.ctx.clock.now_ms,
            self.env.faults.unfenced_attempts,
            seal=self._rows.seal,
        )
        try:
            self._run = self.env.code_host.open(plan, hooks)
        except WorkflowLoadError as error:
            self._cannot_run(error)
            return None
        return self._run.begin()

    # --- turns ------------------------------------------------------------------------------

    @whole
    def _turned(self, run: Run, turn: Turn) -> None:
        """`run` went on by itself."""
        if self._run is run:
            self._after_turn(turn, self.ctx.clock.now_ms())
            self._flush()

    def _after_turn(self, turn: Turn, now_ms: int) -> None:
        """Write what a turn of `run` brought, and see to what follows from it."""
        instance = self._existing()
        self._code_error, self._code_tries = "", 0
        is_copy = self._run is not None and self._run.records() is None
        outcome = turn.outcome
        next_params = None
        if outcome is not None and not turn.cancelled and instance.status != "rollingBack":
            next_params = outcome.next_params
        if next_params is not None:  # no row will ever name their streams
            self._rows.let_go(record.stream for record in turn.records if record.stream)
        for record in turn.records if next_params is None else ():
            self._rows.put_record(record, is_copy=is_copy)
        if next_params is None:
            self._see_to_children(turn)
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
            self._arm(turn.due_ms, now_ms)

    def _see_to_children(self, turn: Turn) -> None:
        """Children that a turn starts or gives up (see `parenting`)."""

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

    def _arm(self, due_ms: int, now_ms: int) -> None:
        """While bodies are in flight a timer in memory is enough: a crash replays anyway."""
        self._cancel_timer()
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

    def _see_to_rollback(self) -> None:
        if self._run is None and self._due_timer is None:
            self.ctx.when_durable(self._unwind)

    @whole
    def _unwind(self) -> None:
        instance = self._instance
        if instance is not None and instance.status == "rollingBack":
            self._keep_running()
            self._flush()

    # --- when something is lost -------------------------------------------------------------

    def _cannot_run(self, error: Exception, *, tries: int = 0) -> None:
        """There is nothing to run it with, just now. `tries`: processes it took to find out."""
        if self._code_error != str(error):  # each time it is the same it was told before
            _log.error("instance %s can't go on: %s", self.ctx.ref.key, error)
        self._code_error = str(error)
        delay_ms = min(limits.CODE_RETRY_MS << min(tries, 30), limits.CODE_RETRY_MAX_MS)
        if isinstance(error, ToqueError):
            delay_ms = max(delay_ms, error.data.get("retry_ms", 0))
        self._due_timer = self.env.loop.call_later(delay_ms / 1_000, self._retry)

    @whole
    def _retry(self) -> None:
        self._due_timer = None
        if self._instance is not None:
            self._keep_running()
            self._must_report = True
            self._flush()

    @whole
    def _lost(self, run: Run, error: Exception) -> None:
        """The run is gone, without a fault of the instance's rows: open another."""
        if self._run is run:
            self._drop_run()
            if isinstance(error, ProgramRunsAtImport):  # it would be so each time
                self._finish(self.ctx.clock.now_ms(), "fail", None, record_of(error))
                self._flush()
                return
            if isinstance(error, WorkflowLoadError):
                self._cannot_run(error, tries=self._code_tries)
                self._code_tries += 1
                return
            self._go_on_after(error)
            self._flush()

    def _go_on_after(self, error: Exception) -> None:
        """The worker that the instance was in has ended: it goes on in another."""
        instance = self._existing()
        _log.warning("instance %s was interrupted: %s", self.ctx.ref.key, error)
        data = error.data if isinstance(error, WorkerLost) else {}
        if not data.get("was_up"):
            self._cannot_run(error, tries=self._code_tries)
            self._code_tries += 1
            return
        if data["suspicion"]:
            self._suspect(data["suspicion"])
            self._cut_off = str(error)
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

    def _start_over(self, error: Exception) -> None:
        """Memory can't be trusted: read the rows again, and go on from them in a while."""
        super()._start_over(error)
        if self.env.store.broken is None:
            self._due_timer = self.env.loop.call_later(limits.ENGINE_RETRY_MS / 1_000, self._retry)
