"""One live entity: its gates, its writes and its ways out. Implements `entity.Context`.

An activation begins with the entity's constructor and ends with eviction or a reset; what it
had not written is then gone, and callbacks that wait for it never run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from . import limits
from .codec import pack
from .entity import DurableObject
from .errors import EntityReset
from .gates import InputGate, OutputGate
from .ids import EntityRef
from .outbox import Letter
from .storage import Storage
from .tables import Change, Key, Row, Table

if TYPE_CHECKING:
    from .host import Host

Chain = tuple[tuple[str, str], ...]
current_chain: ContextVar[Chain] = ContextVar("toque_call_chain", default=())
"""The entities that wait for the handler that runs now, for cycle detection."""

_log = logging.getLogger("toque.entity")


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


class Stub:
    """Calls another entity: `await stub.method(args)`."""

    __slots__ = ("_activation", "_ref")

    def __init__(self, activation: Activation, ref: EntityRef) -> None:
        self._activation = activation
        self._ref = ref

    def __getattr__(self, method: str) -> Callable[..., asyncio.Future[Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        activation, ref = self._activation, self._ref
        return lambda *args: activation.call(ref, method, *args)


class Activation:
    """A live entity and its context."""

    __slots__ = (
        "_busy",
        "_evict_asked",
        "_host",
        "_keep",
        "_store",
        "_tasks",
        "clock",
        "ended",
        "entity",
        "entropy",
        "gate",
        "last_used",
        "out",
        "ref",
    )

    entity: DurableObject

    def __init__(self, host: Host, ref: EntityRef) -> None:
        self.ref = ref
        self.clock = host.clock
        self.entropy = host.entropy
        self.gate = InputGate(limits.MAILBOX_CALLS_MAX)
        self.out = OutputGate(
            host.store, ref, self._commit_failed, always_open=host.faults.no_output_gate
        )
        self.ended = False
        self.last_used = host.loop.time()
        self._host = host
        self._store = host.store
        self._keep = False
        self._evict_asked = False
        self._busy = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def storage(self) -> Storage:
        """See `entity.Context`. Not kept: few entities use it, and it would make a cycle."""
        return Storage(self, self.ref)

    # --- writes and reads -------------------------------------------------------------------

    def put(self, table: Table, row: Row) -> None:
        if self.ended:
            self._check_alive()
        self.out.last_seq = self._store.put(self.ref, table, row)

    def delete(self, table: Table, key: Key) -> None:
        self._check_alive()
        self.out.last_seq = self._store.delete(self.ref, table, key)

    def write_all(self, changes: Iterable[Change], letters: Sequence[Letter] = ()) -> None:
        if self.ended:
            self._check_alive()
        if not letters:
            self.out.last_seq = self._store.write_all(self.ref, changes)
            return
        outbox = self._host.outbox
        self.out.last_seq = outbox.write_all(self.ref, changes, letters)
        for dest in dict.fromkeys(each.dest for each in letters):
            self.out.passes(partial(outbox.release, dest))

    def get(self, table: Table, key: Key) -> Row | None:
        return self._store.get(table, key)

    def scan(
        self,
        table: Table,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int = 1_000,
        reverse: bool = False,
    ) -> list[Row]:
        return self._store.scan(table, prefix, after=after, limit=limit, reverse=reverse)

    def when_durable(self, callback: Callable[[], None]) -> None:
        out = self.out
        if not out.open:
            durable = partial(self._durable, callback)
            self._store.when_durable(out.last_seq, durable, self.ref)
        elif not self.ended:
            callback()

    def _durable(self, callback: Callable[[], None], error: BaseException | None) -> None:
        if error is not None:
            self._commit_failed(error)
        elif not self.ended:
            callback()

    def cover_shard(self) -> None:
        self.out.last_seq = self._store.write_seq

    def _check_alive(self) -> None:
        if self.ended:
            raise EntityReset(f"{self.ref} was reset; this activation may not write.")

    # --- alarms -----------------------------------------------------------------------------

    def set_alarm(self, due_ms: int) -> None:
        self._check_alive()
        self.out.last_seq = self._host.alarms.set(self.ref, self.ref, due_ms)

    def delete_alarm(self) -> None:
        self._check_alive()
        self.out.last_seq = self._host.alarms.delete(self.ref, self.ref)

    def alarm_due_ms(self) -> int | None:
        return self._host.alarms.due_ms(self.ref)

    # --- calls ------------------------------------------------------------------------------

    def call(
        self, ref: EntityRef, method: str, *args: Any, timeout_ms: int | None = None
    ) -> asyncio.Future[Any]:
        self._check_alive()
        future = self._host.loop.create_future()
        future.add_done_callback(_retrieve)  # the activation may end before the answer comes
        encoded = pack(args)
        chain = (*current_chain.get(), self.ref)

        def go() -> None:
            self._host.router.send(ref, method, encoded, future, timeout_ms=timeout_ms, chain=chain)

        def refuse(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        self.out.passes(go, refuse)
        return future

    def tell(self, ref: EntityRef, method: str, *args: Any) -> None:
        self._check_alive()
        outbox = self._host.outbox
        self.out.last_seq = outbox.tell(self.ref, ref, method, pack(args))
        self.out.passes(lambda: outbox.release(ref))

    def has_told(self) -> bool:
        return self._host.outbox.has_told(self.ref)

    def stub(self, kind: str, key: str) -> Stub:
        return Stub(self, EntityRef(kind, key))

    # --- background work and critical sections ----------------------------------------------

    def wait_until(self, work: Coroutine[Any, Any, Any]) -> None:
        self._check_alive()
        task = self._host.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work of %s failed", self.ref, exc_info=error)
        self.settle()

    async def block_concurrency_while(self, work: Callable[[], Awaitable[Any]]) -> Any:
        release = self.gate.hold()
        try:
            async with asyncio.timeout(limits.BLOCK_CONCURRENCY_MAX_MS / 1000):
                return await work()
        except BaseException as error:
            self._host.reset(self, error)
            raise
        finally:
            release()

    # --- life -------------------------------------------------------------------------------

    def evict(self) -> None:
        self._evict_asked = True
        if not self._busy:
            self._host.loop.call_soon(self.settle)

    def keep_active(self) -> None:
        self._keep = True

    def may_evict(self) -> None:
        self._keep = False

    @property
    def idle(self) -> bool:
        """Whether it could be evicted now without losing anything."""
        return (
            not self._busy
            and not self._keep
            and not self._tasks
            and not self.gate.closed
            and self.out.open
        )

    def begin(self) -> None:
        """An event enters."""
        self._busy += 1
        self.last_used = self._host.loop.time()

    def finish(self) -> None:
        """An event is done."""
        self._busy -= 1
        if self._evict_asked:
            self.settle()

    def settle(self) -> None:
        """Evict, if that was asked for and all is done."""
        if not self._evict_asked or self.ended:
            return
        if self.out.open:
            if self.idle:
                self._host.end(self)
        else:
            self.out.passes(self._settle_later)

    def _settle_later(self) -> None:
        self._host.loop.call_soon(self.settle)

    def close(self) -> None:
        """The activation is over."""
        self.ended = True
        for task in list(self._tasks):
            task.cancel()

    def let_go(self) -> None:
        """After `close` in good order: cut the cycles, so that memory is free without a collection.

        Nothing refers to the entity through this any more; what still waits for a commit looks at
        `ended` first.
        """
        del self.entity
        self.out.let_go()

    def _commit_failed(self, error: BaseException) -> None:
        if not self.ended:
            self._host.reset(self, error)
