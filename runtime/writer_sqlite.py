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
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from . import fault_points, limits
from .clock import stopwatch_s
from .errors import Fenced, StoreFailed
from .group_commit import Batch, Failures, Write
from .high_water import Mark
from .opening_sqlite import Prepared
from .pages import Pages, PagesDamaged, damaged
from .pages_sqlite import seal, standing
from .schema_sqlite import TableSql
from .scrub import Scrub

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
        pages: its pages and their checksums; closed by `close`.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        tables: Mapping[str, TableSql],
        prepared: Prepared,
        mark: Mark,
        pages: Pages,
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
        self._sums = pages
        self._unsettled: Set[int] | None = prepared.unsettled  # None: as the log says
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
            fault_points.reach("checkpoint.begin")
            self._unsettled = None  # some may be copied, whatever becomes of the others
            _busy, frames, done = self._checkpoint("PASSIVE")
            if frames > 0:
                least, most = _FRAMES_PER_PAGE
                self._frames_per_page = min(max(frames / self._pages, least), most)
            self._pages = 0.0
            if frames == done >= 0:
                fault_points.reach("checkpoint.copied")
                self._seal()
                fault_points.reach("checkpoint.sealed")
                self._unsettled = frozenset()
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

    def _seal(self) -> None:
        """The next commit may begin the log anew, so this can't be put off."""
        with self._disk_told("its checksums can't be written"):
            seal(self._cursor, self._sums)

    def _checkpoint(self, mode: str) -> tuple[int, int, int]:
        row = self._cursor.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()[0]
        return row[0], row[1], row[2]

    # --- the pages ---

    @property
    def compared(self) -> int:
        """How many pages were compared with their checksums."""
        return self._sums.compared

    @property
    def pages(self) -> int:
        """Of how many pages the main file is.

        Raises:
            StoreFailed: the disk failed.
        """
        with self._disk_told():
            return self._sums.main_pages()

    def compare(self, first: int, count: int) -> None:
        """Compare some pages with their checksums.

        Raises:
            StoreDamaged: one is not as it was written.
            StoreFailed: the disk failed.
            Fenced: there is a newer owner.
        """
        with self._disk_told():
            if self._unsettled is None or self._sums.differing(first, count, self._unsettled):
                self._judge(first, count)

    def _judge(self, first: int, count: int) -> None:
        """As `compare`, with nobody else beside."""
        self._cursor.execute("BEGIN IMMEDIATE")
        try:
            if standing(self._cursor)[0] != self._epoch:
                raise Fenced(f"{self._path.name} has a newer owner than epoch {self._epoch}.")
            if self._unsettled is None:
                self._unsettled = self._sums.log().latest.keys()
            wrong = self._sums.differing(first, count, self._unsettled)
            try:
                self._sums.judge(wrong, self._unsettled)
            except PagesDamaged:
                self._sums.suspect(wrong[0])
                raise
        finally:
            self._cursor.execute("ROLLBACK")

    @contextmanager
    def _disk_told(self, what: str = "its pages can't be compared") -> Iterator[None]:
        try:
            yield
        except PagesDamaged as error:
            raise damaged(self._path, str(error)) from None
        except (sqlite3.Error, OSError) as error:
            raise StoreFailed(
                f"{self._path.name}: {what}: {error}", {"reason": str(error)}
            ) from error

    def close(self) -> None:
        """Close the file; the last connection to close checkpoints."""
        try:
            self._cursor.execute("PRAGMA busy_timeout = 0")  # who has the lock closes later
            seal(self._cursor, self._sums)
        except (sqlite3.Error, OSError, PagesDamaged) as error:
            _log.debug("%s: not sealed at its end: %s", self._path.name, error)
        self._cursor.close()
        self._connection.close()
        self._mark.close()
        self._sums.close()


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
        self._scrub: Scrub | None = Scrub(1 + writer.compared, stopwatch_s())
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
            try:
                batch = self._jobs.get(timeout=self._compare())
            except Empty:
                continue
            if batch is None:
                break
            try:
                failures = self._writer.commit(batch)
                self._tell(self._committed, batch, failures)
                self._writer.maintain(idle=self._jobs.empty())
            except Exception as error:
                self._scrub = None
                self._tell(self._broke, error)
        try:
            self._writer.close()
        except sqlite3.Error:
            _log.warning("%s: closing failed", self._thread.name, exc_info=True)
        self._tell(self._stopped.set_result, None)

    def _compare(self) -> float | None:
        """Compare some pages if it is time to; gives the seconds until it is again."""
        scrub = self._scrub
        if scrub is None:
            return None
        try:
            if scrub.left_s(stopwatch_s()) <= 0:
                self._writer.compare(*scrub.take(self._writer.pages, stopwatch_s()))
        except Exception as error:
            self._scrub = None
            self._tell(self._broke, error)
            return None
        return max(0.0, scrub.left_s(stopwatch_s()))

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            _log.debug("%s: the loop has gone before its store", self._thread.name)
