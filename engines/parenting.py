"""An instance as a parent and as a child: its children are made here, and relatives are heard.

Between `operations` and `engine`. A start is asked for once its record is durable, by a front end
of the shard's own (`child_calls.ChildrenPort`), with a request id that follows from the record: so
it may be asked for again after any crash and finds the child that it has made. A child's end is
buffered as an event is, whether or not it is waited for yet.
"""

from __future__ import annotations

import logging

from ..runtime.errors import CallerError, EntityReset, InvalidTransition, ToqueError
from ..runtime.ids import EntityRef, split_engine_key
from ..runtime.outbox import REPEATABLE
from ..runtime.payload_codec import CodecFailed
from .agenda import is_awaited
from .child_calls import ABANDON_IT, TERMINATE_IT, is_made, not_started, started, too_many
from .failures import FAILED, RecordedError
from .journal import (
    CANCELLED,
    CHILD_END,
    FORMAT_VERSION,
    RUNNING,
    START,
    ChildCall,
    ChildRow,
    Instance,
    Record,
)
from .keeping import Birth, whole
from .operations import InstanceOperations
from .ports import ENGINE_KIND
from .run_port import Run, Turn
from .status import FINISHED
from .views import Parent

_log = logging.getLogger("toque.engines")
_SOURCE = "parent"
"""What asked for the end of a child whose parent's run is over."""


