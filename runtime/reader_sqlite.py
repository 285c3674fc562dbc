"""Reads of a shard's file: at once on the loop, or through a thread for long queries.

Both connections are read-only, never checkpoint, and hold no snapshot once a read has returned.
A point read at once takes some 5 us; a hop to a thread and back takes 100 us and more, and leaves
the loop free meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiosqlite

from .errors import InvalidArgument, StoreFailed
from .schema_sqlite import connect_reader, reader_uri
from .tables import Row

_BAD_PARAMETERS = (
    OverflowError,
    UnicodeEncodeError,
    TypeError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
_DISK_FAILED = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_INTERRUPT_AGAIN_S = 0.02


class DiskFailed(StoreFailed):
    """A read failed because of the disk: what the shard shows can't be trusted."""

    code = "store.read_failed"


class Reader:
    """The read-only connections of a store.

    Args:
        path: the shard's file, which its writer holds open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect_reader(path)
        self._cursor = self._connection.cursor()
        self._threaded: aiosqlite.Connection | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    def select(self, sql: str, params: Sequence[Any], what: str = "") -> list[Row]:
        """All rows of a query, at once.

        Raises:
            InvalidArgument: a parameter is of no kind that SQLite has.
            StoreFailed: the query failed; `DiskFailed` if the disk did.
        """
        try:
            return self._cursor.execute(sql, params).fetchall()
        except _BAD_PARAMETERS as error:
            raise self._refused(error, params) from None
        except sqlite3.Error as error:
            raise self._failed(error, what) from error

    async def select_later(self, sql: str, params: Sequence[Any], what: str) -> list[Row]:
        """As `select`, in a thread; one query at a time."""
        async with self._lock:
            if self._closed:
                raise StoreFailed(f"{self._path.name} is closed.")
            try:
                if self._threaded is None:
                    self._threaded = await self._connect()
                rows = await self._threaded.execute_fetchall(sql, params)
            except _BAD_PARAMETERS as error:
                raise self._refused(error, params) from None
            except sqlite3.Error as error:
                raise self._failed(error, what) from error
        return list(rows)  # type: ignore[arg-type]

    async def _connect(self) -> aiosqlite.Connection:
        opened = await aiosqlite.connect(reader_uri(self._path), uri=True, isolation_level=None)
        for pragma in ("query_only=1", "wal_autocheckpoint=0"):
            await opened.execute_fetchall(f"PRAGMA {pragma}")
        return opened

    def _refused(self, error: Exception, params: Sequence[Any]) -> InvalidArgument:
        return InvalidArgument(f"no row can be found by {params!a:.200}: {error}")

    def _failed(self, error: sqlite3.Error, what: str) -> StoreFailed:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = DiskFailed if code in _DISK_FAILED else StoreFailed
        return kind(
            f"{self._path.name}: can't read{what and ' ' + what}: {error}",
            {"reason": str(error)},
        )

    def close_now(self) -> None:
        """Close the connection of reads at once."""
        self._cursor.close()
        self._connection.close()

    async def close(self) -> None:
        """Close all; a query that runs is interrupted and fails, as do those that wait."""
        self._closed = True
        while True:
            if self._threaded is not None:
                await self._threaded.interrupt()  # lost if the query is only about to begin
            try:
                async with asyncio.timeout(_INTERRUPT_AGAIN_S):
                    await self._lock.acquire()
                break
            except TimeoutError:
                continue
        try:
            if self._threaded is not None:
                await self._threaded.close()
        finally:
            self._lock.release()
            self.close_now()
