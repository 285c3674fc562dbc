"""The outbox: "tell another entity", exactly once, in the same commit as the change.

A message is a row in the sender's commit. Once durable it is sent, in order per destination and
batched; the receiver notes the highest sequence it has taken from that sender, in the same
commit as what the message did, and drops what it has seen. The row goes when the receiver has
answered. Sequence numbers are (shard epoch, counter), so they grow over restarts.

A message whose handler refuses it for good (`CallerError`) is dropped and logged: repeating it
would not help. All other failures are repeated, with the same order kept.

A handler to which a second copy does no harm gives `REPEATABLE`: then nothing is noted, so nothing
is left of senders that come and go by the thousand. Copies may then come late, after newer ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from . import fault_points, limits
from .codec import pack
from .errors import CallerError, Overloaded
from .ids import EntityRef
from .store import Store
from .tables import Change, Row, Table

OUTBOX = Table(
    "outbox",
    (
        ("dest_kind", "TEXT"),
        ("dest_key", "TEXT"),
        ("sender_kind", "TEXT"),
        ("sender_key", "TEXT"),
        ("seq", "INTEGER"),
        ("method", "TEXT"),
        ("args", "BLOB"),
    ),
    key_size=5,
)
INBOX = Table(
    "inbox",
    (
        ("dest_kind", "TEXT"),
        ("dest_key", "TEXT"),
        ("sender_kind", "TEXT"),
        ("sender_key", "TEXT"),
        ("seq", "INTEGER"),
    ),
    key_size=4,
)
TOLD = "~told"
"""Method name of a message on the wire; its arguments are a `Told`."""

REPEATABLE: Final = "repeatable"
"""See the module's description."""
_EPOCH_SHIFT = 40
_log = logging.getLogger("toque.outbox")


