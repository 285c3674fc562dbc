"""How a shard's SQLite file is taken over by a new owner.

Opening is one transaction: it checks that the file is ours, of a format we know and of this
shard, compares its pages with their checksums (see `pages`), upgrades an older format, makes or
checks the declared tables, raises the epoch and begins a lineage of commits (see `chain`). What is
none of ours is refused with `DataDirFormat`, what is damaged with `StoreDamaged`, unchanged.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence, Set
from pathlib import Path
from typing import NamedTuple

from . import limits
from .chain import Claim, Link, link_from
from .codec import unpack
from .errors import DataDirFormat
from .files import sync_folder
from .high_water import make_mark, mark_path, read_mark
from .pages import Pages, PagesDamaged, damaged
from .pages_sqlite import compare
from .schema_sqlite import APPLICATION_ID, META, STORE_FORMAT, SUMS_FORMAT, declare, sql_of
from .tables import Key, Table
from .upgrades import PENDING, StoreUpgrade, way_from

_SQLITE_MIN = (3, 37, 0)  # STRICT tables


class Prepared(NamedTuple):
    """A shard that was taken over.

    Attributes:
        epoch: the new one.
        commit: the last one before it.
        link: its first link, of the new lineage.
        unsettled: pages that the main file may not have as yet.
    """

    epoch: int
    commit: int
    link: Link
    unsettled: Set[int] = frozenset()

    @property
    def claim(self) -> Claim:
        """What may be claimed now."""
        return Claim(self.epoch, self.commit, self.link.lineage)


def prepare(
    connection: sqlite3.Connection,
    path: Path,
    name: str,
    tables: list[Table],
    upgrades: Sequence[StoreUpgrade],
    lineage: bytes,
    pages: Pages,
) -> Prepared:
    """Take the shard over: upgrade it, check or make its tables, raise its epoch; all or nothing.

    There is a mark beside the store before it can be seen to have a chain, and there are checksums
    before it can be seen to have them.
    """
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        raise DataDirFormat(
            f"SQLite {sqlite3.sqlite_version} is too old; "
            f"{'.'.join(map(str, _SQLITE_MIN))} is the oldest that can keep a store."
        )
    _check_ours(connection, path, name, upgrades)  # before anything in the file is changed
    connection.execute("PRAGMA journal_mode=WAL").close()
    connection.execute("BEGIN IMMEDIATE")
    try:
        way = _check_ours(connection, path, name, upgrades)
        fresh = way is None
        has_sums = way is not None and all(upgrade.to != SUMS_FORMAT for upgrade in way)
        unsettled = _compared(connection, path, pages) if has_sums else set()
        if way is None:
            _create(connection, name)
        declare(connection, path, PENDING)
        _upgrade(connection, way or (), upgrades)
        for table in tables:
            declare(connection, path, table)
        if not mark_path(path).exists():
            make_mark(path)
        if not has_sums:
            pages.make(0, 0)
        prepared = begin_lineage(connection, path, lineage)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if fresh:
        sync_folder(path.parent)
    return prepared._replace(unsettled=unsettled)


def _compared(connection: sqlite3.Connection, path: Path, pages: Pages) -> set[int]:
    """Compare the pages; gives those that the main file may not have as yet."""
    try:
        return compare(connection, pages, read_mark(path))
    except PagesDamaged as error:
        raise damaged(path, str(error)) from None


def begin_lineage(connection: sqlite3.Connection, path: Path, lineage: bytes) -> Prepared:
    """Raise the epoch and begin its lineage, within a transaction."""
    connection.execute("UPDATE shard SET epoch = epoch + 1")
    epoch, commit, kept = connection.execute(
        "SELECT epoch, commit_seq, chain FROM shard"
    ).fetchall()[0]
    former = link_from(kept)
    base, base_bytes = (former.base, former.base_bytes) if former is not None else (0, 0)
    if _log_is_empty(path):  # the main file has all
        base, base_bytes = commit, path.stat().st_size
    link = Link(lineage, base, base_bytes)
    connection.execute("UPDATE shard SET chain = ?", (link.packed(),))
    connection.execute("INSERT INTO shard_openings VALUES (?, ?, ?)", (epoch, lineage, commit))
    connection.execute(
        "DELETE FROM shard_openings WHERE epoch <= ?", (epoch - limits.OPENINGS_KEPT_MAX,)
    )
    return Prepared(epoch, commit, link)


def _log_is_empty(path: Path) -> bool:
    """Whether the main file is all there is. Within a transaction that has the write lock: nobody
    adds to the log, and nobody removes it while this connection has it open."""
    try:
        return os.stat(f"{path}-wal").st_size == 0
    except FileNotFoundError:
        return True


def _upgrade(
    connection: sqlite3.Connection, way: Sequence[StoreUpgrade], upgrades: Sequence[StoreUpgrade]
) -> None:
    """Lead the store to the newest format. A step begins when those before it have ended, what
    they had left for the background included."""
    for upgrade in way:
        finish_pending(connection, upgrades)
        for statement in upgrade.before:
            connection.execute(statement)
        if upgrade.after is not None:
            connection.execute("INSERT INTO pending_upgrades VALUES (?, x'')", (upgrade.to,))
        connection.execute("UPDATE shard SET format = ?", (upgrade.to,))


def finish_pending(connection: sqlite3.Connection, upgrades: Sequence[StoreUpgrade]) -> None:
    """Do at once, in the open transaction, what is left for the background."""
    parts = {upgrade.to: upgrade.after for upgrade in upgrades}
    for number, progress in connection.execute(
        "SELECT format, progress FROM pending_upgrades ORDER BY format"
    ).fetchall():
        rows = parts[number]
        assert rows is not None
        sql = sql_of(rows.table)
        after: Key = unpack(progress, tuple) if progress else ()
        while True:
            scan = sql.scan(0, bool(after), False)
            page = connection.execute(scan, (*after, rows.batch)).fetchall()
            for row in page:
                changed = rows.change(row)
                if changed is not None:
                    connection.execute(sql.upserts[1], changed)
            if len(page) < rows.batch:
                break
            after = rows.table.key_of(page[-1])
        connection.execute("DELETE FROM pending_upgrades WHERE format = ?", (number,))


def _check_ours(
    connection: sqlite3.Connection, path: Path, name: str, upgrades: Sequence[StoreUpgrade]
) -> list[StoreUpgrade] | None:
    """The upgrades that it needs, None if the file is fresh; refuses it if it is not ours."""
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master").fetchall()}
    mark = connection.execute("PRAGMA application_id").fetchall()[0][0]
    if not names and mark == 0:
        return None
    if mark != APPLICATION_ID or "shard" not in names:
        raise DataDirFormat(f"{path} is a database, but no toque store.")
    found = connection.execute("SELECT format, name FROM shard").fetchall()
    if len(found) != 1:
        raise DataDirFormat(f"{path} is damaged: it does not say which shard it holds.")
    number, recorded = found[0]
    if number > STORE_FORMAT:
        raise DataDirFormat(
            f"{path} has store format {number}; this version knows formats up to {STORE_FORMAT}. "
            "Use the version that wrote it, or a newer one.",
            {"found": number, "known": STORE_FORMAT},
        )
    way = way_from(upgrades, number, STORE_FORMAT)
    if way is None:
        raise DataDirFormat(
            f"{path} has the older store format {number} and must be upgraded first.",
            {"found": number, "known": STORE_FORMAT},
        )
    if recorded != name:
        raise DataDirFormat(f"{path} holds shard {recorded!r}, not {name!r}.")
    return way


def _create(connection: sqlite3.Connection, name: str) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for statement in META:
        connection.execute(statement)
    connection.execute("INSERT INTO shard VALUES (1, ?, ?, 0, 0, NULL)", (STORE_FORMAT, name))
