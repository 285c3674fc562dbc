"""What is particular to the SQLite store: its phases, its file, how it breaks and recovers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from toque.runtime import limits, writer_sqlite
from toque.runtime.chain import Claim, link_from
from toque.runtime.errors import DataDirFormat, Fenced, InvalidArgument, StoreFailed
from toque.runtime.high_water import read_mark
from toque.runtime.reader_sqlite import Reader
from toque.runtime.schema_sqlite import STORE_FORMAT, TableSql, create_index, create_table
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Index, Query, Row, Table

ROWS = Table(
    "rows",
    (("entity", "TEXT"), ("n", "INTEGER"), ("due", "INTEGER?"), ("payload", "BLOB?")),
    key_size=2,
    indexes=(Index("rows_due", ("due",), where="due IS NOT NULL"),),
)
COUNT = Query("count", "SELECT count(*) FROM rows")
COMMIT_S = 0.01
VICTIM = Path(__file__).with_name("store_victim.py")


def row(n: int, payload: bytes | None = None, due: int | None = None) -> Row:
    return ("e", n, due, payload)


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore.open(path, **{"tables": [ROWS], **options})
    try:
        yield store
    finally:
        await store.close()


def slow(path: Path) -> SqliteStore:
    return SqliteStore.open(path, tables=[ROWS], writer="inline", commit_delay=lambda: COMMIT_S)


def sql(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def seen_in(path: Path, statement: str) -> list[Any]:
    """As `sql`, but the log stays as it is."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()


# --- phases, on virtual time ---


