"""The store of a shard in one SQLite file: `Store` over a writer thread, or inline.

Commits are durable when `synchronous` is FULL (WAL, fsync per commit). Reads see committed rows
with the pending ones laid over them; they use a connection of their own, never hold a snapshot
and never checkpoint. If a commit fails otherwise than by a row, or a newer owner has taken the
shard over, the store is *broken*: it answers nothing more and must be opened again.

With `writer="thread"` a commit runs in the shard's writer thread while the loop goes on and the
next batch gathers. With `writer="inline"` there are no threads: the same SQL runs on the loop,
after a delay that a simulation chooses.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from . import limits
from .chain_sqlite import looked_at
from .entropy import Entropy, SystemEntropy
from .errors import DataDirFormat, Fenced, InvalidArgument, StoreDamaged, StoreFailed
from .group_commit import EVERY_OWNER, Batch, Failures, GroupCommit, Told, merge
from .high_water import Mark
from .histogram import Histogram
from .opening_sqlite import prepare
from .pages import Pages
from .reader_sqlite import DiskFailed, Reader
from .schema_sqlite import Synchronous, TableSql, check_tables, connect_writer, sql_of
from .tables import Key, Query, Row, Table
from .upgrades import PENDING, StoreUpgrade
from .writer_sqlite import Writer, WriterThread

_log = logging.getLogger(__name__)

_WAL_RESET_FIXED = (3, 51, 3)
_EPOCH_SQL = "SELECT epoch FROM shard"


class SqliteStore:
    """See the module and `Store`. Made by `open`.

    Attributes:
        path: the file.
        durable_seq: see `Store`.
        on_owner_failed: called with each owner whose part of a batch could not be stored, and
            the error, before any callback is told. What that owner has written since is gone.
        on_broken: called once when it has broken, after all callbacks.
    """

    def __init__(
        self,
        path: Path,
        tables: Sequence[Table],
        sql: dict[str, TableSql],
        loop: asyncio.AbstractEventLoop,
        writer: Writer,
        reader: Reader,
        epoch: int,
        threaded: bool,
        commit_delay: Callable[[], float] | None,
    ) -> None:
        self.path = path
        self.on_owner_failed: Callable[[Any, BaseException], None] | None = None
        self.on_broken: Callable[[BaseException], None] | None = None
        self._loop = loop
        self._epoch = epoch
        self._group = GroupCommit(list(tables), self._first_write)
        self.durable_seq = 0
        group = self._group
        self.put, self.delete, self.write_all = group.put, group.delete, group.write_all
        self.has_room, self.when_durable = group.has_room, group.when_durable
        self._group.bare.update(name for name in sql if _is_bare(reader, sql[name]))
        self._sql = sql
        self._writer = writer
        self._reader = reader
        self._delay = commit_delay
        self._timer: asyncio.Handle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._dead = False
        self._handed_at = 0.0
        self._counts = dict.fromkeys(
            ("commits", "rows", "bytes", "commit_seconds", "batch_rows_max"), 0.0
        )
        self.commit_rows = Histogram()
        """Rows of each commit."""
        self.commit_us = Histogram()
        """How long each took, from the hand-over to its answer."""
        self._thread: WriterThread | None = None
        if threaded:
            self._thread = WriterThread(
                writer, loop, f"store {path.stem}", self._committed, self._break
            )

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        tables: Sequence[Table],
        loop: asyncio.AbstractEventLoop | None = None,
        writer: Literal["thread", "inline"] = "thread",
        commit_delay: Callable[[], float] | None = None,
        name: str | None = None,
        synchronous: Synchronous = "FULL",
        upgrades: Sequence[StoreUpgrade] = (),
        entropy: Entropy | None = None,
    ) -> SqliteStore:
        """Open (or make) a shard's file and become its owner; older owners are fenced.

        Args:
            path: the file; its folder must exist.
            tables: every table of the shard.
            loop: the shard's event loop; the running one if not given.
            writer: where commits run.
            commit_delay: for the inline writer, how many seconds of the loop's time a commit takes.
            name: the shard's name, which the file must bear; the file's stem if not given.
            synchronous: FULL, NORMAL (survives the process, not power loss) or OFF.
            upgrades: what leads stores of older formats to the newest one.
            entropy: names lineages; the operating system's if not given.

        Raises:
            DataDirFormat: no toque store, one of another format or shard, or other columns.
            StoreStale: it lacks what was acknowledged. StoreDamaged: SQLite finds
                it damaged, or a page is not as its checksum says.
            StoreFailed: the disk failed, or another owner held the file for too long.
        """
        path = Path(path)
        lineage = bytes.fromhex((entropy or SystemEntropy()).new_id())
        check_tables([*tables, PENDING])
        if sqlite3.sqlite_version_info < _WAL_RESET_FIXED:
            _log.debug(
                "SQLite %s may lose commits when two connections checkpoint at once; "
                "only the writer checkpoints here.",
                sqlite3.sqlite_version,
            )
        with ExitStack() as stack, _told_as_ours(path):
            pages = Pages(path, synchronous != "OFF")
            stack.callback(pages.close)
            with looked_at(path), ExitStack() as refused:
                connection = connect_writer(path, synchronous)
                refused.callback(connection.close)  # while it is looked at, so the log stays
                prepared = prepare(
                    connection, path, name or path.stem, list(tables), upgrades, lineage, pages
                )
                refused.pop_all()
                stack.callback(connection.close)
            mark = Mark(path)
            stack.callback(mark.close)
            mark.begin(prepared.claim)
            reader = Reader(path)
            stack.pop_all()
        tables = [*tables, PENDING]
        sql = {table.name: sql_of(table) for table in tables}
        return cls(
            path,
            tables,
            sql,
            loop or asyncio.get_running_loop(),
            Writer(connection, path, sql, prepared, mark, pages),
            reader,
            prepared.epoch,
            writer == "thread",
            commit_delay,
        )

    # --- properties ---

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def write_seq(self) -> int:
        return self._group.write_seq

    @property
    def broken(self) -> BaseException | None:
        return self._group.broken

    async def flush(self) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def settle(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._group.when_durable(self._group.write_seq, settle, EVERY_OWNER)
        await done

    # --- reads ---

    def get(self, table: Table, key: Key) -> Row | None:
        group = self._group
        if group.broken is not None:
            raise group.broken
        entry = group.find(table, key)
        if entry is not None:
            return entry[1]
        if table.name in group.bare and _is_sound(key):
            return None
        rows = self._select(self._sql[table.name].get, key)
        return rows[0] if rows else None

    def pending(self, table: Table) -> dict[Key, Row | None]:
        return self._group.matching(table, ())

    def scan(
        self,
        table: Table,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int = limits.SCAN_ROWS_MAX,
        reverse: bool = False,
    ) -> list[Row]:
        if self._group.broken is not None:
            raise self._group.broken
        if not 0 < limit <= limits.SCAN_ROWS_MAX:
            raise InvalidArgument(f"a scan gives 1 to {limits.SCAN_ROWS_MAX} rows, not {limit}.")
        shape = self._group.shape(table)
        size = len(prefix)
        shape.check_prefix(prefix)
        if after is not None:
            shape.check_whole(after)
            if after[:size] != tuple(prefix):
                raise InvalidArgument(f"table {shape.name}: `after` has not the scan's prefix.")
            if size == shape.key_size:
                return []
        pending = self._group.matching(table, prefix)
        if after is not None:
            beyond = {k: r for k, r in pending.items() if (k < after if reverse else k > after)}
            pending = beyond
        if not pending:
            return self._page(table, prefix, after, limit, reverse)
        return self._merged(table, prefix, after, limit, reverse, pending)

    def _page(
        self, table: Table, prefix: Key, after: Key | None, limit: int, reverse: bool
    ) -> list[Row]:
        if table.name in self._group.bare and _is_sound(after or prefix):
            return []
        sql = self._sql[table.name].scan(len(prefix), after is not None, reverse)
        return self._select(sql, (*(after or prefix), limit))

    def _merged(
        self,
        table: Table,
        prefix: Key,
        after: Key | None,
        limit: int,
        reverse: bool,
        pending: dict[Key, Row | None],
    ) -> list[Row]:
        """A page of committed rows under pending ones; more are read if too many are hidden."""
        size = table.key_size
        committed: list[Row] = []
        asked = limit
        while True:
            page = self._page(table, prefix, after, asked, reverse)
            committed.extend(row for row in page if row[:size] not in pending)
            if len(page) < asked or len(committed) >= limit or len(prefix) == size:
                return merge(committed, pending, size, reverse)[:limit]
            after = page[-1][:size]
            asked = min(4 * asked, limits.SCAN_ROWS_MAX)  # many are hidden: fewer, larger pages

    async def query(self, query: Query, params: tuple[Any, ...] = ()) -> list[Row]:
        if self._thread is None:
            return self.query_now(query, params)
        if self._group.broken is not None:
            raise self._group.broken
        try:
            return await self._reader.select_later(query.sql, params, query.name)
        except DiskFailed as error:
            self._break_soon(error)
            raise

    def query_now(self, query: Query, params: tuple[Any, ...] = ()) -> list[Row]:
        if self._group.broken is not None:
            raise self._group.broken
        return self._select(query.sql, params, query.name)

    def _select(self, sql: str, params: Sequence[Any], what: str = "") -> list[Row]:
        try:
            return self._reader.select(sql, params, what)
        except DiskFailed as error:
            self._break_soon(error)
            raise

    def verify_owner(self) -> None:
        if self._group.broken is not None:
            raise self._group.broken
        if self._select(_EPOCH_SQL, ()) != [(self._epoch,)]:
            error = Fenced(f"{self.path.name} has a newer owner than epoch {self._epoch}.")
            self._break_soon(error)
            raise error

    # --- commits ---

    def _first_write(self) -> None:
        """The open batch got its first write: it is handed over when this turn has ended."""
        self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        batch = self._group.take()
        if batch is None:
            return
        self._handed_at = self._loop.time()
        if self._thread is not None:
            self._thread.hand(batch)
            return
        delay = 0.0 if self._delay is None else self._delay()
        if delay > 0:
            self._timer = self._loop.call_later(delay, self._commit_inline, batch)
        else:
            self._timer = self._loop.call_soon(self._commit_inline, batch)

    def _commit_inline(self, batch: Batch) -> None:
        try:
            failures = self._writer.commit(batch)
        except (Fenced, StoreFailed) as error:
            self._break(error)
            return
        self._committed(batch, failures)
        try:
            self._writer.maintain(idle=True)
        except StoreFailed as error:
            self._break(error)

    def _committed(self, batch: Batch, failures: Failures) -> None:
        if self._group.in_flight is not batch:
            return  # the store broke meanwhile; everyone has been told
        counts = self._counts
        counts["commits"] += 1
        counts["rows"] += batch.rows
        counts["bytes"] += batch.bytes
        took_s = self._loop.time() - self._handed_at
        counts["commit_seconds"] += took_s
        counts["batch_rows_max"] = max(counts["batch_rows_max"], batch.rows)
        self.commit_rows.add(batch.rows)
        self.commit_us.add(int(took_s * 1_000_000))
        told = self._group.finish(failures)
        self.durable_seq = batch.seq
        self._hand_over()  # before the callbacks, so that the writer need not wait for them
        if failures and self.on_owner_failed is not None:
            for owner, error in failures.items():
                self._run(self.on_owner_failed, owner, error)
        self._tell(told)

    def _break(self, error: BaseException) -> None:
        if self._group.broken is None:
            if not self._dead:
                _log.warning("%s is broken: %s", self.path.name, error)
            self._tell_broken(self._group.fail(error), error)

    def _break_soon(self, error: BaseException) -> None:
        """As `_break`, from within a caller's read: refuse at once, but tell in the next turn."""
        if self._group.broken is None:
            _log.warning("%s is broken: %s", self.path.name, error)
            self._loop.call_soon(self._tell_broken, self._group.fail(error), error)

    def _tell_broken(self, told: Told, error: BaseException) -> None:
        self._tell(told)
        if self.on_broken is not None and not self._dead:
            self._run(self.on_broken, error)

    def _tell(self, told: Told) -> None:
        for callback, error in told:
            try:
                callback(error)
            except Exception as failed:
                self._callback_failed(failed)

    def _run(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            callback(*args)
        except Exception as error:
            self._callback_failed(error)

    def _callback_failed(self, error: Exception) -> None:
        context = {"message": "a store callback failed", "exception": error}
        self._loop.call_exception_handler(context)

    # --- the end ---

    def statistics(self) -> dict[str, float]:
        return {
            **self._counts,
            "wal_bytes": float(self._writer.wal_bytes()),
            "batches_split": float(self._writer.splits),
            "pages_compared": float(self._writer.compared),
        }

    async def close(self) -> None:
        if self._dead:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        failed: BaseException | None = None
        while self.broken is None and self.write_seq > self.durable_seq:
            try:
                await self.flush()
            except StoreFailed as error:
                failed = failed or error
        self._dead = True
        self._break(StoreFailed(f"{self.path.name} is closed."))
        await self._reader.close()
        if self._thread is None:
            self._writer.close()
        else:
            await self._thread.stop()
        if failed is not None:
            raise failed

    def crash(self, outcome: Literal["lost", "kept"]) -> None:
        """Die as a killed process does (inline writer only): no callback runs any more.

        The batch in flight, if there is one, turns out committed ("kept") or not ("lost"); the
        open one is lost.
        """
        if self._thread is not None:
            raise InvalidArgument("only a store with an inline writer can crash on demand.")
        if self._dead:
            return
        self._dead = True
        batch = self._group.in_flight
        if self._timer is not None:
            self._timer.cancel()
        if batch is not None and outcome == "kept":
            try:
                self._writer.commit(batch)
            except (Fenced, StoreFailed) as error:
                _log.debug("%s: nothing kept: %s", self.path.name, error)
        self._group.fail(StoreFailed(f"{self.path.name} has crashed."))
        self._reader.close_now()
        self._writer.close()


@contextmanager
def _told_as_ours(path: Path) -> Iterator[None]:
    """Tell what goes wrong while a store is opened by our own errors."""
    try:
        yield
    except (sqlite3.Error, UnicodeError) as error:  # SQLite shows damaged text as it is
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise DataDirFormat(f"{path} is no database.") from error
        if code == sqlite3.SQLITE_CORRUPT or isinstance(error, UnicodeError):
            raise StoreDamaged(
                f"{path} is damaged ({error}). Put the whole directory back from one backup.",
                {"shard": path.stem, "reason": str(error)},
            ) from error
        raise StoreFailed(f"{path} can't be opened: {error}", {"reason": str(error)}) from error
    except OSError as error:
        raise StoreFailed(
            f"{path} can't be opened: {error.strerror}", {"reason": str(error)}
        ) from error


def _is_sound(key: Key) -> bool:
    """Whether SQLite would surely take the key; what it may refuse is for it to say."""
    return all(type(value) is str and value.isascii() for value in key)


def _is_bare(reader: Reader, sql: TableSql) -> bool:
    try:
        return not reader.select(sql.any, ())
    except StoreFailed:
        return False  # whoever reads it is told
