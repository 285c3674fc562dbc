"""What the simulated world is made of: its size and its deliberate bugs."""

from __future__ import annotations

from dataclasses import dataclass


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
