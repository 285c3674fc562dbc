"""The byte stream between processes: addresses, frames and the handshake. See link_socket.

A frame is four bytes of length and the frame. Before the first frame both ends prove that they
know the run's secret: an HMAC over the nonces of both sides, so that the secret never travels and
a recorded handshake is worth nothing. A frame over the bound, a late or a wrong handshake cuts
the connection off.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import select
import socket
import stat
import struct
import tempfile
from collections.abc import Callable
from typing import cast

import msgspec

from . import limits
from .errors import (
    InvalidArgument,
    PayloadTooLarge,
    ProtocolMismatch,
    UnsafeRuntimeDir,
)

log = logging.getLogger("toque.link")

_HEAD = struct.Struct("!I")
_COPY_BYTES_MAX = 64 * limits.KIB  # below it one joined write is cheaper than two
NO_PROOF = b""


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The handshake: the server's nonce; the client's nonce and proof; the server's proof."""

    version: int
    nonce: str
    proof: bytes
    shard: str
    epoch: int
    refusal: str = ""


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_encode_hello = msgspec.msgpack.Encoder().encode


def make_proof(token: bytes, who: str, nonces: tuple[str, str], shard: str, epoch: int) -> bytes:
    text = "|".join((who, *nonces, shard, str(epoch)))
    return hmac.digest(token, text.encode(), "sha256")


def split_address(address: str) -> tuple[str, int | None]:
    """`(path, None)` of `unix:/path`, `(host, port)` of `tcp://host:port`."""
    if address.startswith("unix:"):
        path = address[5:]
        if len(os.fsencode(path)) > limits.SOCKET_PATH_BYTES_MAX:
            raise InvalidArgument(
                f"socket path {path!r} is longer than {limits.SOCKET_PATH_BYTES_MAX} bytes; set "
                "TMPDIR to a shorter directory, for example /tmp."
            )
        return path, None
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not host or not port.isdecimal():
        raise InvalidArgument(f"address {address!r}: use unix:/path or tcp://host:port.")
    return host, int(port)


# --- the directory of the sockets ---


def runtime_directory(name: str) -> str:
    """`<temporary directory>/toque-<user id>/<name>`, made if need be, for this user only.

    Raises:
        UnsafeRuntimeDir: a part of it is a link, belongs to another user, or others may enter.
    """
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > 40:  # leaves room for Ray's own sockets below
        base = "/tmp"
    path = os.path.realpath(base)
    for part in (f"toque-{os.getuid()}", name):
        path = os.path.join(path, part)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != os.getuid()
            or stat.S_IMODE(found.st_mode) & 0o077
        ):
            raise UnsafeRuntimeDir(
                f"{path} must be a directory of yours with mode 0700 (it keeps sockets that run "
                "code). Remove it, or set TMPDIR to another directory.",
                {"path": path},
            )
    return path


# --- framing, of both ends ---


def _ignore(frame: bytes) -> None:
    """Until somebody listens."""


class Framed(asyncio.Protocol):
    """Cuts the byte stream into frames. Subclasses say what a frame means."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self.proven = False
        self.error: BaseException | None = None
        self.on_frame: Callable[[bytes], None] = _ignore
        self._rest = bytearray()
        self._hello_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=limits.LINK_WRITE_HIGH_BYTES)
        self._hello_timer = self.loop.call_later(
            limits.LINK_HELLO_MAX_MS / 1000, self.cut, ProtocolMismatch("no handshake in time.")
        )
        self.on_connected()

    def data_received(self, data: bytes) -> None:
        rest = self._rest
        gathered = bool(rest)
        if gathered:
            rest += data
            data = cast(bytes, rest)
        start, have = 0, len(data)
        try:
            while have - start >= 4:
                (size,) = _HEAD.unpack_from(data, start)
                most = limits.FRAME_BYTES_MAX if self.proven else limits.LINK_HELLO_BYTES_MAX
                if size > most:
                    raise ProtocolMismatch(f"a frame of {size} bytes; at most {most} are taken.")
                end = start + 4 + size
                if end > have:
                    break
                frame = bytes(data[start + 4 : end])
                start = end
                if self.proven:
                    self.on_frame(frame)
                else:
                    self.on_hello(_hello_decoder.decode(frame))
                if self.transport is None:
                    return
        except (ProtocolMismatch, msgspec.DecodeError) as error:
            self.cut(error)
            return
        except Exception as error:
            log.exception("a frame could not be handled")
            self.cut(error)
            return
        if gathered:
            del rest[:start]
        elif start < have:
            rest += memoryview(data)[start:]

    def write(self, frame: bytes) -> None:
        transport = self.transport
        if transport is None:
            return  # whoever waits for an answer has been, or is being, told
        size = len(frame)
        if size > limits.FRAME_BYTES_MAX:
            raise PayloadTooLarge(
                f"a frame of {size} bytes; at most {limits.FRAME_BYTES_MAX} can be sent."
            )
        if size <= _COPY_BYTES_MAX:
            transport.write(_HEAD.pack(size) + frame)
        else:
            transport.write(_HEAD.pack(size))
            transport.write(frame)

    def hand_over(self, frame: bytes, wait_ms: int) -> bool:
        """Give a frame to the kernel, waiting for room; False: it was not even begun."""
        transport = self.transport
        if transport is None or transport.get_write_buffer_size() or transport.is_closing():
            return False
        if len(frame) > limits.FRAME_BYTES_MAX:
            return False
        descriptor: int = transport.get_extra_info("socket").fileno()
        rest = memoryview(_HEAD.pack(len(frame)) + frame)
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        try:
            while rest and poll.poll(wait_ms):
                rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self.cut(error)
            return True
        if rest:
            transport.write(rest)
        return True

    def say(self, hello: Hello) -> None:
        self.write(_encode_hello(hello))

    def prove(self) -> None:
        self.proven = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()

    def cut(self, error: BaseException | None = None) -> None:
        """Drop the connection now, with all that is queued."""
        transport, self.transport = self.transport, None
        if transport is not None:
            self.error = self.error or error
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.error = self.error or exc
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self.on_lost()

    def on_connected(self) -> None:
        """The connection is made; nothing has been read."""

    def on_hello(self, hello: Hello) -> None:
        """A frame of the handshake came in."""

    def on_lost(self) -> None:
        """The connection is gone."""


def set_tcp_options(transport: asyncio.Transport | None) -> None:
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.LINK_STALL_MAX_MS)
