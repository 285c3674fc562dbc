"""Every upgrade of a format, by number. What is here stays as it is: old directories come by it.

Statements are written out in full, since the tables that the code declares go on changing.
"""

from __future__ import annotations

from ..runtime.upgrades import DirUpgrade, StoreUpgrade

STORE_UPGRADES: tuple[StoreUpgrade, ...] = (
    StoreUpgrade(
        to=2,
        what="commits form a chain, and a mark beside the store says how far it was acknowledged",
        before=(
            "ALTER TABLE shard DROP COLUMN high_water",
            "CREATE TABLE IF NOT EXISTS shard_openings (epoch INTEGER PRIMARY KEY, "
            "chain BLOB NOT NULL, after INTEGER NOT NULL) STRICT",
            "CREATE TABLE IF NOT EXISTS shard_losses (epoch INTEGER PRIMARY KEY, "
            "at_ms INTEGER NOT NULL, what TEXT NOT NULL) STRICT",
        ),
    ),
    StoreUpgrade(
        to=3,
        what="every page has a checksum, in a file beside the store",  # made as the store opens
    ),
)
"""Of stores, in order."""

DIR_UPGRADES: tuple[DirUpgrade, ...] = (
    DirUpgrade(
        to=2,
        what="its stores may have format 2: older versions refuse it as a whole, before any store",
        change=dict,
    ),
    DirUpgrade(
        to=3,
        what="its stores may have format 3: older versions refuse it as a whole, before any store",
        change=dict,
    ),
)
"""Of data directories, in order."""
