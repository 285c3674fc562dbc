"""A second owner opens a shard while the first works on."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    strike.world.usurp(strike.shard(), 0.01, 0.0, strike.chance.random() * 20)


FAULT = Fault("zombie", ("zombie", "fenced"), _befalls)
