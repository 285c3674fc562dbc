"""A shard's disk takes a hundred times as long for a while."""

from __future__ import annotations

from .base import Fault, Strike

_LASTS_S = 8.0
_TIMES = 100.0


def _befalls(strike: Strike) -> None:
    world, site = strike.world, strike.site()
    site.slow_until_s = world.loop.time() + strike.chance.random() * _LASTS_S
    site.slow_times = _TIMES * strike.chance.random()
    world.faults["slow disk"] += 1
    world.trace.note("slow disk", site.name, round(site.slow_times))


FAULT = Fault("slow", ("slow disk",), _befalls)
