"""A front end dies with all that it was asked, and another one takes its place."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    strike.world.crash_front_end(strike.chance.randrange(8))


FAULT = Fault("front", ("front end died",), _befalls)
