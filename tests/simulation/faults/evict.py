"""Entities that are idle leave memory, as they would after a while or under pressure."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    for shard in strike.world.sites:
        strike.world.evict_some(shard, 0.7)


FAULT = Fault("evict", ("evicted",), _befalls)
