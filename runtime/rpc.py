"""Batched calls between shards, over links that carry frames.

Caller side: a `Router` finds the shard of an entity and hands the call to that shard's `Peer`,
which gathers all calls of one loop turn into one frame. Server side: a `ShardServer` gives each
incoming link a `Session`, which delivers the calls of a frame to the host and gathers answers
into frames.

What a failure means: `ShardUnavailable` = the call was never sent; `OutcomeUnknown` = it was
sent and no answer came (the link fell, or time ran out). Nothing is retried here. A frame from
an older owner of the shard (smaller epoch) than one already heard is dropped. Before answers
leave, the store is asked whether this process still owns the shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from . import fault_points, limits
from .codec import pack
from .errors import (
    OutcomeUnknown,
    Overloaded,
    PayloadTooLarge,
    ProtocolMismatch,
    ShardUnavailable,
    SystemFault,
    from_wire,
    to_wire,
)
from .histogram import Histogram
from .ids import EntityRef, Placement
from .messages import WIRE_VERSION, Call, Frame, Reply
from .store import Store

T = TypeVar("T")
Decode = Callable[[msgspec.Raw], Any]

_frame_decoder = msgspec.msgpack.Decoder(Frame)
_encode = msgspec.msgpack.Encoder().encode
_decode_plain: Decode = msgspec.msgpack.Decoder().decode
_wire_error_decoder = msgspec.msgpack.Decoder(tuple[str, str, dict[str, Any]])
_SWEEP_S = 0.25
NO_OWNER = 0
"""The epoch of who owns no store, and answers for a shard that nobody can open: refusals only."""
MESSAGE_BYTES_MAX = limits.FRAME_BYTES_MAX // 2
"""The largest arguments of a call, and the largest answer; a frame holds one and some more."""


class Link(Protocol):
    """A connection to one shard. Frames arrive whole and in order, or the link goes down."""

    def send(self, frame: bytes) -> None:
        """Queue a frame; raises `Overloaded` past LINK_PENDING_BYTES_MAX."""

    def close(self) -> None:
        """Give the link up."""


class LinkFactory(Protocol):
    """Opens links; a link reconnects by itself until it is closed."""

    def open(
        self,
        shard: str,
        on_frame: Callable[[bytes], None],
        on_up: Callable[[int], None],
        on_down: Callable[[BaseException | None], None],
    ) -> Link:
        """Open a link to a shard.

        `on_up(epoch)` at each connection, `on_down` when it is lost. Callbacks never run inside
        `open` or `send`.
        """


class _Pending:
    __slots__ = ("call", "deadline", "decode", "future", "sent")

    def __init__(
        self, call: Call, future: asyncio.Future[Any], deadline: float, decode: Decode
    ) -> None:
        self.call = call
        self.future = future
        self.deadline = deadline
        self.decode = decode
        self.sent = False


class Peer:
    """The caller's side of one shard."""

    def __init__(
        self, shard: str, links: LinkFactory, loop: asyncio.AbstractEventLoop, sent: Histogram
    ) -> None:
        self.shard = shard
        self.epoch = 0
        self._loop = loop
        self._pending: dict[int, _Pending] = {}
        self._unsent: list[_Pending] = []
        self._next_id = 1
        self._flushing = False
        self._sweeping: asyncio.TimerHandle | None = None
        self._up = False
        self._closed = False
        self._sent = sent
        self._link = links.open(shard, self._on_frame, self._on_up, self._on_down)

    def send(
        self,
        ref: EntityRef,
        method: str,
        args: bytes,
        chain: tuple[tuple[str, str], ...],
        future: asyncio.Future[Any],
        timeout_ms: int,
        decode: Decode,
    ) -> None:
        """Send a call; `future` gets its answer."""
        if len(self._pending) >= limits.LINK_PENDING_CALLS_MAX:
            _fail(future, Overloaded(f"{len(self._pending)} calls wait for shard {self.shard}."))
            return
        if len(args) > MESSAGE_BYTES_MAX:
            _fail(future, _too_large(f"the arguments of {method}", len(args)))
            return
        call_id = self._next_id
        self._next_id = call_id + 1
        call = Call(call_id, ref[0], ref[1], method, msgspec.Raw(args), chain)
        pending = _Pending(call, future, self._loop.time() + timeout_ms / 1000, decode)
        self._pending[call_id] = pending
        self._unsent.append(pending)
        if not self._flushing and self._up:
            self._flushing = True
            self._loop.call_soon(self._flush)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)

    def _flush(self) -> None:
        self._flushing = False
        if not self._up:
            return
        unsent, self._unsent = self._unsent, []
        for part in _frames(unsent):
            frame = Frame(WIRE_VERSION, 0, [pending.call for pending in part], [])
            try:
                self._link.send(_encode(frame))
            except Overloaded as error:
                for pending in part:
                    self._pending.pop(pending.call.id, None)
                    _fail(pending.future, error)
                continue
            self._sent.add(len(part))
            for pending in part:
                pending.sent = True

    def _on_frame(self, raw: bytes) -> None:
        frame = _frame_decoder.decode(raw)
        if frame.version != WIRE_VERSION:
            self._fail_all(
                ProtocolMismatch(
                    f"shard {self.shard} speaks wire version {frame.version}, this process "
                    f"{WIRE_VERSION}; run the same release everywhere."
                )
            )
            return
        if frame.epoch < self.epoch and frame.epoch != NO_OWNER:
            return  # an older owner; the newer one has been heard already
        self.epoch = max(self.epoch, frame.epoch)
        pop = self._pending.pop
        for reply in frame.replies:
            pending = pop(reply.id, None)
            if pending is None or pending.future.done():
                continue
            if reply.ok:
                try:
                    pending.future.set_result(pending.decode(reply.body))
                except msgspec.DecodeError as error:
                    _fail(pending.future, ProtocolMismatch(f"{pending.call.method}: {error}"))
            else:
                _fail(pending.future, from_wire(_wire_error_decoder.decode(reply.body)))

    def _on_up(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch)
        self._up = True
        if self._unsent and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _on_down(self, error: BaseException | None) -> None:
        self._up = False
        reason = f" ({error})" if error else ""
        for call_id in [i for i, pending in self._pending.items() if pending.sent]:
            pending = self._pending.pop(call_id)
            _fail(
                pending.future,
                OutcomeUnknown(f"the link to shard {self.shard} was lost{reason}."),
            )

    def _sweep(self) -> None:
        self._sweeping = None
        now = self._loop.time()
        for call_id in [i for i, p in self._pending.items() if p.deadline <= now]:
            pending = self._pending.pop(call_id)
            what = f"{pending.call.kind}.{pending.call.method} on shard {self.shard}"
            if pending.sent:
                _fail(pending.future, OutcomeUnknown(f"no answer to {what} in time."))
            else:
                _fail(pending.future, ShardUnavailable(f"{what}: the shard can't be reached."))
        self._unsent = [p for p in self._unsent if p.call.id in self._pending]
        if self._pending and not self._closed:
            self._sweeping = self._loop.call_later(_SWEEP_S, self._sweep)

    def _fail_all(self, error: Exception) -> None:
        pending, self._pending, self._unsent = self._pending, {}, []
        for entry in pending.values():
            _fail(entry.future, error)

    def close(self) -> None:
        """Close the link; calls that wait fail."""
        self._closed = True
        self._up = False
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._link.close()
        self._fail_all(ShardUnavailable(f"the link to shard {self.shard} was closed."))


