"""What the wiring gives a SousChef.

Frozen; one object serves all SousChefs of a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..runtime import limits
from ..runtime.histogram import Histogram
from .pacing import Pacer

TOTALS = ("grants", "refusals", "calls", "calls_failed", "pokes")


class Totals:
    """What the SousChefs of a shard have done since it was opened, those out of memory included.

    Attributes:
        grants, refusals: slots given to instances; of those, not taken.
        calls, calls_failed: to Gatekeepers.
        pokes: instances asked how they stand.
        late_ms: how late instances woke by their timers.
    """

    __slots__ = ("calls", "calls_failed", "grants", "late_ms", "pokes", "refusals")

    def __init__(self) -> None:
        self.grants = self.refusals = self.calls = self.calls_failed = self.pokes = 0
        self.late_ms = Histogram()

    def copy(self) -> Totals:
        """The same counts, to add to; the histogram is shared."""
        found = Totals()
        for name in TOTALS:
            setattr(found, name, getattr(self, name))
        found.late_ms = self.late_ms
        return found


@dataclass(frozen=True)
class SousChefEnv:
    """Ports and settings.

    Attributes:
        epoch: the epoch of the shard; it numbers the incarnations of its SousChefs.
        linger_ms: how long an idle SousChef keeps its lease before it gives it back.
        totals: what all SousChefs of the shard have done.
        pacer: keeps their calls to Gatekeepers apart; None: each calls when it likes.
    """

    epoch: Callable[[], int]
    linger_ms: int = limits.LEASE_LINGER_MS
    totals: Totals = field(default_factory=Totals)
    pacer: Pacer | None = None
