"""A shard's host: activates entities, delivers calls to them and answers through their gates.

One host belongs to one store and one event loop. It guarantees what `entity` promises its
authors. If the store breaks, or another owner fences it, nothing leaves any more: `on_broken`
is called once and the shard must be opened anew by its owner.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from . import limits
from .activation import Activation, current_chain
from .alarms import ALARMS, AlarmDriver, Firing
from .clock import Clock
from .codec import pack
from .dispatch import decode_arguments, find, handlers_of
from .entity import AlarmInfo, DurableObject
from .entropy import Entropy
from .errors import (
    CallCycle,
    EntityReset,
    InvalidArgument,
    Overloaded,
    ToqueError,
    to_wire,
)
from .handler_notes import ALARM, CALL, MESSAGE, HandlerNotes
from .ids import EntityRef
from .messages import Call
from .outbox import INBOX, OUTBOX, REPEATABLE, TOLD, Outbox, Told
from .pacing import Pacer
from .rpc import Answer, Router
from .storage import KV
from .store import Store
from .sweeper import Sweeper
from .tables import Table

SYSTEM_TABLES: tuple[Table, ...] = (KV, ALARMS, OUTBOX, INBOX)
_log = logging.getLogger("toque.host")
_told_decoder = msgspec.msgpack.Decoder(Told)
_NOTHING = pack(None)


@dataclass(frozen=True)
class HostFaults:
    """Deliberate faults, to prove that the checkers find them. All off in earnest."""

    no_output_gate: bool = False


def tables_of(classes: Mapping[str, type[DurableObject]]) -> list[Table]:
    """All tables that a shard with these classes needs."""
    declared = {table.name: table for cls in classes.values() for table in cls.TABLES}
    return [*SYSTEM_TABLES, *declared.values()]


class Host:
    """The entities of one shard.

    Args:
        shard: the shard's name.
        store: its open store, with the tables of `tables_of(classes)`.
        clock, entropy, loop: time, randomness and the event loop.
        router: calls other entities.
        classes: entity classes by kind.
        envs: what each kind's constructor gets as `env`.
        on_broken: called once when the store takes no more commits.
        faults: deliberate faults for checkers.
        memory_bytes: how much memory the process has; None: don't look.
        notes: notes whose handlers run, and knows whose ran when the process ended; None: nobody's.
    """

    def __init__(
        self,
        shard: str,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        loop: asyncio.AbstractEventLoop,
        router: Router,
        classes: Mapping[str, type[DurableObject]],
        envs: Mapping[str, Any],
        on_broken: Callable[[BaseException], None] | None = None,
        faults: HostFaults | None = None,
        memory_bytes: Callable[[], int] | None = None,
        notes: HandlerNotes | None = None,
    ) -> None:
        self.shard = shard
        self.notes = notes
        self._opened_s = loop.time()
        self.store = store
        self.clock = clock
        self.entropy = entropy
        self.loop = loop
        self.router = router
        self.faults = faults or HostFaults()
        self._classes = dict(classes)
        self._envs = dict(envs)
        self._on_broken = on_broken
        store.on_owner_failed = self._owner_failed
        store.on_broken = self._store_broke  # also if nothing waits for the commit that failed
        self._handlers = {kind: handlers_of(cls) for kind, cls in classes.items()}
        self._live: dict[EntityRef, Activation] = {}
        self._unsettled: dict[EntityRef, int] = {}
        self._taking: set[tuple[Activation, tuple[str, str]]] = set()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they began
        self.alarms = AlarmDriver(store, clock, entropy, loop, self._fire_alarm)
        self.outbox = Outbox(store, loop, self._send_told)
        self.pacer = Pacer(store, loop)
        self._sweeper = Sweeper(loop, self._live, self.end, memory_bytes)
        self._store_looker: asyncio.TimerHandle | None = None
        self._closed = False
        self.calls = 0
        self.resets = 0

    # --- life -------------------------------------------------------------------------------

    def set_envs(self, envs: Mapping[str, Any]) -> None:
        """Set what constructors get, where that needs the host itself. Before `start`."""
        self._envs = dict(envs)

    def start(self) -> None:
        """Load alarms, send what waits in the outbox, and wake what had work in memory."""
        blamed = None if self.notes is None else self.notes.blamed
        if blamed is not None:
            _log.error("the process ended while %s of %s was handled", *blamed)
        self.alarms.start(blamed.ref if blamed is not None and blamed.trigger == ALARM else None)
        self.outbox.start()
        for kind, cls in self._classes.items():
            for key in cls.resume_keys(self.store):
                self.pacer.add((partial(self._resume, EntityRef(kind, key)),))
        self._sweeper.start()
        self._look_at_store()

    def _resume(self, ref: EntityRef) -> None:
        if self._closed:
            return
        activation = self._activate(ref)
        activation.gate.enter(lambda: self._guard(activation, activation.entity.on_resume))

    def _guard(self, activation: Activation, work: Callable[[], None]) -> None:
        if activation.ended:
            return
        activation.begin()
        try:
            work()
        except Exception as error:
            _log.exception("%s failed while resuming", activation.ref)
            self.reset(activation, error)
        finally:
            activation.finish()

    def local(self, ref: EntityRef) -> DurableObject:
        """The live entity of this shard, activated if need be, for calls within the shard."""
        return self._activate(ref).entity

    def peek(self, ref: EntityRef) -> DurableObject | None:
        """The entity if it is live."""
        activation = self._live.get(ref)
        return None if activation is None else activation.entity

    @property
    def crowded(self) -> bool:
        """Whether so many entities are live that who has nothing to do had better leave."""
        return len(self._live) > limits.ENTITIES_ROOMY_MAX

    def live(self, kind: str) -> list[DurableObject]:
        """The live entities of a kind."""
        return [activation.entity for ref, activation in self._live.items() if ref.kind == kind]

    def _activate(self, ref: EntityRef) -> Activation:
        activation = self._live.get(ref)
        if activation is None:
            cls = self._classes.get(ref.kind)
            if cls is None:
                raise InvalidArgument(f"shard {self.shard} has no entities of kind {ref.kind!r}.")
            activation = Activation(self, ref)
            if self._unsettled and (seq := self._unsettled.pop(ref, None)) is not None:
                activation.out.last_seq = seq
            activation.entity = cls(activation, self._envs.get(ref.kind))
            self._live[ref] = activation
            if len(self._live) > limits.ENTITIES_LIVE_MAX:
                self._sweeper.relieve()
        return activation

    def end(self, activation: Activation) -> None:
        """End an activation in good order."""
        if self._live.get(activation.ref) is activation:
            del self._live[activation.ref]
            activation.entity.on_evict()
            activation.close()
            activation.let_go()

    def reset(self, activation: Activation, error: BaseException) -> None:
        """End an activation because of an error; the next event activates the entity anew."""
        if activation.ended:
            return
        self.resets += 1
        _log.warning("%s was reset: %s", activation.ref, error)
        if self._live.get(activation.ref) is activation:
            del self._live[activation.ref]
        if not activation.out.open:  # the next one reads those writes, so it must wait for them
            self._unsettled[activation.ref] = activation.out.last_seq
        activation.close()
        waiting = activation.gate.clear()
        try:
            activation.entity.on_evict()
        except Exception:
            _log.exception("%s failed in on_evict", activation.ref)
        self.alarms.abandon(activation.ref)
        if self.store.broken is not None:
            self._store_broke(self.store.broken)
            return
        for event in waiting:  # calls among them are told that they were not handled
            event()

    def _owner_failed(self, owner: Any, error: BaseException) -> None:
        """What the entity wrote can't be stored: what it holds in memory is not true any more."""
        self.outbox.forget(owner)
        activation = self._live.get(owner)
        if activation is not None:
            self.reset(activation, error)
        elif isinstance(owner, EntityRef):
            self.alarms.abandon(owner)

    def _store_broke(self, error: BaseException) -> None:
        if not self._closed:
            self.close()
            if self._on_broken is not None:
                self._on_broken(error)

    def _look_at_store(self) -> None:
        """Notice a broken store although nobody writes."""
        if self.store.broken is not None:
            self._store_broke(self.store.broken)
        if not self._closed:
            delay_s = limits.IDLE_EVICTION_MS / 2000
            self._store_looker = self.loop.call_later(delay_s, self._look_at_store)

    def close(self) -> None:
        """Deliver no more, end all activations. The store stays open."""
        if self._closed:
            return
        self._closed = True
        self._sweeper.close()
        if self._store_looker is not None:
            self._store_looker.cancel()
        self.alarms.close()
        self.pacer.close()
        self.outbox.close()
        for task in list(self._tasks):
            task.cancel()
        for activation in list(self._live.values()):
            activation.close()
            try:
                activation.entity.on_evict()
            except Exception:
                _log.exception("%s failed in on_evict", activation.ref)
        self._live.clear()

    # --- delivery ---------------------------------------------------------------------------

    def deliver(self, call: Call, answer: Answer) -> None:
        """Handle a call; see `rpc.Deliverer`."""
        if self._closed:
            return
        self.calls += 1
        ref = EntityRef(call.kind, call.key)
        try:
            if ref in call.chain:
                way = " -> ".join(f"{kind}({key})" for kind, key in call.chain)
                raise CallCycle(
                    f"{way} -> {ref}: this call came back to an entity that waits for it. "
                    "Use ctx.tell (the outbox) for one of the calls."
                )
            if not call.key or len(call.key) > limits.ENTITY_KEY_CHARS_MAX:
                raise InvalidArgument(
                    f"an entity key takes 1 to {limits.ENTITY_KEY_CHARS_MAX} characters."
                )
            if not self.store.has_room(limits.BATCH_ROWS_RESERVED, limits.BATCH_BYTES_RESERVED):
                # refused before anything was done: a handler that meets a full batch in the
                # middle would leave half of its writes
                raise Overloaded(f"shard {self.shard} has more to write than its disk takes.")
            activation = self._activate(ref)
            if activation.gate.closed:
                activation.gate.enter(lambda: self._handle(activation, call, answer))
                return
        except Exception as error:
            answer(call.id, False, pack(to_wire(error)))
            return
        self._handle(activation, call, answer)

    def _handle(self, activation: Activation, call: Call, answer: Answer) -> None:
        if activation.ended:
            error = EntityReset(f"{activation.ref} was reset before it handled the call.")
            answer(call.id, False, pack(to_wire(error)))
            return
        activation.begin()
        try:
            if call.method == TOLD:
                self._take_told(activation, call, answer)
                return
            handler = find(self._handlers[call.kind], call.kind, call.method)
            args = decode_arguments(handler, call.kind, call.method, call.args)
            if self.notes is None:
                result = handler.function(activation.entity, *args)
            else:
                result = self._run(CALL, activation.ref, handler.function, activation.entity, *args)
            if result.__class__ is asyncio.Future or inspect.isawaitable(result):
                self._answer_later(activation, call, answer, result)
                return
            body = pack(result)
        except Exception as error:
            self._refuse(activation, call, answer, error)
        else:
            self._answer(activation, call, answer, body)
        activation.finish()

    def _answer(self, activation: Activation, call: Call, answer: Answer, body: bytes) -> None:
        if activation.out.open:
            answer(call.id, True, body)
            return
        activation.out.passes(
            lambda: answer(call.id, True, body),
            lambda error: answer(call.id, False, pack(to_wire(error))),
        )

    def _refuse(
        self, activation: Activation, call: Call, answer: Answer, error: BaseException
    ) -> None:
        if not isinstance(error, ToqueError):
            _log.error("%s.%s raised", activation.ref, call.method, exc_info=error)
        body = pack(to_wire(error))
        activation.out.passes(
            lambda: answer(call.id, False, body),
            lambda failed: answer(call.id, False, pack(to_wire(failed))),
        )

    def _answer_later(
        self,
        activation: Activation,
        call: Call,
        answer: Answer,
        result: Any,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """The handler awaits something: answer when its future or coroutine is done."""
        if isinstance(result, Coroutine):
            token = current_chain.set(call.chain)
            result = self._spawn(FirstAlone(result, activation.gate.hold(), self.loop))
            current_chain.reset(token)

        def done(future: asyncio.Future[Any]) -> None:
            if ended is not None:
                ended()
            raised: BaseException | None = None
            if future.cancelled():
                raised = EntityReset("the call was cancelled.")
            else:
                raised = future.exception()
            try:
                if activation.ended:
                    error = EntityReset(f"{activation.ref} was reset while it handled the call.")
                    answer(call.id, False, pack(to_wire(error)))
                elif raised is not None:
                    self._refuse(activation, call, answer, raised)
                else:
                    self._answer(activation, call, answer, pack(future.result()))
            except Exception as error:
                self._refuse(activation, call, answer, error)
            finally:
                activation.finish()

        result.add_done_callback(done)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _run(self, trigger: str, ref: EntityRef, handler: Callable[..., Any], *args: Any) -> Any:
        """Call a handler and have it noted."""
        notes = self.notes
        if notes is None:
            return handler(*args)
        if trigger == MESSAGE and notes.is_blamed(trigger, ref):
            left_s = self._opened_s + limits.BLAMED_PAUSE_MS / 1000 - self.loop.time()
            if left_s > 0:
                raise Overloaded(
                    f"the process ended when a message to {ref} was handled; this one waits."
                )
        return notes.run(trigger, ref, handler, *args)

    # --- outbox -----------------------------------------------------------------------------

    def _send_told(self, dest: EntityRef, method: str, args: bytes) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        self.router.send(dest, method, args, future)
        return future

    def _take_told(self, activation: Activation, call: Call, answer: Answer) -> None:
        """A message from an outbox: once per sender and sequence, noted in the same commit."""
        told = _told_decoder.decode(call.args)
        sender = (told.sender_kind, told.sender_key)
        address = (*activation.ref, *sender)
        seen = activation.get(INBOX, address)
        if seen is not None and seen[4] >= told.seq:
            self._answer(activation, call, answer, _NOTHING)
            activation.finish()
            return
        taking = (activation, sender)
        if taking in self._taking:
            raise Overloaded("an earlier message of the same sender is still being handled.")
        handler = find(self._handlers[call.kind], call.kind, told.method)
        args = decode_arguments(handler, call.kind, told.method, told.args)
        result = self._run(MESSAGE, activation.ref, handler.function, activation.entity, *args)
        if not inspect.isawaitable(result):
            if result is not REPEATABLE:
                activation.put(INBOX, (*address, told.seq))
            self._answer(activation, call, answer, _NOTHING)
            activation.finish()
            return

        work = result if isinstance(result, Coroutine) else _drive(result)
        noted = Followed(work, lambda: activation.put(INBOX, (*address, told.seq)))
        self._taking.add(taking)  # a copy that comes before its end is not to do it twice
        self._answer_later(activation, call, answer, noted, lambda: self._taking.discard(taking))

    # --- alarms -----------------------------------------------------------------------------

    def _fire_alarm(self, firing: Firing) -> None:
        try:
            activation = self._activate(firing.ref)
            activation.gate.enter(lambda: self._run_alarm(activation, firing))
        except Exception as error:
            _log.error("the alarm of %s can't be delivered: %s", firing.ref, error)
            self.alarms.failed(firing)

    def _run_alarm(self, activation: Activation, firing: Firing) -> None:
        if activation.ended:
            return
        activation.begin()
        try:
            info = AlarmInfo(firing.retries)
            result = self._run(ALARM, activation.ref, activation.entity.alarm, info)
        except Exception as error:
            self._alarm_done(activation, firing, error)
            return
        if result is None:
            self._alarm_done(activation, firing, None)
            return

        def done(task: asyncio.Task[Any]) -> None:
            cut = EntityReset("the handler was cancelled.") if task.cancelled() else None
            self._alarm_done(activation, firing, cut or task.exception())

        work = result if inspect.iscoroutine(result) else _drive(result)
        task = self._spawn(FirstAlone(work, activation.gate.hold(), self.loop))
        task.add_done_callback(done)
        late_s = limits.ALARM_HANDLER_MAX_MS / 1_000
        timer = self.loop.call_later(late_s, self._end_alarm, activation, task)
        task.add_done_callback(lambda _: timer.cancel())

    def _end_alarm(self, activation: Activation, task: asyncio.Task[Any]) -> None:
        """A handler that does not end holds back all later alarms of its entity: cancel it.

        One that goes on all the same loses its activation, and can write nothing any more.
        """
        _log.error(
            "the alarm handler of %s has not ended within %g s, and is cancelled",
            activation.ref,
            limits.ALARM_HANDLER_MAX_MS / 1_000,
        )
        task.cancel()
        grace_s = limits.ALARM_CANCEL_MAX_MS / 1_000
        timer = self.loop.call_later(grace_s, self._give_up_alarm, activation)
        task.add_done_callback(lambda _: timer.cancel())

    def _give_up_alarm(self, activation: Activation) -> None:
        self.reset(activation, EntityReset("its alarm handler does not end, though cancelled."))

    def _alarm_done(
        self, activation: Activation, firing: Firing, error: BaseException | None
    ) -> None:
        if not activation.ended and self.store.broken is None:
            if error is None:
                if (seq := self.alarms.handled(firing)) is not None:
                    activation.out.last_seq = seq
            else:
                _log.error("the alarm of %s failed", activation.ref, exc_info=error)
                self.alarms.failed(firing)
        activation.finish()

    # --- figures ----------------------------------------------------------------------------

    def statistics(self) -> dict[str, float]:
        """Counters of this shard."""
        return {
            "live_entities": len(self._live),
            "calls": self.calls,
            "resets": self.resets,
            "hibernated": self._sweeper.ended,
            "alarms_fired": self.alarms.fired,
            "alarm_late_ms_max": self.alarms.late_ms_max,
            "alarm_handler_ms_max": self.alarms.longest_ms(),
            "outbox_waiting": self.outbox.waiting,
            **{f"store_{name}": value for name, value in self.store.statistics().items()},
        }


async def _drive(work: Any) -> None:
    await work


class Followed(Coroutine[Any, Any, Any]):
    """Runs `work`, and `then` at its good end, in the same turn of the loop.

    If it is cancelled before it began, so is `work`: none is left that was never awaited.
    """

    __slots__ = ("_then", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], then: Callable[[], None]) -> None:
        self._work = work
        self._then = then

    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._work.throw, *error)

    def _step(self, step: Callable[..., Any], *args: Any) -> Any:
        try:
            return step(*args)
        except StopIteration:
            self._then()
            raise

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


class FirstAlone(Coroutine[Any, Any, Any]):
    """Runs `work`; up to its first wait it is alone, as if it had begun when it was delivered.

    A task starts in a later turn of the loop: without this, the next event would overtake what
    the handler does first (take a critical section, say).
    """

    __slots__ = ("_loop", "_release", "_work")

    def __init__(
        self,
        work: Coroutine[Any, Any, Any],
        release: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._work = work
        self._release: Callable[[], None] | None = release
        self._loop = loop

    def send(self, value: Any) -> Any:
        if self._release is None:
            return self._work.send(value)
        release, self._release = self._release, None
        try:
            return self._work.send(value)
        finally:
            self._loop.call_soon(release)

    def throw(self, *error: Any) -> Any:
        if self._release is not None:  # cancelled before it began
            release, self._release = self._release, None
            self._loop.call_soon(release)
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()
