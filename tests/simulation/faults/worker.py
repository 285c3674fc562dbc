"""Instances run in workers, which do not start, hang, are killed, or end themselves."""

from __future__ import annotations

from toque.runtime.entropy import Entropy

from ..workers import Workers
from ..world import World
from .base import Fault, Strike

_TRUSTED = ("acme", "zeta", "nobody")
_HANGS_S = 18.0


def _begins(world: World, chance: Entropy) -> None:
    trusted = _TRUSTED[chance.randrange(len(_TRUSTED))]
    world.workers = Workers(trusted, world.entropy("workers"), fails=chance.randrange(40))


def _befalls(strike: Strike) -> None:
    shards = strike.world.placement.data_names()
    shard = shards[strike.chance.randrange(len(shards))]
    if strike.chance.randrange(3):
        strike.world.end_worker(shard)
    else:
        strike.world.hang_worker(shard, strike.chance.random() * _HANGS_S)


FAULT = Fault(
    "worker",
    (
        "a worker started",
        "a worker did not start",
        "a worker ended",
        "a worker hangs",
        "user code exits",
    ),
    _befalls,
    begins=_begins,
    modes=("exit",),
)
