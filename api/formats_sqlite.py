"""The formats of a data directory and its stores.

Read without a lock and without changing anything, so that one in use may be looked at too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from ..runtime.datadir import DIR_FORMAT, SETTINGS_FILE, SHARDS_FOLDER, read_format
from ..runtime.errors import DataDirFormat
from ..runtime.schema_sqlite import APPLICATION_ID, STORE_FORMAT, connect_reader


class Found(msgspec.Struct, frozen=True):
    """A directory or a store.

    Attributes:
        place: the file that tells.
        format: its format; 0: it does not say.
        state: how it stands to the newest format, for people.
        is_fine: this version can open it.
    """

    place: str
    format: int
    state: str
    is_fine: bool


def formats_of(folder: Path) -> list[Found]:
    """The directory, then its stores by name.

    Raises:
        DataDirFormat: it is no data directory.
    """
    if not (folder / SETTINGS_FILE).exists():
        raise DataDirFormat(f"{folder} is no data directory: it has no {SETTINGS_FILE}.")
    found = [_found(folder / SETTINGS_FILE, read_format(folder), DIR_FORMAT)]
    for path in sorted((folder / SHARDS_FOLDER).glob("*.sqlite")):
        try:
            with closing(connect_reader(path)) as store:
                found += _store(path, store)
        except sqlite3.Error as error:
            found.append(Found(str(path), 0, f"it can't be read: {error}", False))
    return found


def _store(path: Path, store: sqlite3.Connection) -> Iterator[Found]:
    if store.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        yield Found(str(path), 0, "it is no toque store", False)
        return
    (number,) = store.execute("SELECT format FROM shard").fetchone()
    each = _found(path, number, STORE_FORMAT)
    left = []
    if store.execute("SELECT 1 FROM sqlite_master WHERE name = 'pending_upgrades'").fetchone():
        left = [str(row[0]) for row in store.execute("SELECT format FROM pending_upgrades")]
    if left:
        state = f"newest; rows are still being upgraded to format {', '.join(left)}"
        each = Found(each.place, number, state, each.is_fine)
    yield each


def _found(path: Path, number: int, newest: int) -> Found:
    if number == newest:
        return Found(str(path), number, "newest", True)
    if 0 < number < newest:
        return Found(str(path), number, "older: the next start upgrades it", True)
    return Found(str(path), number, "newer: use the version that wrote it", False)
