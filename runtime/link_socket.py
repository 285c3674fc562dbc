"""Links between processes: frames over unix sockets (or TCP), both ends of them.

A frame is four bytes of length and the frame. Before the first frame both ends prove that they
know the run's secret (HMAC over both sides' nonces; the secret never travels), and the server
says which shard it is and its epoch. What breaks a rule (length, proof, version, a peer that does
not read) is cut off; the client reconnects with backoff until it is closed.

A server puts its socket under a scratch name and moves it into place, so that a client sees the
old one or the new one, never none. Where processes are on several machines it listens on TCP and
puts its address into a *notice*, a file that all of them see. A client looks now and then whether
the socket, or the notice, was replaced and then changes over: a stopped former owner may still hold
its end open.

Bounds: frames FRAME_BYTES_MAX; a client's queue LINK_PENDING_BYTES_MAX (then `Overloaded`). A
server stops reading from a peer whose answers pile up, and cuts it off after LINK_STALL_MAX_MS.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from . import limits
from .entropy import Entropy
from .errors import InvalidArgument, Overloaded, ProtocolMismatch, ShardUnavailable
from .files import replace_text
from .frames_socket import (
    NO_PROOF,
    Framed,
    Hello,
    make_proof,
    set_tcp_options,
    split_address,
)
from .messages import WIRE_VERSION

log = logging.getLogger("toque.link")


class Session(Protocol):
    """The server's side of one link, as `rpc.ShardServer.session` makes it."""

    def receive(self, raw: bytes) -> None:
        """A frame came in."""

    def closed(self) -> None:
        """The link is gone."""


NewSession = Callable[[Callable[[bytes], None]], Session]
Resolve = Callable[[str], str]
"""The address of a shard: `unix:/path`, `tcp://host:port`, or `notice:/path` of a file that holds
one of the two. Asked at each connection."""
_NOTICE = "notice:"
_NOTICE_BYTES_MAX = 1_000


# --- the server ---


