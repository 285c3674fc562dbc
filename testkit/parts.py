"""What a simulated world is made of: its processes, and the places that they come to.

Plain data: who changes it is the world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..api.shards import OpenShard
from ..runtime.simloop import LoopClock
from ..runtime.simprocess import SimProcess
from .store import SimStore


class FrontEndDied(Exception):
    """The process that asked is gone; whether the call took effect is not known."""


class Owner:
    """One life of a shard."""

    opened: OpenShard
    store: SimStore

    def __init__(self, shard: str, process: SimProcess, clock: LoopClock) -> None:
        self.shard = shard
        self.process = process
        self.clock = clock
        self.fenced = False

    def take(self, opened: OpenShard, store: SimStore) -> None:
        """It has opened the shard."""
        self.opened = opened
        self.store = store


@dataclass
class Site:
    """A shard: its owner, those that think they are, and how it is to crash."""

    name: str
    owner: Owner | None = None
    zombies: list[Owner] = field(default_factory=list)
    lives: int = 0
    commits: int = 0
    crash_at: dict[int, tuple[str, float]] = field(default_factory=dict)
    failing: float | None = None
    full_until_s: float = 0.0
    slow_until_s: float = 0.0
    slow_times: float = 1.0


@dataclass(eq=False)
class FrontEnd:
    """A process that clients talk to."""

    name: str
    process: SimProcess
    router: Any = None
    plane: Any = None
