"""An HTTP create as the API process takes it in and answers it, without the work behind it.

Against a server of the same parser whose application reads the body and answers with constant
bytes. CPU of the process, a bare client on the same loop included in both.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

from toque.api.auth import Admission, TokenBook
from toque.api.dispatch_http import Dispatcher
from toque.api.routes_http import BASE, ROUTES, Routes
from toque.api.server_http import HttpServer
from toque.engines.views import InstanceView
from toque.runtime.clock import SystemClock

from . import Row, Sample, in_turns

CONNECTIONS = 16
TOKEN = "bench-token"
BODY = b'{"instance_id":"order-42","params":{"order":42,"items":["a","b","c"]}}'
REQUEST = (
    b"POST /client/v4/accounts/default/workflows/orders/instances HTTP/1.1\r\nHost: localhost\r\n"
    b"Authorization: Bearer %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
) % (TOKEN.encode(), len(BODY), BODY)
VIEW = InstanceView(
    id="order-42", run_id="r1", workflow="orders", workflow_uuid="0" * 32, version_id="0" * 32,
    code_hash="0" * 32, status="queued", source="api", params=b"{}", output=None, error=None,
    created_ms=1, queued_ms=1, started_ms=None, ended_ms=None, modified_ms=1, step_count=0,
)  # fmt: skip


class _Plane:
    """A control plane that has made every instance already."""

    async def create_instance(self, *_: Any, **__: Any) -> InstanceView:
        return VIEW


class _Layer:
    """The routes over that plane, as an application."""

    def __init__(self) -> None:
        tokens = TokenBook({TOKEN: "default"})
        self._dispatcher = Dispatcher(Admission(tokens, None, SystemClock()))
        self._dispatcher.add(ROUTES, Routes(cast(Any, _Plane())), BASE)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._dispatcher(scope, receive, send)

    def drain(self) -> None:
        """Nothing waits here."""


class _Bare(_Layer):
    """The least application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


class _Client(asyncio.Protocol):
    """Sends the request again whenever an answer has come, until it has sent enough."""

    def __init__(self, left: list[int], done: asyncio.Future[None]) -> None:
        self._left, self._done = left, done

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200"):
            self._done.set_exception(RuntimeError(data[:200].decode()))
            return
        self._left[0] -= 1
        if self._left[0] > 0:
            self._transport.write(REQUEST)
        elif not self._done.done():
            self._done.set_result(None)


async def requests_us(port: int, calls: int) -> Sample:
    """CPU microseconds of a request."""
    loop = asyncio.get_running_loop()
    done, left = loop.create_future(), [calls]
    cpu = time.process_time()
    opened = [
        await loop.create_connection(lambda: _Client(left, done), "127.0.0.1", port)
        for _ in range(CONNECTIONS)
    ]
    await done
    cpu = time.process_time() - cpu
    for transport, _ in opened:
        transport.close()
    return (cpu / calls * 1e6,)


async def measure(folder: Path, scale: float) -> list[Row]:
    """A create, parsed, admitted, routed and answered."""
    calls = max(CONNECTIONS * 2, int(2_000 * scale))
    async with (
        HttpServer(_Layer(), SystemClock()) as layer,
        HttpServer(_Bare(), SystemClock()) as bare,
    ):
        ((us, bare_us),) = await in_turns(
            lambda: requests_us(layer.port, calls), lambda: requests_us(bare.port, calls)
        )
    return [Row("http", "create, parsed and answered", us, "the parser and a constant", bare_us)]
