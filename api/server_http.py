"""An HTTP server inside a running event loop: uvicorn's protocol on one address.

It is bound when `start` returns, so `port=0` tells which port it got, and a port in use is an
`OSError` in the starter's hands. `stop` ends long waits, lets requests under way finish for a
moment, and closes. Bounded are: the size of a request's head and the time it takes, the time a
connection is silent, the time an answer waits to be read, the number of connections. A body is
bounded by the routes. What is refused here is told in the envelope too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from ..runtime import limits
from ..runtime.clock import Clock
from ..runtime.errors import (
    HeadTooLarge,
    InvalidArgument,
    MalformedRequest,
    Overloaded,
    RequestTimeout,
    ToqueError,
)
from ..runtime.log_bounds import LogBounds
from .dispatch_http import WHOLE, Receive, Scope, Send
from .errors_http import JSON, answer_of

_BACKLOG = 2048
_UVICORN_LOG = "uvicorn.error"
"""Where uvicorn logs what clients send: a line for each request that is none."""
_STOP_GRACE_S = 5
_EARLY_S = 0.001
"""Timers may fire so much too early."""


class _OneWrite:
    """A transport that sends what is written in one turn of the loop at once.

    uvicorn writes an answer's head and body apart; together they are one system call and one
    packet. `on_close` takes the place of closing.
    """

    def __init__(
        self, transport: Any, loop: asyncio.AbstractEventLoop, on_close: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._on_close = on_close
        self._parts: list[bytes] = []
        self._is_closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data` at the end of this turn."""
        if self._is_closing:
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def write_now(self, data: bytes) -> None:
        """Send `data` behind what is to be sent."""
        if self._parts:
            self.write(data)
        elif not self.is_closing():
            self._transport.write(data)

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            if not self._transport.is_closing():  # the client may have gone in this very turn
                self._transport.write(b"".join(parts))

    def is_closing(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what is left, then close."""
        self._flush()
        if not self._is_closing:
            self._is_closing = True
            self._on_close()

    def close_now(self) -> None:
        """Close without further ado."""
        self._flush()
        self._transport.close()


class _State(ServerState):
    """uvicorn's state of all connections.

    Attributes:
        json_head: the headers of an answer in JSON, up to its length.
    """

    json_head = b""


class _Cycle(RequestResponseCycle):
    """A request and its answer, which may be sent as a whole.

    Attributes:
        json_head: the headers of an answer in JSON, up to its length.
    """

    json_head = b""

    def whole(self, status: int, body: bytes) -> bool:
        """Send an answer in JSON by one write; False: it has to be sent by `send`."""
        if self.response_started or self.disconnected or self.flow.write_paused:
            return False
        if not self.keep_alive or self.scope["method"] == "HEAD":
            return False
        self.response_started = self.response_complete = True
        head = STATUS_LINE[status], self.json_head, b"%d\r\n\r\n" % len(body)
        self.transport.write_now(b"".join((*head, body)))  # type: ignore[attr-defined]
        self.message_event.set()
        self.on_response()
        return True


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with whole writes and bounds; see the module's description."""

    connections_max = limits.HTTP_CONNECTIONS_MAX
    server_state: _State
    _idle_until: float | None = None
    """Until when a connection between two requests is kept; None: it is not between any."""
    addresses: Counter[str] = Counter()
    """How many connections each address has, of this server."""
    _address = ""
    """Where this one came from, if it counts."""
    _refusal: ToqueError | None = None
    """Why this connection is refused."""
    _head_bytes: int | None = None
    """Bytes of a head that is still coming in, at least; None: none is."""
    _counted = 0
    """Bytes of the lines of that head that are complete."""
    _begun = 0
    """Requests that began in what is being parsed."""
    _deadline: asyncio.TimerHandle | None = None
    """Of a head, of what a client still sends after a refusal, of an answer that is not read."""
    _hang_up_at: float | None = None
    """When to stop reading what a refused client still sends."""

    def connection_made(self, transport: Any) -> None:
        self._wrapped = _OneWrite(transport, self.loop, self._on_close)
        super().connection_made(self._wrapped)  # type: ignore[arg-type]
        of_address = self._count_address()
        most = int(self.connections_max * limits.HTTP_CONNECTIONS_ADDRESS_PERCENT / 100)
        if of_address > 2 * most:
            transport.abort()
        elif of_address > most:
            self._refuse(Overloaded(f"{most} connections are open here from this address."))
        elif len(self.connections) <= self.connections_max:
            self._set_deadline(limits.HEAD_READ_MAX_MS, self._head_is_late)
        elif len(self.connections) <= 2 * self.connections_max:
            self._refuse(Overloaded(f"{self.connections_max} connections are open here."))
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_deadline()
        if self._address:
            self.addresses[self._address] -= 1
            if not self.addresses[self._address]:
                del self.addresses[self._address]
        super().connection_lost(exc)
        self._idle_until = None
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _count_address(self) -> int:
        """How many connections its address has now. This machine's own are not counted: a proxy
        before the server comes from there."""
        address = self.client[0] if self.client else ""
        if not address or is_local(address):
            return 0
        self._address = address
        self.addresses[address] += 1
        return self.addresses[address]

    # --- the head ---

    def on_message_begin(self) -> None:
        self._head_bytes = self._counted = 0
        self._begun += 1
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._counted += len(name) + len(value)
        if self._counted > limits.HEAD_BYTES_MAX:
            self._count(0)
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def _count(self, size: int) -> None:
        self._counted += size
        if self._counted > limits.HEAD_BYTES_MAX:
            self._refusal = _head_too_large()
            raise self._refusal  # the parser stops, and `send_400_response` follows

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self._unset_deadline()
        version = self.parser.get_http_version()
        before = self.cycle
        cycle = self.cycle = _Cycle(
            scope=self._scope(version),  # type: ignore[arg-type]
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        cycle.json_head = self.server_state.json_head
        cycle.scope[WHOLE] = cycle.whole  # type: ignore[literal-required]
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def _scope(self, version: str) -> Scope:
        """The request as ASGI tells it."""
        url = self.url
        if url.startswith(b"/") and not url.startswith(b"//") and b"#" not in url:
            raw_path, _, query = url.partition(b"?")
        else:
            parsed = httptools.parse_url(url)
            raw_path, query = parsed.path, parsed.query or b""
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": {},
        }

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # its rest was passed over
            self._unset_deadline()
            self._rest()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._head_bytes is not None:  # the next request has begun
            self._set_deadline(limits.HEAD_READ_MAX_MS, self._head_is_late)
        else:
            self._rest()

    def _rest(self) -> None:
        """Keep the connection for the next request. Its one timer looks again when it fires."""
        self._idle_until = self.loop.time() + self.timeout_keep_alive
        if self.timeout_keep_alive_task is None:
            self._look_later(self._idle_until)

    def _look_later(self, at: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_at(at, self._look)

    def _look(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_until is None:
            return  # a request is under way, and rests after its answer
        if self.loop.time() < self._idle_until - _EARLY_S:
            self._look_later(self._idle_until)
        else:
            self.timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_until = None

    def data_received(self, data: bytes) -> None:
        if self._hang_up_at is not None:
            self._linger()
            return
        if self.transport.is_closing():
            return
        cycle, before = self.cycle, self._head_bytes
        starts = cycle is None or (cycle.response_complete and not cycle.more_body)
        self._begun = 0
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head_bytes is not None:
            if before is not None or (starts and self._begun == 1):
                self._head_bytes = (before or 0) + len(data)
            else:
                self._head_bytes = 1  # where in `data` it began is not known
            if self._head_bytes > limits.HEAD_BYTES_MAX:
                self._refuse(_head_too_large())
                return
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self._deadline is None and self._idle_until is None:
            self._set_deadline(limits.HEAD_READ_MAX_MS, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._head_bytes:
            self._refuse(RequestTimeout("the request's head did not arrive in time."))
        else:
            self.transport.close()  # nothing was asked

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade is an offer; the request is answered as it is."""

    # --- refusals ---

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or MalformedRequest("the request is no HTTP/1.1 request."))

    def _refuse(self, error: ToqueError) -> None:
        """Answer without asking the application, then close."""
        if self.transport.is_closing():
            return
        self._refusal = error
        status, headers, body = answer_of(error)
        headers = [
            *self.server_state.default_headers,
            *headers,
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = [b"%b: %b\r\n" % pair for pair in headers]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
        self.transport.close()

    # --- the end ---

    def _on_close(self) -> None:
        """Close; but first let a client that still sends hear why it is refused."""
        self._unset_deadline()
        self._unset_keepalive_if_required()
        cycle = self.cycle
        unread = cycle is not None and cycle.response_complete and cycle.more_body
        if (unread or self._refusal is not None) and not self._wrapped._transport.is_closing():
            self._hang_up_at = self.loop.time() + limits.LINGER_MAX_MS / 1_000
            self.flow.resume_reading()
            self._linger()
        else:
            self._close_now()

    def _linger(self) -> None:
        """Pass over what comes until nothing does. A close amid of it would destroy the answer."""
        if self._hang_up_at is not None and self.loop.time() < self._hang_up_at:
            self._set_deadline(limits.LINGER_QUIET_MS, self._close_now)
        else:
            self._close_now()

    def _close_now(self) -> None:
        self._wrapped.close_now()
        self._set_deadline(limits.HTTP_STALL_MAX_MS, self._wrapped.abort)

    def _set_deadline(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._unset_deadline()
        self._deadline = self.loop.call_later(delay_ms / 1_000, act)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"the request line and headers are too large; {limits.HEAD_BYTES_MAX} bytes are taken."
    )


def _connections_max() -> int:
    """As the limit says, but within half of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.HTTP_CONNECTIONS_MAX
    return min(limits.HTTP_CONNECTIONS_MAX, files // 2)


class Served(Protocol):
    """What a server serves: an ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""

    def drain(self) -> None:
        """The server ends: take up no long waits, and end those under way."""


class HttpServer:
    """Serves an application until `stop`.

    Args:
        app: from `make_app`, say.
        clock: for the Date header.
        host: an IP address of this machine.
        port: 0: any free one; see `port` after `start`.
        loopback_only: refuse an address that others can reach. What is served there travels as
            clear text, tokens too; who turns this off sees to that.
        shared: further processes of this user may listen there too; connections are spread.
        joins: it is such a further one. Else nobody may listen there yet, as without `shared`.

    Raises:
        InvalidArgument: the host is none of these.
    """

    def __init__(
        self,
        app: Served,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        loopback_only: bool = True,
        shared: bool = False,
        joins: bool = False,
    ) -> None:
        host = address_of(host)
        if loopback_only and not is_loopback(host):
            raise InvalidArgument(f"{host!r} is no loopback address; use 127.0.0.1 or ::1.")
        self._app = app
        self._clock = clock
        self._host = host
        self.port = port
        self._shared = shared or joins
        self._joins = joins
        self._state = _State()
        self._listener: asyncio.Server | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._log_bounds = LogBounds((_UVICORN_LOG,))

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Bind and serve. Raises `OSError` if the port is in use."""
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            self._app,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            timeout_keep_alive=limits.HTTP_IDLE_MAX_MS // 1_000,
        )
        config.load()
        state = self._state
        connections_max = _connections_max()
        addresses: Counter[str] = Counter()

        def make() -> asyncio.Protocol:
            protocol = _Protocol(config, state, {}, loop)
            protocol.connections_max = connections_max
            protocol.addresses = addresses
            return protocol

        if self._shared and not self._joins and self.port:  # else two servers would share a port
            probe = await loop.create_server(asyncio.Protocol, self._host, self.port)
            probe.close()
        logging.getLogger(_UVICORN_LOG).addFilter(self._log_bounds)
        self._listener = await loop.create_server(
            make, self._host, self.port, backlog=_BACKLOG, reuse_port=self._shared or None
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._tick()

    def _tick(self) -> None:
        date = formatdate(self._clock.now_ms() / 1000, usegmt=True).encode()
        self._state.default_headers = [(b"date", date)]
        self._state.json_head = b"date: %b\r\n%b: %b\r\ncontent-length: " % (date, *JSON)
        self._ticking = asyncio.get_running_loop().call_later(1, self._tick)

    async def stop(self) -> None:
        """Stop listening, end long waits, finish what is under way, close."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        self._app.drain()
        for connection in list(self._state.connections):
            connection.shutdown()  # closes idle ones; others after their answer
        tasks = set(self._state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_STOP_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self._state.connections):
            connection.transport.close()
        if self._ticking is not None:
            self._ticking.cancel()
        logging.getLogger(_UVICORN_LOG).removeFilter(self._log_bounds)

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


def address_of(host: str) -> str:
    """The IP address that a setting means.

    Raises:
        InvalidArgument: it is none.
    """
    if host == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    except ValueError:
        raise InvalidArgument(
            f"{host!r:.80} is no IP address; for example 127.0.0.1, 0.0.0.0 (every one) or ::1."
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that IP address."""
    return ipaddress.ip_address(host).is_loopback


def is_local(address: str) -> bool:
    """Whether the address of a client is one of loopback."""
    try:
        return is_loopback(address.partition("%")[0])
    except ValueError:
        return False