class Told(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message from an outbox."""

    sender_kind: str
    sender_key: str
    seq: int
    method: str
    args: msgspec.Raw


class Letter(NamedTuple):
    """A message to be written: to whom, which method, with what."""

    dest: EntityRef
    method: str
    args: tuple[Any, ...]


class _Message(NamedTuple):
    owner: object
    row: Row
    batch: int


Send = Callable[[EntityRef, str, bytes], "asyncio.Future[Any]"]


class Outbox:
    """All outgoing messages of one shard.

    Args:
        store, loop: the shard's.
        send: calls an entity (`Router`).
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop, send: Send) -> None:
        self._store = store
        self._loop = loop
        self._send = send
        self._counter = 0
        self._waiting: dict[EntityRef, deque[_Message]] = {}
        self._in_flight: set[EntityRef] = set()
        self._retries: set[asyncio.TimerHandle] = set()
        self._count: dict[object, int] = {}
        self._closed = False
        self.sent = 0
        self.repeated = 0

    def start(self) -> None:
        """Send what an earlier owner left."""
        after = None
        while rows := self._store.scan(OUTBOX, after=after, limit=limits.SCAN_ROWS_MAX):
            for row in rows:
                self._enqueue(_Message(EntityRef(row[2], row[3]), row, 0))
            after = rows[-1][:5]
        for dest in list(self._waiting):
            self._pump(dest)

    def tell(self, sender: EntityRef, dest: EntityRef, method: str, args: bytes) -> int:
        """Write a message; returns the batch number. Call `release` when that is durable."""
        (row,) = self._rows(sender, ((dest, method, args),))
        written = self._store.put(sender, OUTBOX, row)
        self._enqueue(_Message(sender, row, written))
        return written

    def write_all(
        self, sender: EntityRef, changes: Iterable[Change], letters: Sequence[Letter]
    ) -> int:
        """Rows and messages, all or none; returns the batch number, as `tell` does.

        Raises:
            Overloaded: there is no room for all of it; nothing was written.
        """
        rows = self._rows(sender, [(each.dest, each.method, pack(each.args)) for each in letters])
        messages = [(OUTBOX, row[: OUTBOX.key_size], row) for row in rows]
        written = self._store.write_all(sender, [*changes, *messages])
        for row in rows:
            self._enqueue(_Message(sender, row, written))
        return written

    def _rows(
        self, sender: EntityRef, messages: Sequence[tuple[EntityRef, str, bytes]]
    ) -> list[Row]:
        if self._count.get(sender, 0) + len(messages) > limits.OUTBOX_ROWS_PER_ENTITY_MAX:
            raise Overloaded(f"{sender} has too many messages that wait for their receivers.")
        rows: list[Row] = []
        for dest, method, args in messages:
            self._counter += 1
            seq = (self._store.epoch << _EPOCH_SHIFT) + self._counter
            rows.append((dest.kind, dest.key, sender.kind, sender.key, seq, method, args))
        return rows

    def has_told(self, sender: EntityRef) -> bool:
        """Whether all messages of an entity have been taken."""
        return sender not in self._count

    def _enqueue(self, message: _Message) -> None:
        dest = EntityRef(message.row[0], message.row[1])
        self._waiting.setdefault(dest, deque()).append(message)
        self._count[message.owner] = self._count.get(message.owner, 0) + 1

    def forget(self, sender: object) -> None:
        """What an entity wrote last could not be stored: its messages without a row are none."""
        if sender not in self._count:
            return
        for dest, queue in list(self._waiting.items()):
            lost = [
                message
                for message in queue
                if message.owner == sender and self._store.get(OUTBOX, message.row[:5]) is None
            ]
            for message in lost:
                queue.remove(message)
                self._forget_one(message)
            if not queue:
                del self._waiting[dest]
            elif lost:
                self._later(dest)  # others' may have waited behind

    def _forget_one(self, message: _Message) -> None:
        left = self._count[message.owner] - 1
        if left:
            self._count[message.owner] = left
        else:
            del self._count[message.owner]

    def release(self, dest: EntityRef) -> None:
        """The messages written so far are durable: send them."""
        self._pump(dest)

    def _pump(self, dest: EntityRef) -> None:
        queue = self._waiting.get(dest)
        if not queue or dest in self._in_flight or self._closed:
            return
        message = queue[0]
        if message.batch > self._store.durable_seq:
            return  # `release` comes when it is durable
        self._in_flight.add(dest)
        _, _, kind, key, seq, method, args = message.row
        told = Told(kind, key, seq, method, msgspec.Raw(args))
        self.sent += 1
        fault_points.reach("outbox.send")
        future = self._send(dest, TOLD, pack(told))
        future.add_done_callback(lambda done: self._answered(dest, message, done))

    def _answered(self, dest: EntityRef, message: _Message, done: asyncio.Future[Any]) -> None:
        self._in_flight.discard(dest)
        error = None if done.cancelled() else done.exception()
        if self._closed or done.cancelled() or self._store.broken is not None:
            return
        if error is not None and not isinstance(error, CallerError):
            self.repeated += 1
            self._later(dest)
            return
        if error is not None:
            _log.warning("%s refused %s for good: %s", dest, message.row[5], error)
        fault_points.reach("outbox.delete")
        queue = self._waiting[dest]
        try:
            # in nobody's name: were it to fall with a bad row of the sender's, it would stay
            self._store.delete(self, OUTBOX, message.row[:5])
        except Overloaded:  # send it again: the receiver knows it, and the row goes then
            self._later(dest)
            return
        queue.popleft()
        self._forget_one(message)
        if queue:
            self._pump(dest)
        else:
            del self._waiting[dest]

    def _later(self, dest: EntityRef) -> None:
        def again() -> None:
            self._retries.discard(handle)
            self._pump(dest)

        handle = self._loop.call_later(limits.OUTBOX_RETRY_MS / 1000, again)
        self._retries.add(handle)

    @property
    def waiting(self) -> int:
        """How many messages wait for their receivers."""
        return sum(self._count.values())

    def close(self) -> None:
        """Send no more."""
        self._closed = True
        for handle in self._retries:
            handle.cancel()