class LinkServer:
    """Takes the links that come in to one shard.

    Args:
        shard: the shard's name, told to each client.
        epoch: this owner's epoch, told likewise.
        token: the run's secret.
        entropy: draws the nonces.
        new_session: makes a session for a proven link.
    """

    def __init__(
        self, shard: str, epoch: int, token: bytes, entropy: Entropy, new_session: NewSession
    ) -> None:
        self.shard = shard
        self.epoch = epoch
        self.token = token
        self.entropy = entropy
        self.new_session = new_session
        self.peers: set[_ServerPeer] = set()
        self.address = ""
        self._server: asyncio.Server | None = None
        self._file = ""  # the socket, or the notice: removed at the end unless it was replaced
        self._inode: tuple[int, int] | None = None

    async def listen(self, address: str, notice: str = "") -> str:
        """Start to listen; gives the address (a TCP port of 0 becomes the one taken).

        Args:
            address: `unix:/path` or `tcp://host:port`.
            notice: a file that is to hold the address, for clients of `notice:/path`.
        """
        loop = asyncio.get_running_loop()
        where, port = split_address(address)
        if port is not None:
            self._server = await loop.create_server(
                lambda: _ServerPeer(loop, self), where, port, backlog=128
            )
            taken = self._server.sockets[0].getsockname()[1]
            self.address = f"tcp://{where}:{taken}"
            if notice:
                self._file, self._inode = notice, replace_text(notice, self.address)
            return self.address
        scratch = f"{where}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(scratch)
            os.chmod(scratch, 0o600)
            self._server = await loop.create_unix_server(
                lambda: _ServerPeer(loop, self), sock=sock, backlog=128
            )
            found = os.stat(scratch)
            self._file, self._inode = where, (found.st_ino, found.st_dev)
            os.replace(scratch, where)
        except BaseException:
            sock.close()
            raise
        self.address = address
        return address

    async def close(self) -> None:
        """Stop listening and cut all links off."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for peer in list(self.peers):
            peer.cut(ShardUnavailable(f"shard {self.shard} closes."))
        if self._file:
            with contextlib.suppress(OSError):
                found = os.stat(self._file)
                if (found.st_ino, found.st_dev) == self._inode:  # not a newer owner's
                    os.unlink(self._file)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 1)


class _ServerPeer(Framed):
    def __init__(self, loop: asyncio.AbstractEventLoop, server: LinkServer) -> None:
        super().__init__(loop)
        self.server = server
        self.nonce = server.entropy.new_id()
        self.session: Session | None = None
        self._stall: asyncio.TimerHandle | None = None

    def on_connected(self) -> None:
        if len(self.server.peers) >= limits.LINK_SESSIONS_MAX:
            self.cut(Overloaded("too many links."))
            return
        self.server.peers.add(self)
        set_tcp_options(self.transport)
        self.say(Hello(WIRE_VERSION, self.nonce, NO_PROOF, self.server.shard, 0))

    def on_hello(self, hello: Hello) -> None:
        server, nonces = self.server, (self.nonce, hello.nonce)
        refusal = ""
        if hello.version != WIRE_VERSION:
            refusal = f"wire version {hello.version} is not {WIRE_VERSION}"
        elif not hmac.compare_digest(
            hello.proof, make_proof(server.token, "client", nonces, hello.shard, 0)
        ):
            refusal = "the secret is wrong"
        elif hello.shard != server.shard:
            refusal = f"this is shard {server.shard}, not {hello.shard}"
        if refusal:
            self.say(Hello(WIRE_VERSION, "", NO_PROOF, "", 0, refusal))
            log.warning("shard %s refused a link: %s", server.shard, refusal)
            if self.transport is not None:
                self.transport.close()
                self.transport = None
            return
        self.prove()
        proof = make_proof(server.token, "server", nonces, server.shard, server.epoch)
        self.say(Hello(WIRE_VERSION, self.nonce, proof, server.shard, server.epoch))
        self.session = server.new_session(self.answer)
        self.on_frame = self.session.receive

    def answer(self, frame: bytes) -> None:
        transport = self.transport
        if transport is None:
            return
        if transport.get_write_buffer_size() + len(frame) > limits.LINK_PENDING_BYTES_MAX:
            log.warning("shard %s cuts off a peer that does not read", self.server.shard)
            self.cut(Overloaded("the peer does not read."))
            return
        self.write(frame)

    def pause_writing(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()
            self._stall = self.loop.call_later(
                limits.LINK_STALL_MAX_MS / 1000, self.cut, Overloaded("the peer does not read.")
            )

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self.transport is not None:
            self.transport.resume_reading()

    def on_lost(self) -> None:
        self.server.peers.discard(self)
        if self._stall is not None:
            self._stall.cancel()
        session, self.session = self.session, None
        if session is not None:
            session.closed()


# --- the client ---


class SocketLinks:
    """Opens links to shards by their addresses (`rpc.LinkFactory`).

    Args:
        resolve: gives a shard's address.
        token: the run's secret.
        loop: the event loop that all links belong to.
        entropy: draws nonces and jitter.
    """

    def __init__(
        self,
        resolve: Resolve,
        token: bytes,
        loop: asyncio.AbstractEventLoop,
        entropy: Entropy,
    ) -> None:
        self.resolve = resolve
        self.token = token
        self.loop = loop
        self.entropy = entropy

    def open(
        self,
        shard: str,
        on_frame: Callable[[bytes], None],
        on_up: Callable[[int], None],
        on_down: Callable[[BaseException | None], None],
    ) -> SocketLink:
        """Open a link; it connects in the background and again whenever it is lost."""
        return SocketLink(self, shard, on_frame, on_up, on_down)


class SocketLink:
    """The client's side of one link."""

    def __init__(
        self,
        links: SocketLinks,
        shard: str,
        on_frame: Callable[[bytes], None],
        on_up: Callable[[int], None],
        on_down: Callable[[BaseException | None], None],
    ) -> None:
        self.shard = shard
        self.last_error: BaseException | None = None
        self._links = links
        self._on_frame = on_frame
        self._on_up = on_up
        self._on_down = on_down
        self._peer: _ClientPeer | None = None
        self._task = links.loop.create_task(self._keep_connected(), name=f"link {shard}")

    def send(self, frame: bytes) -> None:
        """Queue a frame. While the link is down it goes nowhere; `on_down` has told so."""
        peer = self._peer
        if peer is None or peer.transport is None:
            return
        queued = peer.transport.get_write_buffer_size()
        if queued + len(frame) > limits.LINK_PENDING_BYTES_MAX:
            raise Overloaded(f"{queued} bytes wait for shard {self.shard}.")
        peer.write(frame)

    def send_now(self, frame: bytes) -> None:
        """As `send`, but the kernel has the frame when this returns, so that it arrives though
        this process ends. A peer that is slow to read is waited for, up to LINK_HANDOVER_MAX_MS;
        what it has not taken by then is queued.
        """
        peer = self._peer
        if peer is None or not peer.hand_over(frame, limits.LINK_HANDOVER_MAX_MS):
            self.send(frame)

    def close(self) -> None:
        """Give the link up; no callback comes any more."""
        self._task.cancel()
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.cut()

    async def _keep_connected(self) -> None:
        backoff_ms = limits.RECONNECT_MIN_MS
        while True:
            try:
                peer, identity = await self._connect()
            except (OSError, ProtocolMismatch, ShardUnavailable, InvalidArgument) as error:
                if type(error) is not type(self.last_error):
                    log.info("no link to shard %s: %s", self.shard, error)
                self.last_error = error
                await asyncio.sleep(backoff_ms * (0.5 + self._links.entropy.random() / 2) / 1000)
                backoff_ms = min(backoff_ms * 2, limits.RECONNECT_MAX_MS)
                continue
            backoff_ms = limits.RECONNECT_MIN_MS
            self._peer = peer
            self._on_up(peer.epoch)
            await self._until_lost(peer, identity)
            self._peer = None
            self.last_error = peer.error
            self._on_down(peer.error)

    async def _connect(self) -> tuple[_ClientPeer, tuple[str, int, int] | None]:
        links = self._links
        address, identity = links.resolve(self.shard), None
        if address.startswith(_NOTICE):
            path = address.removeprefix(_NOTICE)
            identity = _file_identity(path)  # before it is read: what replaces it is noticed
            address = _read_notice(path)
        where, port = split_address(address)
        peer = _ClientPeer(links.loop, self.shard, links.token, links.entropy, self._on_frame)
        opening: Awaitable[Any]
        if port is None:
            identity = identity or _file_identity(where)
            opening = links.loop.create_unix_connection(lambda: peer, where)
        else:
            opening = links.loop.create_connection(lambda: peer, where, port)
        try:
            await asyncio.wait_for(opening, limits.LINK_HELLO_MAX_MS / 1000)
            await peer.ready
        except BaseException as error:
            peer.cut()
            if isinstance(error, asyncio.TimeoutError):
                raise ShardUnavailable(f"{address} does not answer.") from None
            raise
        return peer, identity

    async def _until_lost(self, peer: _ClientPeer, identity: tuple[str, int, int] | None) -> None:
        while not peer.lost.done():
            await asyncio.wait((peer.lost,), timeout=limits.LINK_PROBE_MS / 1000)
            if identity is not None and _file_identity(identity[0]) not in (identity, None):
                peer.cut(ShardUnavailable(f"shard {self.shard} has a new owner."))


