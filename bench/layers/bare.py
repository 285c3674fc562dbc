"""What layers are compared with: commits to an SQLite file in WAL mode, fsync on each."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from . import Sample, Watch

VALUE = b"v" * 150


class BareStore:
    """One connection to a file of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY, value BLOB)")
        self._next = 0

    def commits(self, rows: int, times: int) -> Sample:
        """Wall time and CPU of a commit of so many new rows."""
        execute = self._connection.execute
        watch = Watch()
        for _ in range(times):
            execute("BEGIN IMMEDIATE")
            values = [(self._next + n, VALUE) for n in range(rows)]
            self._connection.executemany("INSERT INTO rows VALUES (?, ?)", values)
            execute("COMMIT")
            self._next += rows
            watch.unit()
        return watch.sample()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
