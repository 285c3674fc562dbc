"""An answer that is not JSON: bytes, part by part, of a length that is known.

A consumer holds one part of the server's memory at a time. If a part can't be had after the first,
the connection is cut off, so that nobody takes a part for the whole.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from ..runtime.errors import ToqueError

log = logging.getLogger("toque.api")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Content:
    """See the module's description.

    Args:
        first: the first part, so that what is wrong is an ordinary error.
        rest: the others.
        size: length in all.
        etag: names the content.
    """

    def __init__(self, first: bytes, rest: AsyncIterator[bytes], size: int, etag: str) -> None:
        self._first = first
        self._rest = rest
        self._size = size
        self._etag = etag

    async def send_to(self, send: Send) -> None:
        """Send it."""
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % self._size),
            (b"etag", f'"{self._etag}"'.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        part = {"type": "http.response.body", "body": self._first, "more_body": True}
        try:
            await send(part)
            async for more in self._rest:
                await send({**part, "body": more})
        except (ToqueError, OSError) as error:
            log.warning("a stream breaks off: %s", error)
            return
        await send({"type": "http.response.body", "body": b""})