def _read_notice(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_NOTICE_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ShardUnavailable(f"no shard has put its address into {path}: {error}.") from None


def _file_identity(path: str) -> tuple[str, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return path, found.st_ino, found.st_ctime_ns


class _ClientPeer(Framed):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        shard: str,
        token: bytes,
        entropy: Entropy,
        on_frame: Callable[[bytes], None],
    ) -> None:
        super().__init__(loop)
        self.shard = shard
        self.token = token
        self.nonces = ("", entropy.new_id())
        self.epoch = 0
        self.ready: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.on_frame = on_frame

    def on_connected(self) -> None:
        set_tcp_options(self.transport)

    def on_hello(self, hello: Hello) -> None:
        if hello.refusal:
            raise ProtocolMismatch(f"shard {self.shard} refused the link: {hello.refusal}.")
        if hello.version != WIRE_VERSION:
            raise ProtocolMismatch(
                f"shard {self.shard} speaks wire version {hello.version}, this process "
                f"{WIRE_VERSION}; run the same release everywhere."
            )
        if not self.nonces[0]:
            self.nonces = (hello.nonce or "-", self.nonces[1])
            proof = make_proof(self.token, "client", self.nonces, self.shard, 0)
            self.say(Hello(WIRE_VERSION, self.nonces[1], proof, self.shard, 0))
            return
        proof = make_proof(self.token, "server", self.nonces, self.shard, hello.epoch)
        if hello.shard != self.shard or not hmac.compare_digest(hello.proof, proof):
            raise ProtocolMismatch(f"what answers for shard {self.shard} is not that shard.")
        self.epoch = hello.epoch
        self.prove()
        if not self.ready.done():
            self.ready.set_result(None)

    def on_lost(self) -> None:
        if not self.ready.done():
            self.ready.set_exception(
                self.error
                if isinstance(self.error, (OSError, ProtocolMismatch))
                else ShardUnavailable(f"shard {self.shard} hung up: {self.error or 'no reason'}.")
            )
            self.ready.exception()  # seen, should nobody wait any more
        if not self.lost.done():
            self.lost.set_result(None)
