"""Whether a front end can do its work just now: asked by anybody, as often as they like.

However many ask, the system is looked at once at a time, and what was found is kept for a moment.
Who drains is not ready, at once. A look never takes longer than its bound, since `check` keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..runtime import limits

Check = Callable[[], Awaitable[dict[str, bool]]]
"""Gives for each part of the system whether it does its work; takes READY_TIMEOUT_MS at most."""


class Readiness:
    """See the module's description."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._looking: asyncio.Task[dict[str, bool]] | None = None
        self._found: tuple[float, dict[str, bool]] | None = None
        self.draining = False

    async def parts(self) -> dict[str, bool]:
        """For each part of the system whether it does its work."""
        now_s = asyncio.get_running_loop().time()
        if self._found is not None and now_s < self._found[0]:
            return self._found[1]
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> dict[str, bool]:
        try:
            parts = await self._check()
        finally:
            self._looking = None
        kept_until_s = asyncio.get_running_loop().time() + limits.READY_KEPT_MS / 1000
        self._found = kept_until_s, parts
        return parts