class ParentInstance(InstanceOperations):
    """See the module's description."""

    # --- children that are made -------------------------------------------------------------

    def _see_to_children(self, turn: Turn) -> None:
        is_over = turn.outcome is not None
        for record in turn.records:
            call = record.child
            if call is None:
                continue
            child = self._rows.child(call.call)
            if record.kind == START and record.state == RUNNING:
                self._note_birth(record, call, child, is_over=is_over)
            elif record.state == CANCELLED and (record.kind == START or call.is_owned):
                self._let_go(call.call, child)

    def _note_birth(
        self, record: Record, call: ChildCall, child: ChildRow | None, *, is_over: bool
    ) -> None:
        """A child is to be made once this is durable; if the run is over, it never is."""
        if child is None:
            child = ChildRow(FORMAT_VERSION, record.ordinal, "", call.on_end, is_let_go=is_over)
            self._rows.put_child(call.call, child)
            self._existing().children += 1
            self._is_changed = True
        elif child.is_let_go and not child.key:  # a restart takes up again what was given up
            child.is_let_go = False
            self._rows.put_child(call.call, child)
        if not is_over:
            self._births.append(Birth(record.ordinal, record.attempt, call))

    def _bear(self, run: Run, birth: Birth) -> None:
        if self._run is not run:
            return
        instance, call = self._existing(), birth.call
        child = self._rows.child(call.call)
        if child is not None and (child.key or child.has_ended):
            self._made(run, birth, child.key, None)
            return
        depth = 1 if instance.parent is None else instance.parent.depth + 1
        refusal = too_many(call, depth, instance.children)
        if refusal is not None:
            self._made(run, birth, "", refusal)
            return
        key = self.ctx.ref.key
        parent = Parent(key, instance.run_id, instance.workflow, call.call, call.on_end, depth)
        self.ctx.wait_until(self._ask_for(run, birth, parent))

    async def _ask_for(self, run: Run, birth: Birth, parent: Parent) -> None:
        port = self.env.children
        account = split_engine_key(parent.key)[0]
        error: RecordedError | None = None
        key = ""
        try:
            if port is None:
                raise ToqueError("this runtime makes no children.")
            key = await port.start(account, birth.call, parent)
        except Exception as failed:
            if not is_made(failed):
                error = not_started(birth.call, failed)
                _log.debug("%s: %s", parent.key, error.message)
        self._made(run, birth, key, error)

    @whole
    def _made(self, run: Run, birth: Birth, key: str, error: RecordedError | None) -> None:
        """A front end has answered: the child is there, or was refused, for good or for now.

        No key: it is there no more.
        """
        if self._run is not run:
            return
        instance, call = self._existing(), birth.call
        child = self._rows.child(call.call)
        if child is not None and (child.key or child.has_ended):
            error = None  # it has said so itself, whatever the answer is
        if child is not None:
            self._note_answer(instance, call.call, child, key, error)
        if instance.status in ("running", "waitingForPause"):
            told = None if error is None else [error.kind, error.name, error.message, error.data]
            now_ms = self.ctx.clock.now_ms()
            turn = run.act("made", now_ms, birth.ordinal, birth.attempt, told, started(call))
            if turn is not None:
                self._after_turn(turn, now_ms)
        self._flush()

    def _note_answer(
        self, instance: Instance, call: str, child: ChildRow, key: str, error: RecordedError | None
    ) -> None:
        if error is None and not child.has_ended:
            child.is_made = True
            self._know(call, child, key)
        elif error is None or error.kind != FAILED:
            self._drop_child(instance, call)

    def _know(self, call: str, child: ChildRow, key: str) -> None:
        """A child is known to exist."""
        if child.is_let_go and not child.key:
            self._tell_child(key, call, child.on_end)
        child.key = child.key or key
        self._rows.put_child(call, child)

    # --- what relatives tell ----------------------------------------------------------------

    @whole
    def child_made(self, call: str, key: str, on_end: str) -> str:
        """A child is there. If this run does not want it (any more), it hears so."""
        child = None if self._instance is None else self._rows.child(call)
        if child is not None:
            self._know(call, child, key)
        elif on_end != ABANDON_IT:
            self._rows.tell(EntityRef(ENGINE_KIND, key), "parent_ended", self.ctx.ref.key, call)
        self._rows.flush()
        if self._instance is None:
            self._leave()
        return REPEATABLE

    def child_ended(self, call: str, end: bytes) -> str:
        """A child has ended; the wait for it is there, or will come."""
        if self._instance is None:
            self._leave()
            return REPEATABLE
        try:
            payload = self._rows.seal.open(end)
        except CallerError as unknown:  # other shards may know its codec earlier: tell it again,
            raise CodecFailed(unknown.message, unknown.data) from None  # refused it were lost
        return self.take_child_end(call, payload)

    @whole
    def take_child_end(self, call: str, payload: bytes) -> str:
        """As `child_ended`, of an end in the clear."""
        child = self._rows.child(call)
        if child is not None and not child.has_ended:
            if child.is_made:
                self._drop_child(self._existing(), call)
            else:
                child.has_ended = True
                self._rows.put_child(call, child)
            self._take_in(CHILD_END + call, payload, self.ctx.clock.now_ms())
            self._flush()
        return REPEATABLE

    @whole
    def parent_ended(self, parent: str, call: str) -> str:
        """The parent's run is over, or has given this child up."""
        instance = self._instance
        known = None if instance is None else instance.parent
        if instance is None:
            self._leave()
            return REPEATABLE
        if (
            known is None
            or (known.key, known.call) != (parent, call)
            or instance.is_detached
            or instance.status in FINISHED
        ):
            return REPEATABLE
        if instance.sweep_from:
            raise EntityReset(f"instance {self._id()!r} is being restarted; tell it again.")
        now_ms = self.ctx.clock.now_ms()
        self._end_broken_pause(now_ms)
        try:
            if known.on_end == TERMINATE_IT:
                self._terminate(now_ms, _SOURCE)
            elif known.on_end != ABANDON_IT:
                self._cancel(now_ms, _SOURCE)
        except InvalidTransition:
            pass  # it is about to end by itself
        self._flush()
        return REPEATABLE

    def _take_in(self, event_type: str, payload: bytes, now_ms: int) -> None:
        """Buffer an event, and let a wait for it go on."""
        instance = self._existing()
        instance.event_seq += 1
        instance.events_buffered += 1
        self._rows.put_event(instance.event_seq, event_type, now_ms, payload)
        self._is_changed = True
        run = self._run
        if run is not None:
            run.buffer_event(instance.event_seq, event_type, now_ms)
        if instance.status == "running" and run is not None:
            turn = run.act("tick", now_ms)
            if turn is not None:
                self._after_turn(turn, now_ms)
        elif instance.status == "waiting" and is_awaited(event_type, instance.awaited):
            self._wake(now_ms)
