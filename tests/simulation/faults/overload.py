"""What a shard may have waiting is so little that it is overloaded now and then."""

from __future__ import annotations

from toque.runtime.entropy import Entropy

from ..world import World
from .base import Fault, Strike

_ROWS = (20, 60, 120)
_CALLS = 80


def _begins(world: World, chance: Entropy) -> None:
    world.batch_rows_max = _ROWS[chance.randrange(len(_ROWS))]


def _befalls(strike: Strike) -> None:
    """Many ask one shard at once."""
    world = strike.world
    names = world.placement.data_names()
    shard = names[strike.chance.randrange(len(names))]
    front = world.fronts[strike.chance.randrange(len(world.fronts))]
    world.flood(front, shard, _CALLS + strike.chance.randrange(_CALLS))


FAULT = Fault("overload", ("flooded", "overloaded"), _befalls, begins=_begins)
