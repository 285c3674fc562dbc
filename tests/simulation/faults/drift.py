"""Each machine's wall clock has an error of its own, and goes too fast or too slowly."""

from __future__ import annotations

from toque.runtime.entropy import Entropy

from ..world import World
from .base import Fault

_SKEW_MS = 2_000
_DRIFT_PER_MILLE = 20


def _begins(world: World, chance: Entropy) -> None:
    def error() -> tuple[int, float]:
        world.faults["a clock of its own"] += 1
        skew_ms = chance.randrange(2 * _SKEW_MS + 1) - _SKEW_MS
        return skew_ms, (chance.random() * 2 - 1) * _DRIFT_PER_MILLE / 1000

    world.clock_error = error


FAULT = Fault("drift", ("a clock of its own",), begins=_begins)
