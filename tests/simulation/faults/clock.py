"""The wall clock of one machine is set, forward or back."""

from __future__ import annotations

from .base import Fault, Strike

_BY_MS = 3_000


def _befalls(strike: Strike) -> None:
    strike.world.step_clock(strike.shard(), strike.chance.randrange(2 * _BY_MS + 1) - _BY_MS)


FAULT = Fault("clock", ("clock set",), _befalls)
