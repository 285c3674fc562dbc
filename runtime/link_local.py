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
        self._links: dict[str, set[_LocalLink]] = {}

    def register(self, shard: str, server: ShardServer) -> None:
        """From now on `shard` is served by `server`; links to a former one change over."""
        self._servers[shard] = server
        for link in list(self._links.get(shard, ())):
            link.change_over(server)

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
        open_links = self._links.setdefault(shard, set())
        link = _LocalLink(self._loop, open_links, on_frame, on_up, on_down)
        open_links.add(link)
        link.serve(server)
        return link


class _LocalLink:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        siblings: set[_LocalLink],
        on_frame: Callable[[bytes], None],
        on_up: Callable[[int], None],
        on_down: Callable[[BaseException | None], None],
    ) -> None:
        self._loop = loop
        self._siblings = siblings
        self._on_frame = on_frame
        self._on_up = on_up
        self._on_down = on_down
        self._session: Session | None = None

    def serve(self, server: ShardServer) -> None:
        """Use a new session of that server."""
        self._session = server.session(self._answer)
        self._loop.call_soon(self._on_up, server.host.store.epoch)

    def change_over(self, server: ShardServer) -> None:
        """Leave the former server: what it has not answered, it never will."""
        if self._session is not None:
            self._session.closed()
            self._loop.call_soon(self._on_down, None)
            self.serve(server)

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
            self._siblings.discard(self)
