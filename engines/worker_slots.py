"""How many worker processes of a shard may live at a time, and how many of them are one account's.

Whoever asks first is first; but one account leaves a reserve to others, so that its instances, were
they to wait for resources without end, hold up its own only.
"""

from __future__ import annotations

import asyncio
from collections import Counter


class WorkerSlots:
    """See the module.

    Args:
        total: of the shard.
        reserve: how many of these one account leaves to others.
    """

    def __init__(self, total: int, reserve: int) -> None:
        assert 0 <= reserve < total
        self._free = total
        self._most = total - reserve
        self._taken = Counter[str]()
        self._waiting: dict[asyncio.Future[None], str] = {}

    async def acquire(self, account: str) -> None:
        """Wait for a place, and take it."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = account
        self._give()
        try:
            await future
        except asyncio.CancelledError:
            if self._waiting.pop(future, None) is None:  # it was given just now
                self.release(account)
            raise

    def release(self, account: str) -> None:
        """Give a place back."""
        self._taken[account] -= 1
        if not self._taken[account]:
            del self._taken[account]
        self._free += 1
        self._give()

    def _give(self) -> None:
        for future, account in list(self._waiting.items()):
            if not self._free:
                return
            if self._taken[account] < self._most:
                del self._waiting[future]
                self._free -= 1
                self._taken[account] += 1
                if not future.done():
                    future.set_result(None)
