"""What many ask for and is dear to find out: looked up once at a time, and kept for a moment.

However many ask, there is one look under way at most; who goes away takes nobody's answer along.
A look that fails is told to all who waited for it, and the next one looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """See the module's description.

    Args:
        look: finds it out; keeps to a bound of time.
        kept_ms: for how long it is not looked up again.
    """

    def __init__(self, look: Callable[[], Awaitable[T]], kept_ms: int) -> None:
        self._look = look
        self._kept_s = kept_ms / 1000
        self._looking: asyncio.Task[T] | None = None
        self._found: tuple[float, T] | None = None

    async def get(self) -> T:
        """What was found, a moment ago at most."""
        now_s = asyncio.get_running_loop().time()
        if self._found is not None and now_s < self._found[0]:
            return self._found[1]
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_once())
        return await asyncio.shield(self._looking)

    async def _look_once(self) -> T:
        try:
            found = await self._look()
        finally:
            self._looking = None
        self._found = asyncio.get_running_loop().time() + self._kept_s, found
        return found
