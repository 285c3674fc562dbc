"""An owner hangs, is followed, and wakes; or wakes before anyone has come."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    chance = strike.chance
    hang_s, rest_s = chance.random() * 10, chance.random() * 10
    strike.world.usurp(strike.shard(), hang_s, 0.01 + rest_s, chance.random() * 15)


FAULT = Fault("pause", ("pause",), _befalls)
