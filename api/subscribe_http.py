"""Server-sent events: an instance's events as a stream, history first.

A frame is `id: <number>`, `event: <type>`, `data: <JSON>`; in quiet times a comment keeps the
connection up. The stream ends when the instance has ended and all was told. A consumer holds one
page of the server's memory at a time: who does not read is cut off after a while, and goes on
where it was by `cursor`, or the header `Last-Event-ID` that browsers send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from ..engines.views import EventPage
from ..runtime import limits
from ..runtime.errors import ToqueError
from .watching_shapes import event_shape

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
NextPage = Callable[[int], Awaitable[EventPage]]
_encode = msgspec.json.Encoder().encode
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_QUIET = b": quiet\n\n"


class EventStream:
    """See the module's description.

    Args:
        instance_id: whose events.
        first: the first page, so that what is wrong is an ordinary error.
        next_page: gives the page past a cursor, after a while at the latest.
    """

    def __init__(self, instance_id: str, first: EventPage, next_page: NextPage) -> None:
        self._instance_id = instance_id
        self._page = first
        self._next_page = next_page

    async def send_to(self, send: Send) -> None:
        """Send everything. Ends early, and quietly, if the consumer does not read."""
        page = self._page
        is_over = page.ended and not page.events
        status = 204 if is_over else 200  # 204 tells a browser not to come again
        await send({"type": "http.response.start", "status": status, "headers": _HEADERS})
        try:
            while not is_over:
                await self._write(send, self._frames(page) or _QUIET)
                if page.ended:
                    break
                try:
                    page = await self._next_page(page.cursor)
                except ToqueError as error:
                    told = _encode({"code": error.code, "message": error.message})
                    await self._write(send, b"event: error\ndata: " + told + b"\n\n")
                    break
        except TimeoutError:
            return  # the response is not completed, so the server closes the connection
        await send({"type": "http.response.body", "body": b""})

    def _frames(self, page: EventPage) -> bytes:
        return b"".join(
            b"id: %d\nevent: %s\ndata: %s\n\n"
            % (event.no, event.type.encode(), _encode(event_shape(event, self._instance_id)))
            for event in page.events
        )

    @staticmethod
    async def _write(send: Send, body: bytes) -> None:
        async with asyncio.timeout(limits.SUBSCRIBER_STALL_MAX_MS / 1000):
            await send({"type": "http.response.body", "body": body, "more_body": True})
