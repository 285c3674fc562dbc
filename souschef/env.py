"""What the wiring gives a SousChef.

Frozen; one object serves all SousChefs of a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..runtime import limits


@dataclass(frozen=True)
class SousChefEnv:
    """Ports and settings.

    Attributes:
        epoch: the epoch of the shard; it numbers the incarnations of its SousChefs.
        linger_ms: how long an idle SousChef keeps its lease before it gives it back.
    """

    epoch: Callable[[], int]
    linger_ms: int = limits.LEASE_LINGER_MS
