"""Micro-benchmarks, one file a layer, so that a regression can be placed.

Each compares a layer with something bare that does the least of the same, in turns within one run:
the ratio is what to look at. `all` runs them.
"""

from __future__ import annotations

import statistics
import time
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


Sample = tuple[float, ...]
"""Figures of one turn, in microseconds."""


async def in_turns(
    layer: Callable[[], Awaitable[Sample]],
    bare: Callable[[], Awaitable[Sample]],
    rounds: int = ROUNDS,
) -> list[tuple[float, float]]:
    """Medians of each figure, `(of the layer, of the bare thing)`, measured in turns.

    The first turn warms up and does not count.
    """
    found: tuple[list[Sample], list[Sample]] = ([], [])
    for _ in range(rounds + 1):
        found[0].append(await layer())
        found[1].append(await bare())
    medians = [
        [statistics.median(figure) for figure in zip(*turns[1:], strict=True)] for turns in found
    ]
    return list(zip(*medians, strict=True))


class Watch:
    """Times units of work one by one: the median unit, and the CPU of this process for each.

    Others who use the machine lengthen some units, not the median one, and no unit's CPU.
    """

    def __init__(self) -> None:
        self._took: list[float] = []
        self._cpu = time.process_time()
        self._start = time.perf_counter()

    def unit(self) -> None:
        """A unit has ended, and the next begins."""
        now = time.perf_counter()
        self._took.append(now - self._start)
        self._start = now

    def sample(self) -> Sample:
        """Wall time of the median unit, CPU of a unit."""
        cpu = (time.process_time() - self._cpu) / len(self._took)
        return statistics.median(self._took) * 1e6, cpu * 1e6
