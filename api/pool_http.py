"""HTTP/1.1 connections to one server, opened when they are needed and used again.

A connection carries one request at a time; its answer is parsed by httptools. When all are in use,
requests wait for one in order. What was not sent is told apart from what may have arrived:
`NotSent`, else `Broken` or `TimeoutError`. Nothing is repeated here.

A connection has one timer, which looks at the deadline of the moment when it fires: so a call on
a connection that is in use sets none.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from ..runtime import limits

_CONNECT_S = 10.0
_IDLE_S = 60.0
"""A connection that was free for longer is closed: the server might do so amid of a request."""
_EARLY_S = 0.001
"""Timers may fire so much too early."""
_NEXT_ADDRESS_S = 0.25
"""How long one address of a name is tried alone."""
_JOINED_BYTES_MAX = 64 * limits.KIB
"""A longer body is not copied behind its head."""
_CLOSING_TURNS = 20

Fields = list[tuple[bytes, bytes]]


class NotSent(Exception):
    """No connection came about: the server has seen nothing of the request."""


class Broken(Exception):
    """The connection failed, or spoke no HTTP, before the answer was there."""


class Answer(NamedTuple):
    """An answer; of one that is read part by part the head."""

    status: int
    fields: Fields
    body: bytes

    def field(self, name: bytes) -> str | None:
        """The value of a header, whose name is given in lower case."""
        for known, value in self.fields:
            if known.lower() == name:
                return value.decode("latin-1")
        return None


class _Connection(asyncio.Protocol):
    """One connection: free, or with one request under way."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._given_up = False
        self._asked: asyncio.Future[Answer] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._status = 0
        self._fields: Fields = []
        self._parts: list[bytes] = []
        self._begun = self._keeps = self._until_end = False

    @property
    def usable(self) -> bool:
        """Whether a request may be sent."""
        transport = self._transport
        return transport is not None and not transport.is_closing()

    def ask(
        self,
        head: bytes,
        body: bytes | None,
        deadline: float,
        reader: asyncio.StreamReader | None = None,
    ) -> asyncio.Future[Answer]:
        """Send a request.

        Args:
            head: of the request, with its empty line.
            body: what follows it.
            deadline: of the answer, as the loop's time.
            reader: gets the body; the answer is then there with its head.
        """
        asked = self._asked = self._loop.create_future()
        transport = self._transport
        if transport is None:
            asked.set_exception(Broken("the connection was lost"))
            return asked
        self._watch(deadline)
        if reader is not None:
            self._reader = reader
            reader.set_transport(transport)
        if body is None:
            transport.write(head)
        elif len(body) <= _JOINED_BYTES_MAX:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return asked

    def rest(self) -> None:
        """It is free."""
        self._watch(self._loop.time() + _IDLE_S)

    def close(self, error: Exception | None = None) -> None:
        """Give it up; who waits for the answer gets `error`."""
        self._given_up = True
        self._end(error or Broken("the connection was closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # --- time ---

    def _watch(self, deadline: float) -> None:
        self._deadline = deadline
        if self._timer is not None:
            if self._timer_at <= deadline:
                return  # it looks again when it fires
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._loop.time() < self._deadline - _EARLY_S:
            self._watch(self._deadline)
        elif self._asked is not None or self._reader is None:  # who reads has times of its own
            self.close(TimeoutError("no answer came in time"))

    # --- what the transport tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._given_up:
            self.close()
        else:
            self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.close(Broken(f"the answer is no HTTP/1.1: {error}"))
            return
        if self._begun and self._asked is None and self._reader is None:
            self.close()  # nobody asked for that

    def connection_lost(self, exc: Exception | None) -> None:
        if self._until_end and exc is None and not self._given_up:
            self.on_message_complete()  # this answer ends where the connection does
        told = "" if exc is None else f": {exc}"
        self.close(Broken(f"the connection was lost{told}"))
        self._pool.lost(self)

    # --- what the parser tells ---

    def on_message_begin(self) -> None:
        self._begun = True
        self._fields, self._parts = [], []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < 200:  # the answer follows
            return
        self._keeps = self._parser.should_keep_alive()
        if not self._keeps:
            names = {name.lower() for name, _ in self._fields}
            self._until_end = not names & {b"content-length", b"transfer-encoding"}
        if self._reader is not None:
            self._give(b"")

    def on_body(self, part: bytes) -> None:
        if self._reader is not None:
            self._reader.feed_data(part)
        else:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        self._begun = False
        if self._status < 200:
            return
        self._until_end = False
        if self._reader is not None:
            self._reader.feed_eof()
            return  # what is not read yet may hold this connection up: it is not used again
        if self._asked is None:
            self.close()
            return
        parts = self._parts
        self._give(parts[0] if len(parts) == 1 else b"".join(parts))
        transport = self._transport
        if self._keeps and transport is not None and not transport.get_write_buffer_size():
            self._pool.give_back(self)
        else:
            self.close()

    def _give(self, body: bytes) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_result(Answer(self._status, self._fields, body))

    def _end(self, error: Exception) -> None:
        """No more of this answer comes."""
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(error)
        if self._reader is not None and not self._reader.at_eof():
            self._reader.set_exception(error)


class Pool:
    """The connections to a server.

    Args:
        origin: `http://host:port` or `https://host`; a path in it stands before each target.
        fields: headers of every request.
        connections_max: how many are open at once, at most.
    """

    def __init__(
        self,
        origin: str,
        fields: Mapping[str, str],
        connections_max: int = limits.CLIENT_CONNECTIONS_MAX,
    ) -> None:
        parsed = urlsplit(origin)
        self._is_tls = parsed.scheme == "https"
        host = parsed.hostname or ""
        self._host = host if host.isascii() else host.encode("idna").decode()
        self._port = parsed.port or (443 if self._is_tls else 80)
        self._path = parsed.path
        shown = f"[{self._host}]" if ":" in self._host else self._host
        lines = {"Host": shown if parsed.port is None else f"{shown}:{parsed.port}", **fields}
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._connections_max = connections_max
        self._tls: ssl.SSLContext | None = None
        self._bind(None)

    def _bind(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Connections are of one loop; those of another, which has ended, are of no use."""
        self._loop = loop
        self._free: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._slots = 0
        """Connections that are open or being opened."""
        self._waiting: deque[asyncio.Future[_Connection | None]] = deque()

    async def ask(
        self, method: str, target: str, fields: str, body: bytes | None, timeout_s: float
    ) -> Answer:
        """The answer to a request.

        Args:
            method, target: of the request; the target is percent-encoded.
            fields: more headers, each with its line end.
            body: None: none is sent.
            timeout_s: for all of it.

        Raises:
            NotSent, Broken, TimeoutError
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connection = await self._take(loop, deadline)
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {self._path}{target} HTTP/1.1\r\n{self._lines}{fields}{length}\r\n"
        try:
            return await connection.ask(head.encode("latin-1"), body, deadline)
        except BaseException:
            connection.close()
            raise

    @asynccontextmanager
    async def reading(
        self, target: str, quiet_s: float
    ) -> AsyncIterator[tuple[Answer, asyncio.StreamReader]]:
        """A GET whose answer is read part by part.

        Args:
            target: as for `ask`.
            quiet_s: how long the head may take.

        Raises:
            NotSent, Broken, TimeoutError: also while the parts are read.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + quiet_s
        connection = await self._take(loop, deadline)
        reader = asyncio.StreamReader(limits.STREAM_PART_BYTES, loop)
        head = f"GET {self._path}{target} HTTP/1.1\r\n{self._lines}\r\n"
        try:
            yield await connection.ask(head.encode("latin-1"), None, deadline, reader), reader
        finally:
            connection.close()

    async def close(self) -> None:
        """Close all connections. The next request opens a new one."""
        if self._loop is not asyncio.get_running_loop():
            self._bind(None)
        for connection in list(self._open):
            connection.close(Broken("the client was closed"))
        for _ in range(_CLOSING_TURNS):  # the loop tells of their ends in its next turns
            if not self._open:
                return
            await asyncio.sleep(0)

    # --- whose turn it is ---

    async def _take(self, loop: asyncio.AbstractEventLoop, deadline: float) -> _Connection:
        if loop is not self._loop:
            self._bind(loop)
        while True:
            while self._free:
                connection = self._free.pop()
                if connection.usable:
                    return connection
            if self._slots < self._connections_max:
                self._slots += 1
                return await self._connect(loop, deadline)
            handed = await self._turn(loop, deadline)
            if handed is None:
                return await self._connect(loop, deadline)
            if handed.usable:
                return handed

    async def _turn(self, loop: asyncio.AbstractEventLoop, deadline: float) -> _Connection | None:
        """Wait for a connection; None: a slot for a new one."""
        waiter: asyncio.Future[_Connection | None] = loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():  # it came as the caller gave up
                self._hand_on(waiter.result())
            if isinstance(error, TimeoutError):
                raise NotSent(f"all {self._connections_max} connections are in use") from None
            raise

    def _hand_on(self, connection: _Connection | None) -> None:
        """Give a free connection, or a free slot, to whoever has waited longest."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if connection is None:
            self._slots -= 1
        else:
            self._free.append(connection)

    async def _connect(self, loop: asyncio.AbstractEventLoop, deadline: float) -> _Connection:
        """A new connection, for a slot that was taken."""
        connection = _Connection(self, loop)
        more: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop):  # other loops may not know it
            more["happy_eyeballs_delay"] = _NEXT_ADDRESS_S
        try:
            if self._is_tls and self._tls is None:
                self._tls = ssl.create_default_context()
            async with asyncio.timeout_at(min(deadline, loop.time() + _CONNECT_S)):
                await loop.create_connection(
                    lambda: connection, self._host, self._port, ssl=self._tls, **more
                )
        except BaseException as error:
            if connection not in self._open:  # else its end gives the slot back
                self._hand_on(None)
            connection.close()
            if isinstance(error, TimeoutError):
                raise NotSent("it did not come about in time") from None
            if isinstance(error, OSError):
                raise NotSent(str(error)) from error
            raise
        return connection

    # --- what connections tell ---

    def opened(self, connection: _Connection) -> None:
        """It is connected."""
        self._open.add(connection)

    def give_back(self, connection: _Connection) -> None:
        """Its answer is there, and it can take the next request."""
        connection.rest()
        self._hand_on(connection)

    def lost(self, connection: _Connection) -> None:
        """It has ended."""
        if connection in self._open:
            self._open.discard(connection)
            if connection in self._free:
                self._free.remove(connection)
            self._hand_on(None)
