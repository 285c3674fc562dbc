"""What an upgrade of a format is: numbered, described, and run before or after deploy. Pure.

The runtime knows its own formats only; upgrades of older ones come in as an argument, from above.
Each leads from one format to the next.

* *Before* deploy: statements in the transaction that opens the store for the new code, before any
  entity lives. All or nothing.
* *After* deploy: rows of one table, looked at in key order while entities live, some in each
  commit, which also notes how far it has come. Who is killed goes on from there. Until it has
  ended, the code must read rows of both forms; it writes the new one only.

What ran before a kill may run again, so every part is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from . import limits
from .tables import Row, Table

PENDING = Table("pending_upgrades", (("format", "INTEGER"), ("progress", "BLOB")), key_size=1)
"""Background parts that have not ended, by format; the key of the last row that was looked at."""


@dataclass(frozen=True)
class Rows:
    """The part of an upgrade that runs after deploy.

    Attributes:
        table: the table, as it is in the new format.
        change: gives a row in its new form, with the same key; None: it is as it should be.
        batch: how many rows one commit looks at.
    """

    table: Table
    change: Callable[[Row], Row | None]
    batch: int = limits.UPGRADE_ROWS_PER_COMMIT


@dataclass(frozen=True)
class StoreUpgrade:
    """Leads a store to format `to` from the one before.

    Attributes:
        to: the format it leads to.
        what: what it changes, for people.
        before: statements that run before deploy.
        after: rows that are changed after deploy.
    """

    to: int
    what: str
    before: tuple[str, ...] = ()
    after: Rows | None = None


@dataclass(frozen=True)
class DirUpgrade:
    """Leads a data directory to format `to` from the one before; always before deploy.

    Attributes:
        to: the format it leads to.
        what: what it changes, for people.
        change: the content of `toque.json` in the new format, from that in the old one.
    """

    to: int
    what: str
    change: Callable[[dict[str, Any]], dict[str, Any]]


U = TypeVar("U", StoreUpgrade, DirUpgrade)


def way_from(upgrades: Sequence[U], found: int, wanted: int) -> list[U] | None:
    """The upgrades that lead from one format to another, in order; None: one is missing."""
    by_format = {upgrade.to: upgrade for upgrade in upgrades}
    wanted_formats = range(found + 1, wanted + 1)
    if not all(number in by_format for number in wanted_formats):
        return None
    return [by_format[number] for number in wanted_formats]
