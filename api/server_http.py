"""An HTTP server inside a running event loop: uvicorn's protocol on a loopback address.

It is bound when `start` returns, so `port=0` tells which port it got, and a port in use is an
`OSError` in the starter's hands. `stop` ends long waits, lets requests under way finish for a
moment, and closes. The size of a request's head is bounded; its body is bounded by the routes.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from email.utils import formatdate
from types import TracebackType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ..runtime import limits
from ..runtime.clock import Clock
from ..runtime.errors import InvalidArgument
from .app_http import ControlPlaneApp

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
_STOP_GRACE_S = 5


class _OneWrite:
    """A transport that sends what is written in one turn of the loop at once.

    uvicorn writes an answer's head and body apart; together they are one system call and one
    packet.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data` at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Send what is left, then close."""
        self._flush()
        self._transport.close()


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with whole writes and a bound on the head of a request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(_OneWrite(transport, self.loop))  # type: ignore[arg-type]

    _head_bytes: int | None = 0
    """Bytes of a head that is still coming in; None: none is."""

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        before = self._head_bytes
        super().data_received(data)
        if before is not None and self._head_bytes is not None:
            self._head_bytes = before + len(data)
            if self._head_bytes > limits.HEAD_BYTES_MAX:
                self._head_bytes = None
                self.send_400_response("The request's head is too large.")


class HttpServer:
    """Serves an application until `stop`.

    Args:
        app: from `make_app`.
        clock: for the Date header.
        host: a loopback address.
        port: 0: any free one; see `port` after `start`.
    """

    def __init__(
        self, app: ControlPlaneApp, clock: Clock, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        if host == "localhost":
            host = "127.0.0.1"
        if not _is_loopback(host):
            raise InvalidArgument(f"{host!r} is no loopback address; use 127.0.0.1 or ::1.")
        self._app = app
        self._clock = clock
        self._host = host
        self.port = port
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self._ticking: asyncio.TimerHandle | None = None

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
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        config.load()
        state = self._state
        make: Callable[[], Any] = lambda: _Protocol(config, state, {}, loop)  # noqa: E731
        self._listener = await loop.create_server(make, self._host, self.port, backlog=_BACKLOG)
        self.port = self._listener.sockets[0].getsockname()[1]
        self._tick()

    def _tick(self) -> None:
        date = formatdate(self._clock.now_ms() / 1000, usegmt=True).encode()
        self._state.default_headers = [(b"date", date)]
        self._ticking = asyncio.get_running_loop().call_later(1, self._tick)

    async def stop(self) -> None:
        """Stop listening, end long waits, finish what is under way, close."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        self._app.api.drain()
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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
