"""An entity fails and is activated anew by the next event."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    strike.world.reset_one(strike.shard())


FAULT = Fault("reset", ("reset",), _befalls)
