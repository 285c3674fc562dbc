"""What the simulated world is made of: its size, its deliberate bugs, its processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toque.api.shards import OpenShard
from toque.runtime.simprocess import SimProcess

from .clocks import MachineClock
from .stores import SimStore


class FrontEndDied(Exception):
    """The process that asked is gone; whether the call took effect is not known."""


@dataclass(frozen=True)
class Sabotage:
    """Deliberate faults; each must be found by a checker."""

    no_output_gate: bool = False
    no_epoch_check: bool = False
    no_announce_alarm: bool = False
    grant_outside_ledger: bool = False
    unfenced_attempts: bool = False


@dataclass(frozen=True)
class Layout:
    """The size of the world."""

    data_shards: int = 2
    control_shards: int = 1
    front_ends: int = 1
    limit: int = 5
    souschefs: int = 2
    commit_ms: float = 2.0
    gatekeeper_calls: int = 500
    spread: tuple[int, int] = (500, 250_000)


class Owner:
    """One life of a shard."""

    opened: OpenShard
    store: SimStore

    def __init__(self, shard: str, process: SimProcess, clock: MachineClock) -> None:
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
