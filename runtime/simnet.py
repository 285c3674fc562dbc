"""A network of a simulation: links between `SimProcess`es, in any weather, from a seed.

What `rpc.LinkFactory` promises holds: a link carries whole frames in order, or goes down. Within
that the network does its worst: delays with long tails, connections that lose what is under way
and then fall (at once or after a long silence), answers lost after the effect, order between
links that means nothing, and calls delivered a second time much later, to whoever owns the shard
then (as a caller's repeated attempt would be), their answer discarded.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from . import limits
from .entropy import Entropy
from .messages import Call, Frame
from .rpc import Link, Session, ShardServer
from .simloop import VirtualTimeLoop
from .simprocess import SimProcess

_decode = msgspec.msgpack.Decoder(Frame).decode


@dataclass
class Weather:
    """How bad the network is. Chances are per frame, delays in milliseconds.

    Attributes:
        delay_ms: the mean of a usual delay.
        tail, tail_ms: chance and greatest length of an unusual one.
        loss: chance that the frame is lost and its connection falls soon after.
        stall: chance that the frame is lost and its connection is silent for up to `stall_ms`,
            and falls then.
        repeat: chance, per call, that it is delivered again up to `repeat_ms` later.
    """

    delay_ms: float = 1.0
    tail: float = 0.0
    tail_ms: float = 3_000.0
    loss: float = 0.0
    stall: float = 0.0
    stall_ms: float = 20_000.0
    repeat: float = 0.0
    repeat_ms: float = 20_000.0


class Observer(Protocol):
    """Hears what the network does, for traces and checkers."""

    def frame(self, source: str, dest: str, raw: bytes) -> None:
        """A frame was delivered."""

    def note(self, kind: str, *parts: object) -> None:
        """Something else happened."""


@dataclass
class Endpoint:
    """One owner of a shard, as callers reach it."""

    shard: str
    process: SimProcess
    server: ShardServer


class SimNetwork:
    """All links of a simulation.

    Args:
        loop: drives the simulation.
        entropy: decides what happens to each frame.
        observer: hears of it.
        never_repeated: methods whose calls are not delivered twice.
    """

    def __init__(
        self,
        loop: VirtualTimeLoop,
        entropy: Entropy,
        observer: Observer,
        never_repeated: frozenset[str] = frozenset(),
    ) -> None:
        self.loop = loop
        self.entropy = entropy
        self.observer = observer
        self.weather = Weather()
        self.faults: Counter[str] = Counter()
        self.owners: dict[str, Endpoint] = {}
        self.blocked: dict[tuple[str, str], float] = {}
        self._never_repeated = never_repeated
        self._connections: dict[_Connection, None] = {}

    def serve(self, shard: str, process: SimProcess, server: ShardServer) -> None:
        """From now on new connections to `shard` reach this owner; old ones stay as they are."""
        self.owners[shard] = Endpoint(shard, process, server)

    def withdraw(self, shard: str, process: SimProcess) -> None:
        """This owner is not to be reached by new connections any more."""
        owner = self.owners.get(shard)
        if owner is not None and owner.process is process:
            del self.owners[shard]

    def links_of(self, process: SimProcess) -> ProcessLinks:
        """The link factory of a process."""
        return ProcessLinks(self, process)

    def block(self, source: str, shard: str, until: float) -> None:
        """No connection from process `source` to `shard` works until then."""
        self.blocked[source, shard] = until
        self.faults["partition"] += 1
        self.observer.note("partition", source, shard, round(until * 1000))
        for connection in list(self._connections):
            if connection.link.process.name == source and connection.endpoint.shard == shard:
                connection.silence(until)

    def is_blocked(self, source: str, shard: str) -> bool:
        """Whether `block` holds."""
        return self.blocked.get((source, shard), 0.0) > self.loop.time()

    def heal(self) -> None:
        """Good weather from now on; silent connections fall at once."""
        self.weather = Weather()
        self.blocked.clear()
        for connection in list(self._connections):
            if connection.silent:
                connection.fall("healed")

    def killed(self, process: SimProcess) -> None:
        """The process died: its connections fall, seen by the other side sooner or later."""
        for connection in list(self._connections):
            if connection.link.process is process:
                connection.fall("caller died")
            elif connection.endpoint.process is process:
                connection.to_server.cut = True  # what it had sent before may still arrive
                connection.silence(self.loop.time() + self._notice_s(), both=False)

    def _notice_s(self) -> float:
        """How long until a caller sees that the other side is gone."""
        if self.weather.stall and self.entropy.random() < 0.2:
            return self.entropy.random() * self.weather.stall_ms / 1000
        return self.entropy.random() * 0.05

    def delay_s(self) -> float:
        """The delay of one frame."""
        weather = self.weather
        draw = self.entropy.random()
        if draw < weather.tail:
            self.faults["delay"] += 1
            return self.entropy.random() * weather.tail_ms / 1000
        return weather.delay_ms * (0.2 + 1.6 * draw) / 1000

    def repeat_some(self, endpoint: Endpoint, raw: bytes) -> None:
        """Perhaps deliver calls of a frame again later."""
        chance = self.weather.repeat
        if not chance:
            return
        for call in _decode(raw).calls:
            if self.entropy.random() < chance and call.method not in self._never_repeated:
                delay_s = self.entropy.random() ** 2 * self.weather.repeat_ms / 1000
                self.loop.call_later(delay_s, self._repeat, endpoint.shard, call)

    def _repeat(self, shard: str, call: Call) -> None:
        owner = self.owners.get(shard)
        if owner is None or owner.process.dead:
            return
        self.faults["repeat"] += 1
        self.observer.note("repeat", shard, call.kind, call.key, call.method)
        owner.process.call_soon(owner.server.host.deliver, call, _discard)

    def attach(self, connection: _Connection) -> None:
        """A connection begins."""
        self._connections[connection] = None

    def detach(self, connection: _Connection) -> None:
        """A connection is over."""
        self._connections.pop(connection, None)


def _discard(call_id: int, ok: bool, body: bytes) -> None:
    """The answer to a repeated call: nobody waits for it."""


class ProcessLinks:
    """The `LinkFactory` of one process."""

    def __init__(self, network: SimNetwork, process: SimProcess) -> None:
        self._network = network
        self._process = process

    def open(
        self,
        shard: str,
        on_frame: Callable[[bytes], None],
        on_up: Callable[[int], None],
        on_down: Callable[[BaseException | None], None],
    ) -> Link:
        return SimLink(self._network, self._process, shard, on_frame, on_up, on_down)


class SimLink:
    """A link that connects anew whenever its connection falls."""

    def __init__(
        self,
        network: SimNetwork,
        process: SimProcess,
        shard: str,
        on_frame: Callable[[bytes], None],
        on_up: Callable[[int], None],
        on_down: Callable[[BaseException | None], None],
    ) -> None:
        self.network = network
        self.process = process
        self.shard = shard
        self.on_frame = on_frame
        self.on_up = on_up
        self.on_down = on_down
        self.connection: _Connection | None = None
        self._closed = False
        self._attempts = 0
        self._connect_later()

    def _connect_later(self) -> None:
        wait_ms = min(limits.RECONNECT_MIN_MS << self._attempts, limits.RECONNECT_MAX_MS)
        wait_ms = wait_ms if self._attempts else 0
        self._attempts = min(self._attempts + 1, 10)
        self.process.call_later(wait_ms / 1000 + self.network.delay_s(), self._connect)

    def _connect(self) -> None:
        if self._closed or self.connection is not None:
            return
        owner = self.network.owners.get(self.shard)
        blocked = self.network.is_blocked(self.process.name, self.shard)
        if owner is None or owner.process.dead or blocked:
            self._connect_later()
            return
        self.connection = _Connection(self.network, self, owner)

    def up(self, connection: _Connection, epoch: int) -> None:
        """The owner has answered."""
        if connection is self.connection and not self._closed:
            self._attempts = 0
            connection.is_up = True
            self.on_up(epoch)

    def down(self, connection: _Connection, reason: str) -> None:
        """The connection fell."""
        if connection is not self.connection or self._closed:
            return
        self.connection = None
        if connection.is_up:
            self.on_down(ConnectionResetError(reason))
        self._connect_later()

    def send(self, frame: bytes) -> None:
        if self.connection is not None:
            self.connection.to_server.send(frame)

    def close(self) -> None:
        self._closed = True
        if self.connection is not None:
            self.connection.fall("closed")


class _Way:
    """One direction of a connection: in order, late, and cut for good by the first loss."""

    def __init__(self, connection: _Connection, label: str, deliver: Callable[[bytes], None]):
        self._connection = connection
        self._label = label
        self._deliver = deliver
        self._last_arrival = 0.0
        self._under_way: deque[bytes] = deque()
        self.cut = False

    def send(self, frame: bytes) -> None:
        connection, network = self._connection, self._connection.network
        if self.cut or connection.over:
            return
        draw = network.entropy.random()
        weather = network.weather
        if draw < weather.loss + weather.stall:
            self.cut = True
            kind = "loss" if draw < weather.loss else "stall"
            network.faults[f"{kind} of {self._label}"] += 1
            span_s = 0.05 if kind == "loss" else weather.stall_ms / 1000
            until = network.loop.time() + network.entropy.random() * span_s
            network.observer.note(kind, connection.name, self._label, len(frame))
            connection.silence(until, both=False)
            return
        arrival = max(self._last_arrival, network.loop.time() + network.delay_s())
        self._last_arrival = arrival
        self._under_way.append(frame)
        network.loop.call_at(arrival, self._arrive)

    def _arrive(self) -> None:
        frame = self._under_way.popleft()  # timers of one instant fire in any order
        if not self._connection.over:
            self._deliver(frame)


class _Connection:
    """One life of a link: from a connect until it falls."""

    def __init__(self, network: SimNetwork, link: SimLink, endpoint: Endpoint) -> None:
        self.network = network
        self.link = link
        self.endpoint = endpoint
        self.name = f"{link.process.name}>{endpoint.process.name}"
        self.is_up = False
        self.over = False
        self.silent = False
        self.to_server = _Way(self, "calls", self._at_server)
        self.to_client = _Way(self, "answers", self._at_client)
        self._session: Session | None = None
        network.attach(self)
        network.loop.call_later(network.delay_s(), self._greet)

    def _greet(self) -> None:
        """The owner's side accepts, once its process runs."""
        self.endpoint.process.call_soon(self._accept)

    def _accept(self) -> None:
        if self.over:
            return
        server = self.endpoint.server
        self._session = server.session(self.to_client.send)
        epoch = server.host.store.epoch
        self.network.loop.call_later(self.network.delay_s(), self._greeted, epoch)

    def _greeted(self, epoch: int) -> None:
        if not self.over and not self.to_client.cut:
            self.link.process.call_soon(self.link.up, self, epoch)

    def _at_server(self, frame: bytes) -> None:
        self.endpoint.process.call_soon(self._receive, frame)

    def _receive(self, frame: bytes) -> None:
        if self._session is None or self.over:
            return
        self.network.observer.frame(self.link.process.name, self.endpoint.process.name, frame)
        self.network.repeat_some(self.endpoint, frame)
        self._session.receive(frame)

    def _at_client(self, frame: bytes) -> None:
        self.link.process.call_soon(self._answered, frame)

    def _answered(self, frame: bytes) -> None:
        if self.link.connection is self:
            self.network.observer.frame(self.endpoint.process.name, self.link.process.name, frame)
            self.link.on_frame(frame)

    def silence(self, until: float, *, both: bool = True) -> None:
        """Nothing gets through any more (one way or both); falls at `until`."""
        if both:
            self.to_server.cut = self.to_client.cut = True
        self.silent = True
        self.network.loop.call_at(until, self.fall, "lost")

    def fall(self, reason: str) -> None:
        """Over, on both sides."""
        if self.over:
            return
        self.over = True
        self.network.detach(self)
        self.network.observer.note("down", self.name, reason)
        if self._session is not None:
            self.endpoint.process.call_soon(self._session.closed)
        self.link.process.call_soon(self.link.down, self, reason)


def describe(raw: bytes, chars_max: int = 200) -> str:
    """A frame as one readable line."""
    frame = _decode(raw)
    parts = [f"{c.kind}({c.key}).{c.method}#{c.id}{_plain(c.args)}" for c in frame.calls]
    parts += [f"#{r.id}{'' if r.ok else ' ERROR'} {_plain(r.body)}" for r in frame.replies]
    epoch = f"e{frame.epoch} " if frame.epoch else ""
    return epoch + "; ".join(part[:chars_max] for part in parts)


def _plain(raw: msgspec.Raw) -> Any:
    return msgspec.msgpack.decode(raw)


def checksum(raw: bytes) -> int:
    """A short, stable fingerprint of a frame, for traces."""
    return zlib.crc32(raw)
