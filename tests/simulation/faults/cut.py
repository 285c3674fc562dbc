"""An event of a SousChef is cut short: after some of its writes its store has no room for more."""

from __future__ import annotations

from .base import Fault, Strike

_WRITES = 8


def _befalls(strike: Strike) -> None:
    shards = strike.world.placement.control_names()
    shard = shards[strike.chance.randrange(len(shards))]
    strike.world.cut_short(shard, 1 + strike.chance.randrange(_WRITES))


FAULT = Fault("cut", ("a SousChef's event is cut short",), _befalls)
