"""How many slots a SousChef can keep busy for a period. Pure.

Of instances that hold a slot for days each wants one. Of those that hold it for 50 ms a slot
serves twenty in a second, so a queue of twenty is worth one slot and not twenty: the others would
idle until the next report. How long a slot is held follows from how much slot time was used and
how many slots were given back (Little's law); until that is known each instance counts as one.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from ..runtime import limits

_KNOWN_FROM = 0.01
"""Fewer slots that were given back tell nothing: it is too long ago."""


_LEFT_TO_WAIT = 0.1
"""Of a slot's time: less than that is not worth a slot of its own, and waits its turn."""


class Wanted(NamedTuple):
    """Slots that can be kept busy: with what is there, and with what is likely to come."""

    needs: int
    expects: int


class Demand:
    """Watches slots, queue and time.

    Args:
        now_s: any clock that does not go back.
    """

    __slots__ = (
        "_arrived",
        "_asked_s",
        "_at_s",
        "_held_s",
        "_holding",
        "_lately",
        "_left",
        "_released",
        "_seen",
    )

    def __init__(self, now_s: float) -> None:
        self._at_s = self._asked_s = now_s
        self._holding = self._arrived = self._released = 0
        self._seen = 0  # arrivals until the last report
        self._held_s = self._left = 0.0  # slot time, and slots given back; older ones count less
        self._lately = 0.0  # arrivals in a period; one without any does not end the expectation

    def note(self, holding: int, arrived: int, released: int, now_s: float) -> None:
        """So many slots are in use from now on; in all so many came, and gave slots back."""
        self._held_s += self._holding * max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        self._holding = holding
        self._arrived = arrived
        self._left += released - self._released
        self._released = released

    def ask(self, queued: int, period_s: float, now_s: float) -> Wanted:
        """What to ask for; called once a period."""
        self.note(self._holding, self._arrived, self._released, now_s)
        elapsed_s = max(0.001, now_s - self._asked_s)
        self._asked_s = now_s
        arrivals = (self._arrived - self._seen) * period_s / elapsed_s
        self._seen = self._arrived
        part = 1 / limits.DEMAND_PERIODS
        self._lately = max(arrivals, self._lately * (1 - part) + arrivals * part)
        have = self._holding + queued
        busy = 1.0  # periods that an instance keeps a slot busy, at most one
        if self._left >= _KNOWN_FROM:
            busy = min(1.0, self._held_s / self._left / period_s)
        self._held_s /= 2
        self._left /= 2
        if busy == 1.0:
            return Wanted(have, have)
        # What runs on after the period, and what has run on into it, are about the same.
        work = queued + max(arrivals, self._holding)
        needs = min(have, max(1, ceil(work * busy - _LEFT_TO_WAIT)))
        expects = max(1, ceil(self._lately * busy - _LEFT_TO_WAIT)) if self._lately >= part else 0
        return Wanted(needs, max(needs, expects))
