"""Messages for one link, gathered during a turn of the event loop and sent as few frames.

What is gathered goes out at the turn's end, or as soon as it fills a chunk; order is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..runtime.limits import WORKER_CHUNK_BYTES
from .worker_messages import _Message, encoded, frame_of


class Outgoing:
    """See the module's description.

    Args:
        loop: the event loop.
        send: takes a frame.
    """

    __slots__ = ("_loop", "_parts", "_send", "_size")

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._parts: list[bytes] = []
        self._size = 0

    def put(self, message: _Message) -> None:
        """Send a message with the others of this turn."""
        part = encoded(message)
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(part)
        self._size += len(part)
        if self._size > WORKER_CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered."""
        if self._parts:
            parts, self._parts, self._size = self._parts, [], 0
            self._send(frame_of(parts))
