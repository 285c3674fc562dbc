"""The phases of an instance: how it parks, wakes, rolls back, ends, and begins another run.

Between `family` and `life`: each method here is a change of status by the table in `status`, with
all that it writes. None of them executes `run`; who may is in `life`.
"""

from __future__ import annotations

from .failures import RecordedError, WorkflowStuck, cancelled_error, record_of
from .family import FamilyInstance
from .journal import Undoing
from .keeping import whole
from .run_port import Turn
from .status import Event, move


class InstancePhases(FamilyInstance):
    """See the module's description."""

    # --- waiting ----------------------------------------------------------------------------

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
        self._cancel_timer()
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

    # --- rolling back and ending ------------------------------------------------------------

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
        self._let_children_go()
        self._drop_run()
        self._changed(now_ms)

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
        self._let_children_go()
        self._tell_parent(instance, instance.status, output, error)
        self._changed(now_ms)
        self._drop_run()
        self.ctx.may_evict()

    # --- another run ------------------------------------------------------------------------

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
        self._drop_children(first)
        instance.sweep_from = self._rows.wipe_records(first)
        instance.run_id = self.ctx.entropy.new_id()
        instance.awaited = ()
        instance.turn += 1
        later_ms = max(now_ms, instance.modified_ms + 1, instance.queued_ms + 1)
        instance.queued_ms = instance.modified_ms = later_ms
        self._changed(now_ms)
        if instance.sweep_from:
            self.ctx.when_durable(self._sweep)

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
