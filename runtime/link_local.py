"""Links within one process: the embedded runtime, and a shard's calls to itself.

Frames are the same bytes as on a socket, so that nothing mutable is shared and one code path is
tested. A frame is handed over in a later turn of the loop, as a socket would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .rpc import Link, LinkFactory, Session, ShardServer


class LocalLinks:
    """Opens links to shards of this process; others go to `elsewhere`.

    Args:
        loop: the event loop.
        elsewhere: opens links to shards that are not registered here.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, elsewhere: LinkFactory | None = None
    ) -> None:
        self._loop = loop
        self._elsewhere = elsewhere
        self._servers: dict[str, ShardServer] = {}

    def register(self, shard: str, server: ShardServer) -> None:
        """From now on `shard` is served by `server`."""
        self._servers[shard] = server

    def open(
        self,
        shard: str,
        on_frame: Callable[[bytes], None],
        on_up: Callable[[int], None],
        on_down: Callable[[BaseException | None], None],
    ) -> Link:
        server = self._servers.get(shard)
        if server is None:
            if self._elsewhere is None:
                raise KeyError(f"no shard {shard!r} in this process")
            return self._elsewhere.open(shard, on_frame, on_up, on_down)
        self._loop.call_soon(on_up, server.host.store.epoch)
        return _LocalLink(self._loop, server, on_frame)


class _LocalLink:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        server: ShardServer,
        on_frame: Callable[[bytes], None],
    ) -> None:
        self._loop = loop
        self._on_frame = on_frame
        self._session: Session | None = server.session(self._answer)

    def send(self, frame: bytes) -> None:
        if self._session is not None:
            self._loop.call_soon(self._session.receive, frame)

    def _answer(self, frame: bytes) -> None:
        if self._session is not None:
            self._loop.call_soon(self._on_frame, frame)

    def close(self) -> None:
        if self._session is not None:
            self._session.closed()
            self._session = None
