"""Rows that checkers look at after every commit, read again only if a commit has changed them.

Which tables a commit writes says its batch, before it is on disk; after anything else that befalls
a file (an opening, a crash) all of them are read again. That nothing changed unseen is checked in
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

Rows = Callable[[str, str], list[Any]]
TableRows = Callable[[str], list[Any]]
"""The rows of a table of `COLUMNS`."""
Changed = Collection[str] | None
"""Names of tables; None: any may have changed."""

COLUMNS = {
    "account_old_planes": "entity, plane",
    "gatekeeper_leases": "entity, souschef, ledger, incarnation, seq",
    "gatekeeper_limits": "entity, workflow, running_max",
    "souschef_held": "entity, key, run_id, turn",
    "souschef_order": "entity, lane, at_ms, key",
    "souschef_parked": "entity, state, lane, at_ms, key, run_id, turn",
    "souschef_state": "entity, target, awakened, fresh, waiting, paused, live, partial",
}
"""What is kept, of shards of the control plane."""


class Kept:
    """See the module.

    Args:
        rows: committed rows of a shard.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: dict[str, dict[str, list[Any]]] = {}

    def changed(self, shard: str, tables: Changed) -> TableRows:
        """A shard's tables as they are now that a commit has changed some of them."""
        known = self._known.setdefault(shard, {})
        for table in list(known) if tables is None else tables:
            known.pop(table, None)

        def rows_of(table: str) -> list[Any]:
            rows = known.get(table)
            if rows is None:
                rows = known[table] = self._rows(shard, f"SELECT {COLUMNS[table]} FROM {table}")
            return rows

        return rows_of

    def unseen(self) -> list[str]:
        """Which tables are otherwise on disk than they were seen: none, or a checker is blind."""
        return [
            f"{shard}: {table}"
            for shard, known in self._known.items()
            for table, rows in known.items()
            if rows != self._rows(shard, f"SELECT {COLUMNS[table]} FROM {table}")
        ]


def touches(changed: Changed, *tables: str) -> bool:
    """Whether any of the tables may have changed."""
    return changed is None or any(table in changed for table in tables)
