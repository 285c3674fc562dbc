"""An entity of every shard that tells how the shard does.

Its kind is "ShardInfo" and its key the shard's name, so that any process with a router can ask
any shard for its counters. It keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .entity import Context, DurableObject

SHARD_INFO_KIND = "ShardInfo"


class ShardInfo(DurableObject):
    """Answers for the shard it lives on.

    Args:
        env: gives the figures of the shard's host.
    """

    KIND = SHARD_INFO_KIND

    def __init__(self, ctx: Context, env: Callable[[], dict[str, Any]]) -> None:
        super().__init__(ctx, env)

    def statistics(self) -> dict[str, Any]:
        """Counters of the shard: calls, commits, rows, live entities, alarms, epoch."""
        return dict(self.env())
