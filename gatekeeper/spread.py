"""Over how many SousChefs a workflow's new instances are spread. Pure.

Looked at once a second while creates come. A workflow has as many as its rate of creates, and its
queue, need at so many for each. It grows when two looks in a row need more, so that a burst of
a moment changes nothing, and shrinks when for SPREAD_SHRINK_LOOKS looks less would have done with
a quarter to spare; so a rate that swings around a bound moves nothing. Only new instances follow:
nobody is moved and nothing is merged. Growth ends where one more would stretch the cycle of all.
"""

from __future__ import annotations

from typing import NamedTuple

from ..runtime import limits


class SpreadRules(NamedTuple):
    """What one SousChef is for.

    Attributes:
        creates_per_second: of its workflow.
        queued: instances of it that wait for a slot.
        least: no workflow has fewer.
    """

    creates_per_second: int = limits.SOUSCHEF_CREATES_PER_SECOND
    queued: int = limits.SOUSCHEF_QUEUED
    least: int = 1


class Spread:
    """One workflow.

    Args:
        rules: what one SousChef is for.
        souschefs: over how many it is spread now.
    """

    __slots__ = ("_calm", "_looked_ms", "_peak", "_rules", "_wanted", "souschefs")

    def __init__(self, rules: SpreadRules, souschefs: int) -> None:
        self.souschefs = souschefs
        self._rules = rules
        self._looked_ms: int | None = None
        self._wanted = 0  # by the last look
        self._calm = 0  # looks in a row that needed less
        self._peak = 0  # the most that any of them needed

    def look(self, rate_milli: int, queued: int, spare: int, now_ms: int) -> bool:
        """Take a look, once a second at most; gives whether the number changed.

        Args:
            rate_milli: creates that arrive, in thousandths per second.
            queued: instances that wait for a slot.
            spare: how many more SousChefs the account may have.
            now_ms: the time.
        """
        if self._looked_ms is not None and 0 <= now_ms - self._looked_ms < limits.SPREAD_LOOK_MS:
            return False
        self._looked_ms = now_ms
        need, before = self._need(rate_milli, queued), self._wanted
        self._wanted = need
        grown = min(need, before, self.souschefs + max(0, spare))
        if grown > self.souschefs:
            self._set(grown)
            return True
        roomy = self._need(rate_milli * 4 // 3, queued * 4 // 3)
        if roomy >= self.souschefs:
            self._calm = self._peak = 0
            return False
        self._calm += 1
        self._peak = max(self._peak, roomy)
        if self._calm < limits.SPREAD_SHRINK_LOOKS:
            return False
        self._set(self._peak)
        return True

    def _need(self, rate_milli: int, queued: int) -> int:
        by_rate = -(-rate_milli // (1000 * self._rules.creates_per_second))
        by_queue = -(-queued // self._rules.queued)
        most = limits.SOUSCHEFS_PER_WORKFLOW_MAX
        return min(most, max(self._rules.least, by_rate, by_queue))

    def _set(self, souschefs: int) -> None:
        self.souschefs = souschefs
        self._calm = self._peak = 0
