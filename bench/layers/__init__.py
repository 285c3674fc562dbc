"""Micro-benchmarks, one file a layer, so that a regression can be placed.

Each compares a layer with something bare that does the least of the same, in turns within one run:
the ratio is what to look at. `all` runs them.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from typing import NamedTuple

ROUNDS = 5


class Row(NamedTuple):
    """One comparison: microseconds for a unit of the layer, and of the bare thing.

    Attributes:
        layer: its name.
        what: the unit.
        us: of the layer.
        bare: what the bare thing is.
        bare_us: of that.
    """

    layer: str
    what: str
    us: float
    bare: str
    bare_us: float

    @property
    def ratio(self) -> float:
        """How many times the bare thing the layer costs."""
        return self.us / self.bare_us


async def in_turns(
    layer: Callable[[], Awaitable[float]],
    bare: Callable[[], Awaitable[float]],
    rounds: int = ROUNDS,
) -> tuple[float, float]:
    """Medians of both, measured in turns; the first turn warms up and does not count."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        found[0].append(await layer())
        found[1].append(await bare())
    return statistics.median(found[0][1:]), statistics.median(found[1][1:])
