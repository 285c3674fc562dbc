"""How an instance ends for good: deletion, and expiry, which is deletion by its own alarm.

Between `observed` and `operations`. Deleting takes one commit: from it on there is no such
instance, and its id is free. What it leaves, until its SousChef has confirmed and nobody repeats
the request any more, is a tombstone, and the request ids that it answered. A new instance of the
id takes the tombstone's place: it keeps its SousChef, and reports only times later than the old
one did, so that late messages of the old run can't be taken for news. If that was V1's entity, and
it has heard of the deletion, the new one has a SousChef of its own.

Records of a large instance are deleted in several commits; the row that names them goes last.
"""

from __future__ import annotations

from ..runtime import limits
from ..runtime.entity import Context
from ..runtime.errors import EntityReset, InstanceNotFound
from .env import EngineEnv
from .journal import FORMAT_VERSION, Instance, Tombstone
from .keeping import whole
from .observed import ObservedInstance
from .ports import NO_NUMBER, OLD_NUMBER, StatusReport
from .rows import content_of
from .status import FINISHED

_DELETED = -1
"""What the ledger of requests says of the create of an instance that is deleted."""


class DeletableInstance(ObservedInstance):
    """See the module's description."""

    def __init__(self, ctx: Context, env: EngineEnv) -> None:
        super().__init__(ctx, env)
        self._tombstone = self._rows.tombstone() if self._instance is None else None

    @whole
    def delete(self, request_id: str) -> bool:
        """Remove all there is of the instance, whatever its status. True."""
        content = content_of("delete")
        if self._rows.answer_of(request_id, content) is not None:
            return True  # though there may be a new instance of the id
        instance = self._existing()
        now_ms = self.ctx.clock.now_ms()
        self._keep_answer(request_id, now_ms, content)
        self._keep_answer(instance.request_id, _DELETED)
        self._delete(instance, now_ms, now_ms + limits.DELETION_REMEMBERED_MS)
        return True

    def _existing(self) -> Instance:
        instance = self._instance
        if instance is not None:
            return instance
        if self._tombstone is not None:
            raise InstanceNotFound(f"instance {self._id()!r} was deleted.")
        return super()._existing()

    def _leave(self) -> None:
        """There is no instance: leave memory, unless a tombstone has something to tell."""
        if self._tombstone is None:
            self.ctx.evict()

    def _expire_if_due(self, now_ms: int) -> bool:
        """Whether its retention is over: then it is deleted."""
        instance = self._existing()
        if instance.status not in FINISHED or now_ms < instance.expires_ms:
            return False
        if not self.ctx.has_told():  # else a parent that asks again would get another child
            self._alarm_by(now_ms + limits.ANNOUNCE_ALARM_MS)
            return False
        self._rows.wipe_requests()
        self._delete(instance, now_ms, now_ms)
        return True

    def _delete(self, instance: Instance, now_ms: int, expires_ms: int) -> None:
        event_no = self._rows.event_no
        self._drop_children()
        self._tell_parent(instance, "deleted", None, None)
        self._drop_run()
        self._tombstone = Tombstone(
            FORMAT_VERSION,
            instance.run_id,
            instance.report_seq + 1,
            instance.turn,
            instance.souschef,
            "" if instance.status in FINISHED else "deleted",
            max(now_ms, instance.modified_ms, instance.queued_ms),
            instance.request_seq,
            instance.event_seq,
            event_no,
            expires_ms,
            bool(self._rows.wipe_records(1)),
        )
        self._rows.wipe_rest(params=True)
        self._rows.wipe_instance()
        self._rows.put_tombstone(self._tombstone)
        self._instance = None
        self._is_changed = self._must_report = False
        self._alarm_by(now_ms + limits.ANNOUNCE_ALARM_MS)
        self.ctx.keep_active()
        self._rows.flush()
        self._gone(InstanceNotFound(f"instance {self._id()!r} was deleted."))
        self.ctx.when_durable(self._bury)

    def _gone(self, error: InstanceNotFound) -> None:
        """Tell those who wait."""
        for waiter, timer in self._waiters.items():
            timer.cancel()
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        self._flush()

    @whole
    def _bury(self) -> None:
        """The deletion is durable: delete what is left, tell the SousChef."""
        tombstone = self._tombstone
        if tombstone is None:
            return
        if tombstone.sweeping:
            tombstone.sweeping = bool(self._rows.wipe_records(1))
            self._rows.put_tombstone(tombstone)
            self._rows.flush()
            self.ctx.when_durable(self._bury)
            return
        self._report(
            StatusReport(
                self.ctx.ref.key,
                tombstone.run_id,
                tombstone.report_seq,
                "ended",
                tombstone.turn,
                True,
                tombstone.since_ms,
                0,
                tombstone.status,
                self.env.shard,
            ),
            tombstone.souschef,
        )

    @whole
    def _tombstone_confirmed(self, run_id: str, seq: int) -> None:
        tombstone = self._tombstone
        if tombstone is None or (tombstone.run_id, tombstone.report_seq) != (run_id, seq):
            return
        self._confirmed_seq = seq
        if tombstone.status or tombstone.souschef == OLD_NUMBER:
            tombstone.status = ""  # it is counted; who hears of it again need not know that
            if tombstone.souschef == OLD_NUMBER:
                tombstone.souschef = NO_NUMBER
            self._rows.put_tombstone(tombstone)
            self._rows.flush()
        self._tidy_alarm(max(tombstone.expires_ms, self.ctx.clock.now_ms()))
        self.ctx.may_evict()

    def _tend_tombstone(self, now_ms: int) -> None:
        """The alarm of what is deleted: remove the last rows, or tell the SousChef again."""
        tombstone = self._tombstone
        if tombstone is None:
            self.ctx.evict()
        elif self._is_news(tombstone):
            self.ctx.set_alarm(now_ms + limits.ANNOUNCE_ALARM_MS)
            self._bury()
        elif now_ms < tombstone.expires_ms or not self.ctx.has_told():
            self.ctx.set_alarm(max(tombstone.expires_ms, now_ms + limits.ANNOUNCE_ALARM_MS))
        else:
            self._tombstone = None
            self._rows.wipe_requests()
            self._rows.put_tombstone(None)
            self._rows.flush()
            self.ctx.evict()

    def _is_news(self, tombstone: Tombstone) -> bool:
        """Whether its SousChef may not have heard of it, or there is more to delete."""
        is_known = tombstone.souschef == NO_NUMBER or self._confirmed_seq == tombstone.report_seq
        return tombstone.sweeping or not is_known

    def _inherit(self, instance: Instance) -> None:
        """A new instance of a deleted one's id."""
        tombstone = self._tombstone
        if tombstone is None:
            return
        if tombstone.souschef != NO_NUMBER:
            instance.souschef = tombstone.souschef
        instance.report_seq = tombstone.report_seq + 1
        instance.request_seq = tombstone.request_seq
        instance.event_seq = tombstone.event_seq
        later_ms = max(instance.created_ms, tombstone.since_ms + 1)
        instance.queued_ms = instance.modified_ms = later_ms
        self._rows.event_no = tombstone.event_no
        self._rows.put_tombstone(None)
        self._tombstone = None
        self.ctx.may_evict()

    def _refuse_create(self, request_id: str) -> None:
        """Whether there may be a new instance just now."""
        if self._tombstone is None:
            return
        if self._tombstone.sweeping:
            raise EntityReset(f"instance {self._id()!r} is being deleted; ask again.")
        if self._rows.answer_of(request_id) is not None:
            raise InstanceNotFound(f"instance {self._id()!r}, made by this request, was deleted.")

    def _start_over(self, error: Exception) -> None:
        super()._start_over(error)
        self._tombstone = self._rows.tombstone() if self._instance is None else None
