"""What may be done with an instance from outside: pause, resume, terminate.

Between `observed` and `engine`. Each operation is one event: it asks the table in `status`
whether it is allowed, before anything is changed, and writes all that it does in one commit. The
same request id takes effect once; a request that was refused has taken none.
"""

from __future__ import annotations

from collections.abc import Callable

from .journal import Instance, Pause
from .life import whole
from .observed import ObservedInstance
from .status import move
from .views import InstanceView


class InstanceOperations(ObservedInstance):
    """See the module's description."""

    @whole
    def terminate(self, request_id: str) -> InstanceView:
        """End the instance at once; bodies in flight are cancelled, their results refused."""
        return self._once(request_id, self._terminate)

    def _terminate(self, now_ms: int) -> None:
        self._finish(now_ms, "terminate", None, None)

    @whole
    def pause(self, request_id: str) -> InstanceView:
        """Do nothing more from here on; bodies in flight may end."""
        return self._once(request_id, self._pause)

    def _pause(self, now_ms: int) -> None:
        instance = self._existing()
        before = instance.status
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
        return self._once(request_id, self._resume)

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
        instance.wake_ms += max(0, now_ms - instance.quiesced_ms)
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

    def _has_awaited_event(self, instance: Instance) -> bool:
        if not instance.events_buffered or not instance.awaited:
            return False
        return any(kind in instance.awaited for _, kind, _ in self._rows.events())

    def _act(self, what: str, now_ms: int, *args: int) -> None:
        run = self._run
        assert run is not None, f"{what} needs a run in memory"
        turn = run.act(what, now_ms, *args)
        if turn is not None:
            self._after_turn(turn, now_ms)

    def _once(self, request_id: str, act: Callable[[int], None]) -> InstanceView:
        """Do it, unless that request has done it before."""
        self._existing()
        if self._rows.answer_of(request_id) is None:
            now_ms = self.ctx.clock.now_ms()
            act(now_ms)
            self._keep_answer(request_id, now_ms)
            self._flush()
        return self._view()
