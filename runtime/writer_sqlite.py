"""Commits batches to a shard's SQLite file, in whichever thread calls it, and checkpoints.

A commit checks the epoch in the same transaction (`Fenced` if a newer owner has raised it), and is
noted in the store's mark when it is on disk, before anybody hears of it (see `high_water`). If a
row can't be stored, the batch is committed again part by part under savepoints, so that only the
owners of bad rows fail. Every other error leaves the outcome unknown and goes to the caller.

Rows are written many to a statement: a Python thread gives up the interpreter lock at each step
of SQLite and may wait 5 ms to get it back while the event loop is busy, so a commit must take few
steps (measured under a busy loop: 4.6 ms a row with `executemany`, 7 us this way).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from . import fault_points, limits
from .errors import Fenced, StoreFailed
from .group_commit import Batch, Failures, Write
from .high_water import Mark
from .opening_sqlite import Prepared
from .schema_sqlite import TableSql

_log = logging.getLogger(__name__)

_ROW_ERRORS = (
    sqlite3.IntegrityError,  # a NULL, or a value of another type
    sqlite3.InterfaceError,  # a value of a kind that SQLite has not
    sqlite3.ProgrammingError,  # the same, since Python 3.12
    sqlite3.DataError,  # too big
    OverflowError,  # an int of more than 64 bits
    UnicodeEncodeError,  # a lone surrogate
    TypeError,
    ValueError,
)
_PAGE_BYTES = 4096
_FRAMES_PER_PAGE = (0.05, 2.0)  # bounds of the estimate's correction


class Writer:
    """The one writer of a shard's file.

    Args:
        connection: from `connect_writer`; closed by `close`.
        path: the file.
        tables: the statements by table name.
        prepared: what opening found and began.
        mark: the store's mark; closed by `close`.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        tables: Mapping[str, TableSql],
        prepared: Prepared,
        mark: Mark,
    ) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._path = path
        self._wal_path = f"{path}-wal"
        self._tables = tables
        self._epoch = prepared.epoch
        self._before = self._last_commit = prepared.commit
        self._link = prepared.link
        self._log_ended = False  # the next commit begins it anew, and says what the main file has
        self._mark = mark
        self._pages = 0.0  # estimated frames in the log since the last checkpoint
        self._frames_per_page = 1.0  # how that estimate has erred so far
        self.splits = 0

    def commit(self, batch: Batch) -> Failures:
        """Commit a batch; returns the errors of owners whose part could not be stored.

        Raises:
            Fenced: nothing was written.
            StoreFailed: the outcome is unknown.
        """
        try:
            try:
                failures = self._commit_whole(batch)
            except _ROW_ERRORS:
                self._rollback()
                self.splits += 1
                failures = self._commit_parts(batch)
            self._last_commit = self._before + batch.seq
            self._log_ended = False
            self._mark.note(self._last_commit)
        except Fenced:
            self._rollback()
            raise
        except Exception as error:
            self._rollback()
            raise StoreFailed(
                f"{self._path.name}: commit {batch.seq} failed ({error}); its outcome is unknown.",
                {
                    "reason": f"{type(error).__name__}: {error}",
                    "sqlite": getattr(error, "sqlite_errorname", ""),
                },
            ) from error
        self._pages += 2 + 2 * batch.rows + batch.bytes / _PAGE_BYTES
        return failures

    def _commit_whole(self, batch: Batch) -> Failures:
        self._begin(batch)
        for name, puts, deletes in batch.changes():
            sql = self._tables[name]
            if puts:
                self._write_rows(sql.upserts, puts)
            if deletes:
                self._write_rows(sql.deletes, deletes)
        self._end()
        return {}

    def _begin(self, batch: Batch) -> None:
        fault_points.reach("commit.begin")
        self._cursor.execute("BEGIN IMMEDIATE")
        self._cursor.execute(
            "UPDATE shard SET commit_seq = ? WHERE epoch = ?",
            (self._before + batch.seq, self._epoch),
        )
        if self._log_ended:
            self._cursor.execute(
                "UPDATE shard SET chain = ? WHERE epoch = ?", (self._link.packed(), self._epoch)
            )
        if self._cursor.rowcount != 1:
            raise Fenced(f"{self._path.name} has a newer owner than epoch {self._epoch}.")
        fault_points.reach("commit.owned")

    def _end(self) -> None:
        fault_points.reach("commit.written")
        self._cursor.execute("COMMIT")
        fault_points.reach("commit.done")

    def _write_rows(self, statements: Mapping[int, str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Write all rows with the fewest statements: the largest power of two that fits, again."""
        execute = self._cursor.execute
        done, left = 0, len(rows)
        for size, sql in statements.items():
            while left >= size:
                part = rows[done : done + size]
                execute(sql, part[0] if size == 1 else list(chain.from_iterable(part)))
                done += size
                left -= size

    def _commit_parts(self, batch: Batch) -> Failures:
        failures: Failures = {}
        self._begin(batch)
        for owners, writes in batch.parts():
            self._cursor.execute("SAVEPOINT part")
            error = self._write_part(writes)
            if error is not None:
                self._cursor.execute("ROLLBACK TO part")
                failures.update(dict.fromkeys(owners, error))
            self._cursor.execute("RELEASE part")
        self._end()
        return failures

    def _write_part(self, writes: Sequence[Write]) -> StoreFailed | None:
        for table, key, row in writes:
            sql = self._tables[table]
            try:
                if row is None:
                    self._cursor.execute(sql.deletes[1], key)
                else:
                    self._cursor.execute(sql.upserts[1], row)
            except _ROW_ERRORS as error:
                reason = f"{type(error).__name__}: {error}"
                return StoreFailed(
                    f"a row of table {table} can't be stored ({reason}); "
                    "nothing of its owner's batch was.",
                    {"table": table, "key": ascii(key)[:200], "reason": reason},
                )
        return None

    def _rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
        except sqlite3.Error:
            _log.debug("rollback failed", exc_info=True)  # the error that led here is reported

    # --- the log ---

    def wal_bytes(self) -> int:
        """The size of the write-ahead log's file."""
        try:
            return os.stat(self._wal_path).st_size
        except FileNotFoundError:
            return 0

    def maintain(self, idle: bool) -> None:
        """Checkpoint if the log has grown enough; shorten its file if nobody waits.

        Raises:
            StoreFailed: the disk failed. What was committed stays in the log.
        """
        if self._pages * self._frames_per_page < limits.CHECKPOINT_PAGES:
            return
        try:
            _busy, frames, done = self._checkpoint("PASSIVE")
            if frames > 0:
                least, most = _FRAMES_PER_PAGE
                self._frames_per_page = min(max(frames / self._pages, least), most)
            self._pages = 0.0
            if frames == done:
                size = os.stat(self._path).st_size
                self._link = self._link._replace(base=self._last_commit, base_bytes=size)
                self._log_ended = True
                self._mark.sync()
            if idle and frames == done and self.wal_bytes() > limits.WAL_TRUNCATE_BYTES:
                self._cursor.execute("PRAGMA busy_timeout = 0")  # readers are not waited for
                try:
                    self._checkpoint("TRUNCATE")
                finally:
                    self._cursor.execute(f"PRAGMA busy_timeout = {limits.STORE_BUSY_MAX_MS}")
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (
                sqlite3.SQLITE_BUSY,
                sqlite3.SQLITE_LOCKED,
                sqlite3.SQLITE_FULL,
            ):
                _log.warning("%s: checkpoint put off: %s", self._path.name, error)
                return
            raise StoreFailed(
                f"{self._path.name}: checkpoint failed: {error}", {"reason": str(error)}
            ) from error

    def _checkpoint(self, mode: str) -> tuple[int, int, int]:
        row = self._cursor.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()[0]
        return row[0], row[1], row[2]

    def close(self) -> None:
        """Close the file; the last connection to close checkpoints."""
        self._cursor.close()
        self._connection.close()
        self._mark.close()


class WriterThread:
    """Runs a writer in a thread of its own; answers come on the loop, in order.

    Args:
        writer: used by the thread alone from now on.
        loop: where the callbacks run.
        name: the thread's name.
        committed: called with each batch that was committed and the failures in it.
        broke: called with what broke the store.
    """

    def __init__(
        self,
        writer: Writer,
        loop: asyncio.AbstractEventLoop,
        name: str,
        committed: Callable[[Batch, Failures], None],
        broke: Callable[[BaseException], None],
    ) -> None:
        self._writer = writer
        self._loop = loop
        self._committed = committed
        self._broke = broke
        self._jobs: SimpleQueue[Batch | None] = SimpleQueue()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def hand(self, batch: Batch) -> None:
        """Commit a batch next."""
        self._jobs.put(batch)

    async def stop(self) -> None:
        """Close the file and end the thread."""
        self._jobs.put(None)
        await self._stopped
        self._thread.join()

    def _work(self) -> None:
        while True:
            batch = self._jobs.get()
            if batch is None:
                break
            try:
                failures = self._writer.commit(batch)
                self._tell(self._committed, batch, failures)
                self._writer.maintain(idle=self._jobs.empty())
            except Exception as error:
                self._tell(self._broke, error)
        try:
            self._writer.close()
        except sqlite3.Error:
            _log.warning("%s: closing failed", self._thread.name, exc_info=True)
        self._tell(self._stopped.set_result, None)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            _log.debug("%s: the loop has gone before its store", self._thread.name)
