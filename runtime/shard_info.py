"""An entity of every shard that tells how the shard does.

Its kind is "ShardInfo" and its key the shard's name, so that any process with a router can ask
any shard for its counters. It keeps nothing but the time of its last probe.
"""

from __future__ import annotations

from typing import Any, Protocol

from . import limits
from .entity import Context, DurableObject

SHARD_INFO_KIND = "ShardInfo"


class Report(Protocol):
    """What tells how a shard does; all of it plain data."""

    def statistics(self) -> dict[str, Any]:
        """A few counters."""

    async def figures(self) -> dict[str, Any]:
        """All figures of the shard, for metrics. Bounded, and does not hold the loop."""


class ShardInfo(DurableObject):
    """Answers for the shard it lives on.

    Args:
        env: see `Report`.
    """

    KIND = SHARD_INFO_KIND

    def __init__(self, ctx: Context, env: Report) -> None:
        super().__init__(ctx, env)
        self._probed_ms: int | None = None

    def statistics(self) -> dict[str, Any]:
        """Counters of the shard: calls, commits, rows, live entities, alarms."""
        found: dict[str, Any] = self.env.statistics()
        return found

    async def figures(self) -> dict[str, Any]:
        """All figures of the shard; see `api/figures.py`."""
        found: dict[str, Any] = await self.env.figures()
        return found

    async def probe(self) -> None:
        """Answer if the shard's store can commit: from time to time by a small write.

        The answer waits for that write as any answer does, so a disk that hangs, is full or has
        another owner is not answered for.
        """
        now_ms = self.ctx.clock.now_ms()
        probed_ms = self._probed_ms
        if probed_ms is None or not 0 <= now_ms - probed_ms < limits.READY_PROBE_MS:
            self._probed_ms = now_ms
            await self.ctx.storage.put("probed_ms", now_ms)
