"""What authors of entities subclass, and what an entity gets from its host.

An entity is single-threaded: its host gives it one event at a time, except that an `async`
handler lets others in while it awaits something that is not its own storage (as in Durable
Objects). Handlers that need no await are plain `def`: they run at once and cost least.

Rules that the host keeps:

* A handler's answer, and every call the entity makes, leaves only when all the entity's earlier
  writes are durable (the output gate).
* Writes made with no await between them are in one commit.
* An exception in a handler goes to the caller. Writes made before it stay.
* An entity may be evicted when it is idle; its constructor runs again on the next event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from .clock import Clock
from .entropy import Entropy
from .ids import EntityRef
from .tables import Change, Key, Row, Table

if TYPE_CHECKING:
    from .outbox import Letter
    from .storage import Storage
    from .store import Store


class AlarmInfo(NamedTuple):
    """What an alarm handler is told: how often this alarm has failed before."""

    retry_count: int

    @property
    def is_retry(self) -> bool:
        """Whether an earlier firing failed."""
        return self.retry_count > 0


class Context(Protocol):
    """An entity's way to the world. The host implements it (`host.Activation`)."""

    ref: EntityRef
    clock: Clock
    entropy: Entropy

    @property
    def storage(self) -> Storage:
        """The ordered key-value API, for entities that declare no tables."""

    def put(self, table: Table, row: Row) -> None:
        """Write a row of a declared table (by convention keyed by this entity first)."""

    def delete(self, table: Table, key: Key) -> None:
        """Delete a row of a declared table."""

    def write_all(self, changes: Iterable[Change], letters: Sequence[Letter] = ()) -> None:
        """Write and delete rows of declared tables: all of them or, if there is no room, none.

        `letters` are told as by `tell`, and are part of the all.
        """

    def get(self, table: Table, key: Key) -> Row | None:
        """A row, own pending writes included."""

    def scan(
        self,
        table: Table,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int = 1_000,
        reverse: bool = False,
    ) -> list[Row]:
        """Rows in key order, own pending writes included."""

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Run `callback` once all writes made so far are durable (at once if they are).

        It does not run if they never become so, or if this activation has ended by then.
        """

    def cover_shard(self) -> None:
        """What this entity says next may reveal other entities' writes: let it wait for them too.

        Covers all writes made in the shard so far (by `Host.local` calls, say).
        """

    def set_alarm(self, due_ms: int) -> None:
        """Set the entity's one alarm (replacing an earlier setting) to a wall-clock time."""

    def delete_alarm(self) -> None:
        """Clear the alarm."""

    def alarm_due_ms(self) -> int | None:
        """When the alarm is due; None if none is set."""

    def call(
        self, ref: EntityRef, method: str, *args: Any, timeout_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """Call another entity; the call leaves through the output gate.

        The future gives the decoded plain result, or raises the remote error. After a time-out
        or a lost link it raises `OutcomeUnknown` or `ShardUnavailable`; nothing is retried.
        """

    def tell(self, ref: EntityRef, method: str, *args: Any) -> None:
        """Call another entity exactly once, durably: the message is in this commit (outbox)."""

    def has_told(self) -> bool:
        """Whether all that was told by `tell` has been taken."""

    def stub(self, kind: str, key: str) -> Any:
        """A stub: `await stub.method(args)`."""

    def wait_until(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in the background; the entity stays active until it ends."""

    async def block_concurrency_while(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Deliver nothing else until `work` ends. If it raises, the entity is reset."""

    def evict(self) -> None:
        """Ask to leave memory as soon as this event has been handled and its writes are durable."""

    def keep_active(self) -> None:
        """Tell the host that the entity has work in memory and must not be evicted when idle."""

    def may_evict(self) -> None:
        """Take `keep_active` back."""


class DurableObject:
    """Base of all entities.

    Subclasses set `KIND` (default: the class name) and may declare `TABLES`. Every public
    method (no leading underscore) is a handler, called by `stub.method(...)`; its annotations
    type its arguments.
    A handler may return an `asyncio.Future`: the answer leaves when it is done.

    Args:
        ctx: the entity's context.
        env: whatever the wiring gives this kind (ports to other floors, settings).
    """

    KIND: ClassVar[str]
    TABLES: ClassVar[tuple[Table, ...]] = ()

    def __init__(self, ctx: Context, env: Any) -> None:
        self.ctx = ctx
        self.env = env

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "KIND" not in cls.__dict__:
            cls.KIND = cls.__name__

    def alarm(self, info: AlarmInfo) -> Awaitable[None] | None:
        """Called when the alarm is due. At least once; failures are retried with backoff."""

    def on_evict(self) -> None:
        """Called last, when the activation ends; no writes are taken any more."""

    @classmethod
    def resume_keys(cls, store: Store) -> Iterable[str]:
        """Keys to activate when a shard is opened, because they had work in memory."""
        return ()

    def on_resume(self) -> None:
        """Called once, after activation, for the keys that `resume_keys` gave."""
