"""When operations are due: times from a rate, even or at random. Pure.

In an open loop these times are fixed before anything is sent, so a server that stalls is not
spared what would have come meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..runtime.entropy import Entropy

EVEN, POISSON = "even", "poisson"
KINDS = (EVEN, POISSON)


def arrivals(
    kind: str, rate: float, seconds: float, entropy: Entropy, begin: float = 0.0
) -> Iterator[float]:
    """Seconds after the start, ascending and below `seconds`, at `rate` a second on average.

    Args:
        kind: `even`: at equal distances; `poisson`: each independent of the others, as many
            clients that know nothing of each other are.
        rate: more than 0.
        seconds: where they end.
        entropy: draws for `poisson`; a seeded one gives the same times again.
        begin: when the first is due, if they are even.
    """
    if kind == EVEN:
        number = 0
        while (at := begin + number / rate) < seconds:
            yield at
            number += 1
        return
    at = 0.0
    while True:
        at += -math.log(1.0 - entropy.random()) / rate
        if at >= seconds:
            return
        yield at


def ramp(first: float, growth: float, most: float) -> Iterator[float]:
    """Rates of a ramp: the first one, then each `growth` times the last, up to `most`."""
    rate = first
    while rate < most:
        yield rate
        rate *= growth
    yield most


def parts_of(total: int, parts: int) -> list[int]:
    """A whole number in parts that differ by one at most; their sum is the number."""
    base, odd = divmod(total, parts)
    return [base + (number < odd) for number in range(parts)]


def first(times: Iterator[float], count: int | None) -> Iterator[float]:
    """So many of them, or all."""
    for number, at in enumerate(times):
        if count is not None and number >= count:
            return
        yield at
