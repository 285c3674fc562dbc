"""A shard of the embedded runtime: opened again, with backoff, when its store has broken.

While it is closed its callers hear at once that it is, and why. What a broken store had not
committed is gone; instances go on from their journals, as after the end of a process. A shard whose
store is damaged stays closed, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..runtime.errors import StoreDamaged
from ..runtime.link_local import LocalLinks
from ..runtime.opening import keep_opening, refusing_server
from .shards import OpenShard

_log = logging.getLogger("toque.shard")

OpenOnce = Callable[[Callable[[BaseException], None]], Awaitable[OpenShard]]
"""Opens the shard; is given what to call when its store breaks."""


class EmbeddedShard:
    """See the module's description.

    Args:
        shard: its name.
        links: where it is served.
        open_once: see `OpenOnce`.
        loop: the event loop.
    """

    def __init__(
        self, shard: str, links: LocalLinks, open_once: OpenOnce, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.shard = shard
        self._links = links
        self._open_once = open_once
        self._loop = loop
        self._opened: OpenShard | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Open it for the first time; what is wrong is raised, but for a damaged store."""
        try:
            self._serve(await self._open_once(self._broke))
        except StoreDamaged as error:
            self._failed(error, True)

    def _serve(self, opened: OpenShard) -> None:
        self._opened = opened
        self._links.register(self.shard, opened.server)

    def _broke(self, error: BaseException) -> None:
        if not self._closed:
            _log.error("shard %s can't go on and is opened again: %s", self.shard, error)
            self._refuse(str(error), final=False)
            self._reopening = self._loop.create_task(
                self._reopen(), name=f"open {self.shard} again"
            )

    def _refuse(self, why: str, final: bool) -> None:
        server = refusing_server(self.shard, why, self._loop, final=final)
        self._links.register(self.shard, server)

    async def _reopen(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                await opened.close()
            except Exception as error:
                _log.warning("shard %s was not closed in order: %s", self.shard, error)

        async def open_once() -> OpenShard:
            return await self._open_once(self._broke)

        found = await keep_opening(open_once, self._failed)
        if found is not None:
            self._serve(found)
            _log.warning("shard %s is open again, epoch %d", self.shard, found.epoch)

    def _failed(self, error: BaseException, final: bool) -> None:
        _log.error(
            "shard %s did not open%s: %s", self.shard, " and never will" if final else "", error
        )
        self._refuse(str(error), final)

    def stop(self) -> None:
        """Deliver nothing more."""
        self._closed = True
        if self._opened is not None:
            self._opened.stop()

    async def close(self) -> None:
        """Commit what is pending and close the file; opening again is given up."""
        self.stop()
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        if self._opened is not None:
            await self._opened.close()