@pytest.mark.loop(factory=VirtualTimeLoop)
async def test_a_commit_takes_its_time(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    store = slow(tmp_path / "d0.sqlite")
    store.put("o", ROWS, row(1))
    await asyncio.sleep(COMMIT_S / 2)  # in flight
    assert (store.durable_seq, store.query_now(COUNT)) == (0, [(0,)])
    assert store.get(ROWS, ("e", 1)) == row(1)
    store.put("o", ROWS, row(1, b"newer"))
    store.put("o", ROWS, row(2))
    assert store.write_seq == 2
    assert store.scan(ROWS) == [row(1, b"newer"), row(2)]
    await asyncio.sleep(COMMIT_S)  # the first is committed, the second in flight
    assert (store.durable_seq, store.query_now(COUNT)) == (1, [(1,)])
    assert store.scan(ROWS) == [row(1, b"newer"), row(2)]
    await store.flush()
    assert loop.time() == pytest.approx(2 * COMMIT_S)
    assert store.query_now(COUNT) == [(2,)]
    assert store.statistics()["commit_seconds"] == pytest.approx(2 * COMMIT_S)
    await store.close()


@pytest.mark.loop(factory=VirtualTimeLoop)
@pytest.mark.parametrize("outcome", ["lost", "kept"])
async def test_a_crash_loses_or_keeps_the_batch_in_flight(tmp_path: Path, outcome: Any) -> None:
    told: list[object] = []
    store = slow(tmp_path / "d0.sqlite")
    store.put("o", ROWS, row(1))
    await store.flush()
    store.when_durable(store.put("o", ROWS, row(2)), told.append)
    await asyncio.sleep(COMMIT_S / 2)
    store.when_durable(store.put("o", ROWS, row(3)), told.append)
    store.crash(outcome)
    store.crash(outcome)
    with pytest.raises(StoreFailed):
        store.put("o", ROWS, row(4))
    with pytest.raises(StoreFailed):
        store.get(ROWS, ("e", 1))
    await asyncio.sleep(10 * COMMIT_S)
    await store.close()
    assert told == []
    again = slow(tmp_path / "d0.sqlite")
    kept = {"lost": [1], "kept": [1, 2]}[outcome]
    assert [r[1] for r in again.scan(ROWS)] == kept
    assert again.epoch == 2
    await again.close()


@pytest.mark.loop(factory=VirtualTimeLoop)
async def test_a_crashed_zombie_keeps_nothing(tmp_path: Path) -> None:
    zombie = slow(tmp_path / "d0.sqlite")
    zombie.put("o", ROWS, row(1))
    await asyncio.sleep(COMMIT_S / 2)
    owner = slow(tmp_path / "d0.sqlite")
    zombie.crash("kept")
    assert owner.scan(ROWS) == []
    await owner.close()


async def test_only_an_inline_writer_crashes_on_demand(tmp_path: Path) -> None:
    async with opened(tmp_path / "d0.sqlite") as store:
        with pytest.raises(InvalidArgument):
            store.crash("lost")


# --- kill -9 ---


@pytest.mark.parametrize(
    ("acks", "kills"),
    [
        (1, 2),
        (7, 2),
        (40, 2),  # the second victim recovers what the first left
        pytest.param(30, 200, marks=(pytest.mark.campaign, pytest.mark.timeout(1_200))),
    ],
)
def test_what_a_killed_process_acknowledged_is_there(tmp_path: Path, acks: int, kills: int) -> None:
    """And no store looks as if it lacked anything: the next victim opens it."""
    path = tmp_path / "d0.sqlite"
    seen = 0
    for kill in range(kills):
        command = [sys.executable, str(VICTIM), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            for _ in range(1 + (acks + 7 * kill) % 60 if kills > 2 else acks):
                seen = int(victim.stdout.readline())
            victim.kill()
            seen = max([seen, *(int(line) for line in victim.stdout if line.endswith("\n"))])
        small, large = (
            seen_in(path, f"SELECT n FROM rows WHERE entity = '{name}' ORDER BY n")
            for name in ("small", "large")
        )
        assert small == large  # whole batches only
        assert [n for (n,) in small] == list(range(1, len(small) + 1))
        assert seen <= len(small) <= seen + 1  # at most the commit that was under way


# --- breaking ---


def told_of(store: SqliteStore, seq: int) -> list[BaseException | None]:
    told: list[BaseException | None] = []
    store.when_durable(seq, told.append, "o")
    return told


@pytest.mark.parametrize("writer", ["thread", "inline"])
async def test_a_full_disk_breaks_the_store_and_loses_nothing(tmp_path: Path, writer: Any) -> None:
    path = tmp_path / "d0.sqlite"
    async with opened(path, writer=writer) as store:
        store._writer._connection.execute("PRAGMA max_page_count = 40")
        acknowledged = 0
        while store.broken is None:
            told = told_of(store, store.put("o", ROWS, row(acknowledged, bytes(10_000))))
            with contextlib.suppress(StoreFailed):
                await store.flush()
                acknowledged += 1
        assert 0 < acknowledged < 40
        assert told == [store.broken]
        assert isinstance(store.broken, StoreFailed)
        assert store.broken.data["sqlite"] == "SQLITE_FULL"
        with pytest.raises(StoreFailed):
            store.put("o", ROWS, row(1))
    async with opened(path, writer=writer) as store:
        assert [r[1] for r in store.scan(ROWS)] == list(range(acknowledged))
        store.put("o", ROWS, row(99))
        await store.flush()


@pytest.mark.parametrize("writer", ["thread", "inline"])
async def test_a_failed_commit_has_an_unknown_outcome(
    tmp_path: Path, writer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk says no after the rows are written: they are there when the store is reopened."""
    path = tmp_path / "d0.sqlite"
    async with opened(path, writer=writer) as store:
        commit_whole = writer_sqlite.Writer._commit_whole

        def commit_then_fail(self: Any, batch: Any) -> Any:
            commit_whole(self, batch)
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(writer_sqlite.Writer, "_commit_whole", commit_then_fail)
            in_flight = told_of(store, store.put("o", ROWS, row(1)))
            await asyncio.sleep(0)
            later = told_of(store, store.put("o", ROWS, row(2)))
            with pytest.raises(StoreFailed, match="unknown"):
                await store.flush()
        assert in_flight == later == [store.broken]
        assert store.durable_seq == 0
    async with opened(path, writer=writer) as store:
        assert row(1) in store.scan(ROWS)


async def test_a_locked_file_breaks_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_BUSY_MAX_MS", 20)
    path = tmp_path / "d0.sqlite"
    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            told = told_of(store, store.put("o", ROWS, row(1)))
            with pytest.raises(StoreFailed, match="locked"):
                await store.flush()
            assert told == [store.broken]
            with pytest.raises(StoreFailed, match="locked"):
                SqliteStore.open(path, tables=[ROWS])
            other.execute("ROLLBACK")
    async with opened(path) as store:
        assert store.scan(ROWS) == []


async def test_what_sqlite_finds_damaged_breaks_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads a page before its checksum is compared."""
    monkeypatch.setattr(limits, "PAGES_AT_OPENING_BYTES", 0)
    monkeypatch.setattr(limits, "SCRUB_PAGES", 1)
    path = tmp_path / "d0.sqlite"
    async with opened(path) as store:
        for n in range(200):
            store.put("o", ROWS, row(n, bytes(2_000)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096 * 9)  # behind what opening reads
        file.write(b"\xff" * (size - 4096 * 9))
    async with opened(path) as store:
        told = told_of(store, store.put("o", ROWS, row(900)))
        with pytest.raises(StoreFailed, match="malformed"):
            store.scan(ROWS)
        assert store.broken is not None
        await asyncio.sleep(0)
        assert told == [store.broken]


async def test_owners_that_failed_are_named_first(tmp_path: Path) -> None:
    events: list[Any] = []
    async with opened(tmp_path / "d0.sqlite") as store:
        store.on_owner_failed = lambda owner, error: events.append((owner, type(error)))
        store.put("good", ROWS, row(1))
        seq = store.put("bad", ROWS, row(2**63))
        store.when_durable(seq, lambda error: events.append(type(error)), "bad")
        with pytest.raises(StoreFailed):
            await store.flush()
        assert events == [("bad", StoreFailed), StoreFailed]
        assert store.statistics()["batches_split"] == 1


async def test_a_callback_that_raises_stops_nobody(tmp_path: Path) -> None:
    reported: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    async with opened(tmp_path / "d0.sqlite") as store:
        seq = store.put("o", ROWS, row(1))
        told: list[object] = []
        store.when_durable(seq, lambda _error: [][1])  # type: ignore[arg-type]
        store.when_durable(seq, told.append)
        await store.flush()
        assert told == [None]
        assert [type(error) for error in reported] == [IndexError]


# --- the file ---


async def test_commits_are_counted_over_openings(tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    lineages = set()
    for opening in (1, 2):
        async with opened(path) as store:
            for n in range(3):
                store.put("o", ROWS, row(n))
                await store.flush()
        ((epoch, commit, kept),) = sql(path, "SELECT epoch, commit_seq, chain FROM shard")
        link = link_from(kept)
        assert link is not None
        assert (epoch, commit) == (opening, 3 * opening)
        assert read_mark(path) == Claim(epoch, commit, link.lineage)
        lineages.add(link.lineage)
    assert len(lineages) == 2
    assert sql(path, "SELECT epoch, after FROM shard_openings") == [(1, 0), (2, 3)]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (f"UPDATE shard SET format = {STORE_FORMAT + 1}", "newer one"),
        ("UPDATE shard SET format = 0", "older"),
        ("UPDATE shard SET name = 'd7'", "'d7'"),
        ("DELETE FROM shard", "damaged"),
        ("PRAGMA application_id = 7", "no toque store"),
    ],
)
async def test_other_files_are_refused(tmp_path: Path, change: str, match: str) -> None:
    path = tmp_path / "d0.sqlite"
    async with opened(path):
        pass
    sql(path, change)
    before = path.read_bytes()
    with pytest.raises(DataDirFormat, match=match):
        SqliteStore.open(path, tables=[ROWS])
    assert path.read_bytes() == before


async def test_foreign_files_are_left_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    path.write_bytes(b"no database, but a text of some length" * 100)
    with pytest.raises(DataDirFormat, match="no database"):
        SqliteStore.open(path, tables=[ROWS])
    other = tmp_path / "other.sqlite"
    sql(other, "CREATE TABLE mine (x)")
    before = other.read_bytes()
    with pytest.raises(DataDirFormat, match="no toque store"):
        SqliteStore.open(other, tables=[ROWS])
    assert other.read_bytes() == before
    with pytest.raises(StoreFailed, match="can't be opened"):
        SqliteStore.open(tmp_path / "missing" / "d0.sqlite", tables=[ROWS])


async def test_changed_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    async with opened(path):
        pass
    for columns, key_size in (
        ((*ROWS.columns, ("more", "TEXT?")), 2),
        (ROWS.columns, 1),
        ((("entity", "TEXT"), ("n", "TEXT"), *ROWS.columns[2:]), 2),
    ):
        changed = Table("rows", columns, key_size=key_size)
        with pytest.raises(DataDirFormat, match="table rows"):
            SqliteStore.open(path, tables=[changed])
    assert sql(path, "SELECT epoch FROM shard") == [(1,)]


async def test_tables_and_indexes_may_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    more = Table("more", (("a", "TEXT"),), key_size=1)
    names = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOTNULL ORDER BY name"
    async with opened(path) as store:
        store.put("o", ROWS, row(1, due=5))
    by_n = Table("rows", ROWS.columns, 2, indexes=(Index("rows_n", ("n",)),))
    async with opened(path, tables=[by_n, more]) as store:
        store.put("o", more, ("x",))
        assert store.query_now(Query("names", names)) == [("rows_n",)]
    partly = Table("rows", ROWS.columns, 2, indexes=(Index("rows_n", ("n",), where="n > 5"),))
    async with opened(path, tables=[partly]) as store:
        assert store.query_now(Query("names", names)) == [("rows_n",)]
        assert store.scan(ROWS) == [row(1, due=5)]
    async with opened(path, tables=[more]) as store:
        assert store.scan(more) == [("x",)]


def test_ill_formed_declarations_are_refused(tmp_path: Path) -> None:
    for tables in (
        [ROWS, ROWS],
        [Table("shard", (("a", "TEXT"),), 1)],
        [Table("sqlite_x", (("a", "TEXT"),), 1)],
        [Table("t", (("a", "TEXT"), ("b", "ANY")), 1)],
        [Table("t", (("a", "TEXT"),), 1, indexes=(Index("i", ("b",)),))],
        [Table("t", (("a", "TEXT"),), 1, indexes=(Index("t", ("a",)),))],
    ):
        with pytest.raises(ValueError, match=r"taken|type|ill-formed"):
            SqliteStore.open(tmp_path / "d0.sqlite", tables=tables, loop=None)
    assert list(tmp_path.iterdir()) == []


def test_every_statement_uses_the_key() -> None:
    statements = TableSql(ROWS)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(create_table(ROWS))
        connection.execute(create_index(ROWS, ROWS.indexes[0]))
        texts = [
            statements.get,
            statements.upserts[4],
            statements.deletes[1],
            statements.deletes[64],
            *(
                statements.scan(size, beyond, reverse)
                for size in (0, 1)
                for beyond in (False, True)
                for reverse in (False, True)
            ),
        ]
        for text in texts:
            parameters = [1] * text.count("?")
            plan = connection.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
            steps = [step[3] for step in plan]
            assert not any("TEMP B-TREE" in step or step == "SCAN rows" for step in steps), steps


def test_a_wide_table_keeps_to_sqlites_parameters(tmp_path: Path) -> None:
    wide = Table("wide", tuple((f"c{n}", "INTEGER") for n in range(1_000)), key_size=1)
    sizes = list(TableSql(wide).upserts)
    assert sizes[0] * 1_000 < 32_767
    assert sizes[-1] == 1


# --- the log ---


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_PAGES", 20)
    monkeypatch.setattr(limits, "WAL_TRUNCATE_BYTES", 200_000)


@pytest.mark.usefixtures("small_log")
@pytest.mark.parametrize("writer", ["thread", "inline"])
async def test_the_log_stays_short(tmp_path: Path, writer: Any) -> None:
    longest = 0.0
    async with opened(tmp_path / "d0.sqlite", writer=writer) as store:
        for n in range(200):
            store.put("o", ROWS, row(n, bytes(10_000)))
            await store.flush()
            longest = max(longest, store.statistics()["wal_bytes"])
        assert store.query_now(COUNT) == [(200,)]
    assert 0 < longest < 600_000  # of 2 MB written


@pytest.mark.usefixtures("small_log")
async def test_a_long_reader_holds_no_commit_up(tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    async with opened(path) as store:
        store.put("o", ROWS, row(0))
        await store.flush()
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM rows").fetchall() == [(1,)]
            for n in range(1, 100):
                store.put("o", ROWS, row(n, bytes(10_000)))
                await store.flush()
            grown = store.statistics()["wal_bytes"]
            assert grown > 900_000
            assert reader.execute("SELECT count(*) FROM rows").fetchall() == [(1,)]
        for n in range(100, 200):
            store.put("o", ROWS, row(n, bytes(10_000)))
            await store.flush()
        assert store.statistics()["wal_bytes"] < grown


async def test_reads_hold_no_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    async with opened(path) as store:
        for n in range(50):
            store.put("o", ROWS, row(n))
        await store.flush()
        store.get(ROWS, ("e", 1))
        store.scan(ROWS, limit=2)
        store.query_now(COUNT)
        await store.query(Query("some", "SELECT * FROM rows LIMIT 3"))
        store.verify_owner()
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        assert busy == 0


@pytest.mark.usefixtures("small_log")
async def test_a_failed_checkpoint_breaks_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d0.sqlite"
    checkpoint = writer_sqlite.Writer._checkpoint
    answers: list[int] = [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR]

    def fail(self: Any, mode: str) -> Any:
        if not answers:
            return checkpoint(self, mode)
        error = sqlite3.OperationalError("no")
        error.sqlite_errorcode = answers.pop(0)
        raise error

    async with opened(path, writer="inline") as store:
        monkeypatch.setattr(writer_sqlite.Writer, "_checkpoint", fail)
        store.put("o", ROWS, row(1, bytes(100_000)))
        await store.flush()
        assert store.broken is None  # a full disk only puts a checkpoint off
        store.put("o", ROWS, row(2, bytes(100_000)))
        await store.flush()
        await asyncio.sleep(0)
        assert store.broken is not None
    async with opened(path, writer="inline") as store:
        assert len(store.scan(ROWS)) == 2


async def test_an_old_sqlite_is_mentioned_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    with caplog.at_level(logging.DEBUG, "toque"):
        async with opened(tmp_path / "d0.sqlite"):
            pass
    mentions = [r for r in caplog.records if "checkpoint" in r.message]
    assert [r.levelno for r in mentions] in ([], [logging.DEBUG])
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 0))
    with pytest.raises(DataDirFormat, match="too old"):
        SqliteStore.open(tmp_path / "d1.sqlite", tables=[ROWS])


async def test_closing_ends_a_query(tmp_path: Path) -> None:
    forever = Query(
        "forever",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n",
    )
    store = SqliteStore.open(tmp_path / "d0.sqlite", tables=[ROWS])
    await store.query(COUNT)
    asking = [asyncio.ensure_future(store.query(forever)) for _ in range(3)]
    await asyncio.sleep(0)
    await store.close()
    told = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(error) for error in told] == [StoreFailed] * 3


async def test_zombies_find_out_at_every_door(tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    async with opened(path) as first, opened(path) as second:
        assert (first.epoch, second.epoch) == (1, 2)
        told = told_of(first, first.put("o", ROWS, row(1)))
        with pytest.raises(Fenced):
            await first.flush()
        assert isinstance(told[0], Fenced)
        assert second.query_now(COUNT) == [(0,)]


ONLY_KEY = Table("only_key", (("a", "TEXT"), ("b", "INTEGER")), key_size=2)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
async def test_the_first_row_behind_many_that_are_being_deleted_takes_few_reads(
    reverse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore.open(tmp_path / "d0.sqlite", tables=[ONLY_KEY])
    for n in range(2_000):
        store.put("e", ONLY_KEY, ("a", n))
    await store.flush()
    for n in range(1, 1_999):
        store.delete("e", ONLY_KEY, ("a", n))
    store.delete("e", ONLY_KEY, ("a", 1_999 if reverse else 0))
    reads: list[str] = []
    select = Reader.select

    def counted(self: Reader, sql: str, params: Any, what: str = "") -> list[Row]:
        reads.append(sql)
        return select(self, sql, params, what)

    monkeypatch.setattr(Reader, "select", counted)
    found = store.scan(ONLY_KEY, ("a",), limit=1, reverse=reverse)
    assert len(reads) < 10
    assert found == [("a", 0 if reverse else 1_999)]
    await store.close()
