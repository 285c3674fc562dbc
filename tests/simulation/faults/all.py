"""Everything is restarted at once."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    strike.world.crash_all(strike.down_s())


FAULT = Fault("all", ("all restarted",), _befalls)
