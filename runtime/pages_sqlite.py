"""Compares a store's pages when it is opened, and seals it: the checksums follow the main file.

Everything that may write to a store goes through here before its connection closes, since the last
connection that closes copies the log into the main file.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import limits
from .chain import Claim
from .high_water import read_mark
from .pages import Pages, PagesDamaged, sums_path
from .schema_sqlite import Synchronous, connect_writer

_log = logging.getLogger(__name__)

_STANDING = "SELECT epoch, commit_seq FROM shard"


def standing(connection: sqlite3.Connection | sqlite3.Cursor) -> tuple[int, int]:
    """The epoch and the number of the last commit."""
    epoch, commit = connection.execute(_STANDING).fetchall()[0]
    return epoch, commit


def seal(connection: sqlite3.Connection | sqlite3.Cursor, pages: Pages) -> None:
    """Have the checksums of all that is in the log; takes the write lock meanwhile.

    Raises:
        sqlite3.Error: the lock can't be had, or the disk failed.
        PagesDamaged: the checksums are gone, or were cut.
        OSError: the disk failed.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        pages.update(*standing(connection))
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def changing(path: Path, synchronous: Synchronous = "FULL") -> Iterator[sqlite3.Connection]:
    """A connection that writes to a store that nobody else has open. It must not checkpoint: that
    is done at its end.

    Raises:
        sqlite3.Error, PagesDamaged, OSError: as `seal`.
    """
    pages = Pages(path, synchronous != "OFF")
    try:
        connection = connect_writer(path, synchronous)
        try:
            if sums_path(path).exists():
                connection.execute("BEGIN IMMEDIATE")
                if not _made_anew(connection, pages, read_mark(path)):
                    pages.update(*standing(connection))  # a commit may begin the log anew
                connection.execute("ROLLBACK")
            yield connection
            if sums_path(path).exists():
                if connection.in_transaction:
                    connection.execute("COMMIT")
                seal(connection, pages)
        finally:
            connection.close()
    finally:
        pages.close()


def compare(connection: sqlite3.Connection, pages: Pages, claim: Claim | None) -> set[int]:
    """Compare the pages of a store that is being opened, up to a bound. Under the write lock.

    Args:
        connection, pages: the store.
        claim: what its mark claims.

    Returns:
        The pages that the main file may not have as yet.

    Raises:
        PagesDamaged: one is damaged, or nobody can tell.
        OSError: the disk failed.
    """
    if _made_anew(connection, pages, claim):
        return set()
    log, head = pages.log(), pages.head()
    skip = log.latest.keys()
    most = limits.PAGES_AT_OPENING_BYTES // log.page_bytes
    wrong = pages.differing(1, most, skip)
    if head is not None and head.suspect > most:
        wrong += pages.differing(head.suspect, 1, skip)
    if wrong:
        pages.judge(wrong, skip)
    if head is None or log.is_copied:
        pages.update(*standing(connection))
    return set() if log.is_copied else set(skip)


def _made_anew(connection: sqlite3.Connection, pages: Pages, claim: Claim | None) -> bool:
    """Make the checksums anew if they are behind: the last program that closed the store was none
    of ours, and wrote its log back. All that was acknowledged is in the main file, and perhaps a
    commit more: an owner may end between a commit and its mark."""
    if not _is_behind(connection, pages):
        return False
    now = standing(connection)
    if claim is None or (claim.epoch, claim.commit) > now:
        return False
    _log.warning("another program wrote a log back; the checksums of the pages are made anew")
    pages.make(*now)
    return True


def _is_behind(connection: sqlite3.Connection, pages: Pages) -> bool:
    head = pages.head()
    if head is None or pages.log().frames:
        return False
    return (head.epoch, head.commit) < standing(connection)


def damage_of(path: Path, connection: sqlite3.Connection) -> str | None:
    """What is wrong with the pages of a store that nobody has open; None: nothing. All are looked
    at, and nothing is changed.

    Raises:
        OSError: the disk failed.
    """
    pages = Pages(path)
    connection.execute("BEGIN")
    try:
        standing(connection)
        skip = pages.log().latest.keys()
        if _is_behind(connection, pages):
            return None  # the next opening decides
        wrong = pages.differing(1, pages.main_pages(), skip)
        pages.judge(wrong, skip, mend=False)
    except PagesDamaged as error:
        return str(error)
    finally:
        connection.execute("ROLLBACK")
        pages.close()
    return None
