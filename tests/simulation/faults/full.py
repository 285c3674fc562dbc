"""A disk is full for a while: SQLite itself refuses what needs another page, in each owner."""

from __future__ import annotations

from .base import Fault, Strike

_LASTS_S = 12.0


def _befalls(strike: Strike) -> None:
    strike.world.fill_disk(strike.shard(), 1.0 + strike.chance.random() * _LASTS_S)


FAULT = Fault("full", ("a commit fails, disk full",), _befalls)
