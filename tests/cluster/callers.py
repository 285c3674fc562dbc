"""Who calls a cluster while nodes are lost: adders of ledgers, and a creator of instances."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.recovery import flow
from tests.recovery.ledger import BASE
from toque.runtime.errors import ToqueError
from toque.runtime.ids import EntityRef


class Adder:
    """Calls one ledger again and again; what was acknowledged, and when.

    Attributes:
        stopping: make no further call.
        stale: answers that did not show all that had been acknowledged before.
    """

    def __init__(self, runtime: Any, key: str) -> None:
        self.key = key
        self.acknowledged: list[int] = []
        self.unknown = self.stale = 0
        self.longest_s = 0.0
        self.stopping = False
        self._runtime = runtime
        self._last = time.monotonic()
        self._next = self._sum = 0

    async def run(self) -> None:
        """Until it is to stop, and its last call has ended; goes on where it was if run again."""
        self.stopping = False
        while not self.stopping:
            number, self._next = self._next, self._next + 1
            try:
                await self.one(number)
            except (ToqueError, TimeoutError):
                self.unknown += 1
                await flow.work_for(0.05)
            else:
                self.heard(number)
            await flow.work_for(0.01)

    async def one(self, number: int) -> None:
        """A call; it is not waited for longer than a moment."""
        total = await self._runtime.router.call(self.ref, "add", number, timeout_ms=1_000)
        self.stale += not self.is_new(total)
        self._sum += BASE**number

    @property
    def ref(self) -> EntityRef:
        """The ledger."""
        return EntityRef("Ledger", self.key)

    def is_new(self, total: str) -> bool:
        """Whether an answer shows all that was acknowledged."""
        return int(total, 16) & self._sum == self._sum

    def heard(self, number: int) -> None:
        """It was acknowledged."""
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self.acknowledged.append(number)

    def forget_pauses(self) -> None:
        """What was before does not count."""
        self.longest_s, self._last = 0.0, time.monotonic()


class Creator(Adder):
    """Creates instances; needs a data shard and the control shards."""

    async def one(self, number: int) -> None:
        async with asyncio.timeout(5):
            client = self._runtime.client()
            await client.create_instance("Three", f"i{number}", params=self.key)


def spread(runtime: Any, count: int) -> list[str]:
    """A ledger's key for each data shard."""
    found: dict[str, str] = {}
    number = 0
    while len(found) < count:
        key = f"k{number}"
        found.setdefault(runtime.placement.shard_of(EntityRef("Ledger", key)), key)
        number += 1
    return [found[shard] for shard in sorted(found)]
