"""What may be done with an instance from outside: pause, resume, terminate, restart.

Between `deletion` and `engine`. Each operation is one event: it asks the table in `status`
whether it is allowed, before anything is changed, and writes all that it does in one commit. The
same request id takes effect once, and none once it was refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from ..runtime.codec import NULL
from ..runtime.entity import Context
from ..runtime.errors import CallerError, EntityReset, InvalidArgument, RequestRefused
from .agenda import is_awaited
from .child_calls import end_of, ordinal_of
from .deletion import DeletableInstance
from .env import EngineEnv
from .failures import NON_RETRYABLE, RecordedError, StepNotFound, StepUndone, cancelled_error
from .journal import (
    AWAITS,
    CANCEL,
    CHILD,
    DO,
    HIDDEN,
    SLEEP,
    START,
    WAIT,
    Instance,
    Pause,
    Record,
    Undoing,
)
from .keeping import whole
from .rollback import is_undone, undone_ordinals
from .rows import content_of
from .status import move
from .views import InstanceView

STEP_TYPES: Final = {
    "do": DO,
    "step": DO,
    "sleep": SLEEP,
    "waitForEvent": WAIT,
    "startChild": START,
    "child": CHILD,
}
"""What steps are called from outside, and the kind of their records."""
_REFUSED = -2
"""What the ledger of requests says of an operation that was refused."""
_REFUSALS_MAX = 16
"""How many of the last refusals are kept in words, in memory."""


class InstanceOperations(DeletableInstance):
    """See the module's description."""

    def __init__(self, ctx: Context, env: EngineEnv) -> None:
        super().__init__(ctx, env)
        self._refusals: dict[tuple[str, str], CallerError] = {}

    @whole
    def terminate(
        self, request_id: str, rollback: bool = False, source: str = "api"
    ) -> InstanceView:
        """End the instance at once; bodies in flight are cancelled, their results refused.

        With `rollback`, what its steps did is undone first, as far as they say how; if that is
        under way already, it goes on, and the instance ends as it would have. `source` says what
        asked for it.
        """

        def act(now_ms: int) -> None:
            if rollback and self._existing().has_undo:
                self._undo(now_ms, source)
            else:
                self._terminate(now_ms, source)

        return self._once(request_id, act, "terminate", rollback)

    def _terminate(self, now_ms: int, source: str) -> None:
        instance = self._existing()
        move(instance.status, "terminate")
        instance.ended_by = source
        if instance.status == "rollingBack":
            error = RecordedError(NON_RETRYABLE, "Terminated", "the instance was terminated")
            instance.undo = Undoing(True, "failed", error)
        else:
            instance.undo = None
        self._finish(now_ms, "terminate", None, instance.error)

    def _undo(self, now_ms: int, source: str) -> None:
        """Roll back, at once or as soon as there is a slot for it."""
        instance = self._existing()
        before = instance.status
        after = move(before, "roll_back")
        if before == "rollingBack":
            return
        instance.undo = Undoing(is_terminated=True)
        instance.ended_by = source
        self._is_changed = True
        if after == "rollingBack":
            self._roll_back(now_ms)
        elif before != "queued":
            self._queue(now_ms, "roll_back")

    @whole
    def cancel(self, request_id: str, source: str = "api") -> InstanceView:
        """Have `run` cancelled, so that it can clean up; only the first cancel has an effect.

        The instance ends `terminated`, with the error name `Cancelled`; one that never ran, at
        once.
        """
        return self._once(request_id, lambda now_ms: self._cancel(now_ms, source), "cancel")

    def _cancel(self, now_ms: int, source: str) -> None:
        instance = self._existing()
        before = instance.status
        after = move(before, "cancel")
        if instance.cancel_ms:
            return
        instance.ended_by = source
        if instance.started_ms is None:
            self._finish(now_ms, "terminate", None, cancelled_error())
            return
        instance.cancel_ms = now_ms
        self._is_changed = True
        if before in ("paused", "waitingForPause"):
            self._end_pause(instance, now_ms, shift=before == "paused")
        if after == "queued":
            if before != "queued":
                self._queue(now_ms, "cancel")
            return
        if before == "waitingForPause":
            instance.status = after
            self._changed(now_ms)
            self._act("resume", now_ms, instance.pause_ms)
        if self._run is not None:
            self._act("cancel", now_ms)

    @whole
    def pause(self, request_id: str) -> InstanceView:
        """Do nothing more from here on; bodies in flight may end."""
        return self._once(request_id, self._pause, "pause")

    def _pause(self, now_ms: int) -> None:
        instance = self._existing()
        before = instance.status
        if before == "queued" and instance.undo is not None:
            move("rollingBack", "pause")  # refused: it rolls back as soon as it has a slot
        instance.status = move(before, "pause")
        instance.pause_ms = instance.quiesced_ms = now_ms
        if instance.status == "paused":
            if before == "queued":
                instance.wake_ms = now_ms  # it asks for its slot again
            self._drop_run()
            self._changed(now_ms)
        elif self._run is None:  # its code can't be loaded just now
            self._drop_run()
            self._quiesce(now_ms, now_ms, ())
        else:
            self._changed(now_ms)
            self._act("pause", now_ms)

    @whole
    def resume(self, request_id: str) -> InstanceView:
        """Go on after a pause, or take back one that is not complete; else no effect."""
        return self._once(request_id, self._resume, "resume")

    def _resume(self, now_ms: int) -> None:
        instance = self._existing()
        before = instance.status
        instance.status = move(before, "resume")
        if before == instance.status:
            return
        if before == "waitingForPause":
            self._end_pause(instance, now_ms)
            self._changed(now_ms)
            self._act("resume", now_ms, instance.pause_ms)
            return
        self._end_pause(instance, now_ms, shift=True)
        instance.wake_ms = instance.wake_after_pause(now_ms, self._rows.records())
        if instance.wake_ms <= now_ms or self._has_awaited_event(instance):
            self._wake(now_ms)
        else:
            self._changed(now_ms)
            self._alarm_by(instance.wake_ms)

    def _end_pause(self, instance: Instance, now_ms: int, *, shift: bool = False) -> None:
        """Note the pause that ends now, and move the records' times by its length."""
        if instance.started_ms is None:
            return
        records = self._rows.records()
        order = max((record.order for record in records), default=0)
        pause = Pause(order, instance.pause_ms, max(0, now_ms - instance.pause_ms))
        for record in records if shift else ():
            if record.shift(pause):
                self._rows.put_record(record)
        known = instance.pauses
        if known and known[-1].order == order:  # the same timers: one longer pause
            length_ms = known[-1].length_ms + pause.length_ms
            pause = Pause(order, known[-1].from_ms, length_ms)
            known = known[:-1]
        instance.pauses = (*known, pause)
        self._is_changed = True

    @whole
    def restart(self, request_id: str, name: str, count: int, kind: str) -> InstanceView:
        """Begin again: a new run with the same id, params and code.

        Args:
            request_id: as everywhere.
            name, count, kind: begin with that step: results of steps that began before it are
                kept. An empty name: from the start.

        Raises:
            StepNotFound: there is no such step.
            StepUndone: a step before it was undone by a rollback.
        """

        def act(now_ms: int) -> None:
            self._restart(now_ms, self._step_of(name, count, kind) if name else None)

        return self._once(request_id, act, "restart", name, count, kind)

    def _step_of(self, name: str, count: int, kind: str) -> Record:
        wanted = STEP_TYPES.get(kind)
        if wanted is None:
            raise InvalidArgument(
                f"there are no steps of type {kind!r:.80}; give one of {', '.join(STEP_TYPES)}."
            )
        records = self._rows.records()
        for record in records:
            if (record.kind, record.name, record.count) == (wanted, name, count):
                self._refuse_undone(records, record)
                return record
        of_name = [(r.kind, r.count) for r in records if r.name == name]
        other = next((t for t, k in STEP_TYPES.items() if (k, count) in of_name), None)
        if other is not None:
            raise StepNotFound(
                f"instance {self._id()!r} has no step {name!r:.300} of type {kind} with count "
                f"{count}, but one of type {other}. Name the type too: "
                f"{json.dumps({'name': name, 'count': count, 'type': other})}."
            )
        raise StepNotFound(
            f"instance {self._id()!r} has no {kind} {name!r:.300} with count {count}; give a "
            "name that its steps show without the number at the end, and that number."
        )

    def _refuse_undone(self, records: list[Record], target: Record) -> None:
        """What a rollback has undone, or began to, may not be kept: it is not so any more."""
        undone = undone_ordinals(records)
        first = next((r for r in records if r.ordinal in undone), target)
        if first.ordinal < target.ordinal:
            raise StepUndone(
                f"a restart from {target.public_name!r} would keep the result of step "
                f"{first.public_name!r}, which a rollback has undone. Restart from step "
                f"({first.name!r}, {first.count}) or an earlier one, or from the start.",
                {"name": first.name, "count": first.count},
            )

    def _restart(self, now_ms: int, target: Record | None) -> None:
        instance = self._existing()
        instance.status = move(instance.status, "restart")
        instance.cancel_ms = 0
        self._drop_run()
        if target is None:
            instance.started_ms = None
            instance.pauses = ()
            instance.events_buffered = instance.step_count = 0
            instance.lineage_run = ""
            instance.code_changed = instance.forked = False
            instance.notes = []
            first = 1
            self._rows.wipe_rest(params=False)
        else:
            first = target.ordinal
            instance.forked = True
            instance.lineage_run = instance.lineage_run or instance.run_id
            kept = (pause for pause in instance.pauses if pause.order < target.after)
            instance.pauses = (*kept, Pause(target.after, target.started_ms, 0))  # see `grant`
            self._fork(instance, target)
            self._rows.drop_payload("output")
        instance.ended_ms = None
        instance.expires_ms = instance.wake_ms = 0
        instance.output = instance.error = instance.undo = None
        instance.ended_by = ""
        if target is None:
            instance.has_undo = False
        self._begin_run(now_ms, first)
        instance.awakened = target is not None

    def _fork(self, instance: Instance, target: Record) -> None:
        """Keep what began before that record, and give back the events of what did not."""
        for record in self._rows.records():
            if record.ordinal < target.ordinal:
                if record.kind == CANCEL:
                    instance.cancel_ms = record.started_ms
                if record.order > target.after:  # its result counts, once it is asked for
                    record.order = 0
                    self._rows.put_record(record)
            elif record.kind in AWAITS and record.event_seq and _is_kept(record, target):
                payload = end_of(record) if record.kind == CHILD else record.result
                self._rows.put_event(
                    record.event_seq, record.event_type, record.event_at_ms, payload or NULL
                )
                instance.events_buffered += 1
        kept = [record for record in self._rows.records() if record.ordinal < target.ordinal]
        instance.step_count = sum(record.kind not in HIDDEN for record in kept)
        instance.has_undo = any(map(is_undone, kept))

    def _has_awaited_event(self, instance: Instance) -> bool:
        if not instance.events_buffered or not instance.awaited:
            return False
        return any(is_awaited(kind, instance.awaited) for _, kind, _ in self._rows.events())

    def _act(self, what: str, now_ms: int, *args: int) -> None:
        run = self._run
        assert run is not None, f"{what} needs a run in memory"
        turn = run.act(what, now_ms, *args)
        if turn is not None:
            self._after_turn(turn, now_ms)

    def _once(self, request_id: str, act: Callable[[int], None], *asked: object) -> InstanceView:
        """Do what is asked, unless that request has done it before, or was refused.

        A refusal is kept too: a copy of the message that comes late, when the instance or another
        one of its id could do it, must not do what its caller was told is not done.
        """
        instance = self._existing()
        content = content_of(*asked)
        known = self._rows.answer_of(request_id, content)
        if known == _REFUSED:
            refusal = self._refusals.get((instance.run_id, request_id)) or RequestRefused(
                f"a request with the id {request_id!r:.200} was refused before and changed "
                "nothing. What it asks may be possible now: ask with a new id."
            )
            raise refusal.with_traceback(None)
        if known is None:
            self._end_broken_pause(self.ctx.clock.now_ms())
            if instance.sweep_from:
                raise EntityReset(f"instance {self._id()!r} is being restarted; ask again.")
            now_ms = self.ctx.clock.now_ms()
            try:
                act(now_ms)
            except CallerError as refusal:
                self._keep_refusal(request_id, content, refusal)
                raise
            self._keep_answer(request_id, now_ms, content)
            self._flush()
        return self._view()

    def _end_broken_pause(self, now_ms: int) -> None:
        """A reset or a crash took the bodies that a pause waits for, and a call comes before the
        instance is taken up again."""
        if self._existing().status == "waitingForPause" and self._run is None:
            self._drop_run()
            self._quiesce(now_ms, now_ms, ())

    def _keep_refusal(self, request_id: str, content: int, refusal: CallerError) -> None:
        if not request_id:
            return
        self._refusals[self._existing().run_id, request_id] = refusal
        if len(self._refusals) > _REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]
        seq = self._existing().request_seq  # as the last that was done: the instance stays as it is
        self._rows.keep_answer(request_id, seq, _REFUSED, content)
        self._rows.flush()


def _is_kept(wait: Record, target: Record) -> bool:
    """Whether what a wait was given is of something that the restart keeps: a child is its
    start's; any other event is the instance's."""
    call = wait.child
    return call is None or ordinal_of(call.call) < target.ordinal