def _frames(pending: list[_Pending]) -> list[list[_Pending]]:
    """Cut into parts that keep to the bounds of a frame."""
    if len(pending) <= limits.FRAME_MESSAGES_MAX:
        size = sum(len(memoryview(p.call.args)) for p in pending)
        if size <= MESSAGE_BYTES_MAX:
            return [pending] if pending else []
    parts: list[list[_Pending]] = [[]]
    size = 0
    for entry in pending:
        length = len(memoryview(entry.call.args))
        full = size + length > MESSAGE_BYTES_MAX
        if parts[-1] and (full or len(parts[-1]) >= limits.FRAME_MESSAGES_MAX):
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += length
    return parts


def _too_large(what: str, size: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{what} take(s) {size} bytes; at most {MESSAGE_BYTES_MAX} travel between shards.",
        {"size": size},
    )


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class Router:
    """Calls entities wherever they live.

    Args:
        placement: which shard an entity lives on.
        links: how to reach a shard.
        loop: the event loop that all calls belong to.
    """

    def __init__(
        self, placement: Placement, links: LinkFactory, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.placement = placement
        self._links = links
        self._loop = loop
        self._peers: dict[str, Peer] = {}
        self._closed = False
        self.calls_per_frame = Histogram()
        """How many calls left together, of all frames that left."""

    def call(
        self,
        ref: EntityRef,
        method: str,
        *args: Any,
        timeout_ms: int | None = None,
        decode: Decode = _decode_plain,
    ) -> asyncio.Future[Any]:
        """Call a method of an entity.

        The future gives the plain result (or what `decode` makes of its MessagePack), or raises
        the remote error, `ShardUnavailable`, `OutcomeUnknown` or `Overloaded`.
        """
        future = self._loop.create_future()
        self.send(ref, method, pack(args), future, timeout_ms=timeout_ms, decode=decode)
        return future

    def send(
        self,
        ref: EntityRef,
        method: str,
        args: bytes,
        future: asyncio.Future[Any],
        *,
        timeout_ms: int | None = None,
        chain: tuple[tuple[str, str], ...] = (),
        decode: Decode = _decode_plain,
    ) -> None:
        """As `call`, with encoded arguments and a future made before."""
        shard = self.placement.shard_of(ref)
        peer = self._peers.get(shard)
        if peer is None:
            if self._closed:
                _fail(future, ShardUnavailable("this router is closed."))
                return
            peer = self._peers[shard] = Peer(shard, self._links, self._loop, self.calls_per_frame)
        peer.send(ref, method, args, chain, future, timeout_ms or limits.CALL_TIMEOUT_MS, decode)

    def epoch_of(self, shard: str) -> int:
        """The newest epoch heard of a shard; 0 if none."""
        peer = self._peers.get(shard)
        return peer.epoch if peer else 0

    def close(self) -> None:
        """Close all links; calls that wait fail."""
        self._closed = True
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


Answer = Callable[[int, bool, bytes], None]
"""`(call id, ok, body)`: gives a call its answer."""


class Deliverer(Protocol):
    """What a session needs of a host."""

    store: Store

    def deliver(self, call: Call, answer: Answer) -> None:
        """Handle a call; `answer` is called exactly once, now or later, unless the host ends."""


class ShardServer:
    """Makes sessions for the links that come in to one shard."""

    def __init__(self, host: Deliverer, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self.loop = loop

    def session(self, send: Callable[[bytes], None]) -> Session:
        """A session for a new incoming link; `send` queues a frame on it."""
        return Session(self.host, self.loop, send)


class Session:
    """The server's side of one link."""

    def __init__(
        self,
        host: Deliverer,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[bytes], None],
    ) -> None:
        self._host = host
        self._loop = loop
        self._send = send
        self._replies: list[Reply] = []
        self._bytes = 0
        self._flushing = False
        self._open = True

    def receive(self, raw: bytes) -> None:
        """Deliver the calls of a frame."""
        frame = _frame_decoder.decode(raw)
        if frame.version != WIRE_VERSION:
            error = ProtocolMismatch(
                f"the caller speaks wire version {frame.version}, this shard {WIRE_VERSION}."
            )
            for call in frame.calls:
                self.answer(call.id, False, pack(to_wire(error)))
            return
        deliver = self._host.deliver
        for call in frame.calls:
            deliver(call, self.answer)

    def answer(self, call_id: int, ok: bool, body: bytes) -> None:
        """Queue an answer for the frame of this turn."""
        if len(body) > MESSAGE_BYTES_MAX:
            ok, body = False, pack(to_wire(_too_large("the answer", len(body))))
        if self._bytes + len(body) > MESSAGE_BYTES_MAX:
            self._flush()
        self._replies.append(Reply(call_id, ok, msgspec.Raw(body)))
        self._bytes += len(body)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        replies, self._replies, self._bytes = self._replies, [], 0
        if not replies or not self._open:
            return
        store = self._host.store
        try:
            store.verify_owner()  # a newer owner may have come since the last commit
        except SystemFault as error:  # fenced, or broken: what they say is not known to hold
            body = msgspec.Raw(pack(to_wire(error)))
            replies = [Reply(reply.id, False, body) for reply in replies]
        for start in range(0, len(replies), limits.FRAME_MESSAGES_MAX):
            part = replies[start : start + limits.FRAME_MESSAGES_MAX]
            fault_points.reach("reply.send")
            self._send(_encode(Frame(WIRE_VERSION, store.epoch, [], part)))

    def closed(self) -> None:
        """The link is gone: answers go nowhere."""
        self._open = False
