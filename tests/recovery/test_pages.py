"""Checksums of pages follow the main file whatever ends a checkpoint, and find damage later on.

Files as crashes and flipped bits leave them are in test_damage; here are the ways to get there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.images import ROWS, Files, History, Verdict, flipped, judge, live, opened
from toque.runtime import limits, pages, writer_sqlite
from toque.runtime.chain_sqlite import look
from toque.runtime.errors import StoreDamaged, StoreFailed
from toque.runtime.high_water import make_mark, read_mark
from toque.runtime.pages import Pages, sums_path
from toque.runtime.pages_sqlite import changing
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Query

COUNT = "SELECT count(*) FROM rows"
HOW_MANY = Query("count", COUNT)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return live(tmp_path_factory.mktemp("history"), commits=30)


def threaded(path: Path) -> SqliteStore:
    return SqliteStore.open(path, tables=[ROWS])


async def write(store: SqliteStore, first: int, count: int) -> None:
    """Rows of half a page, one commit each."""
    for n in range(first, first + count):
        store.put("o", ROWS, ("e", n, None, n.to_bytes(2, "big") * 1_000))
        await store.flush()


def all_the_time(patched: pytest.MonkeyPatch) -> None:
    """Pages are compared without a rest, and not at the opening."""
    for name in (
        "PAGES_AT_OPENING_BYTES",
        "SCRUB_FIRST_MS",
        "SCRUB_EVERY_MS",
        "SCRUB_REST_MS",
    ):
        patched.setattr(limits, name, 0)


def flip(path: Path, page: int) -> None:
    """One bit of a page is another."""
    at = 4096 * (page - 1) + 2_000
    path.write_bytes(flipped(path.read_bytes(), at, 3))


def outside(path: Path, sql: str) -> str:
    """What another process says, whose connection copies the log if nobody else has the store."""
    code = (
        "import sqlite3, sys; store = sqlite3.connect(sys.argv[1], timeout=0);"
        " print(store.execute(sys.argv[2]).fetchall()); store.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), sql], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- checkpoints ----------------------------------------------------------------------------------


@contextlib.contextmanager
def killed_before_sealing(store: SqliteStore) -> Iterator[None]:
    """A checkpoint ends, and then the process: nothing is sealed any more."""

    def killed(*_: Any) -> None:
        raise OSError(5, "killed")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer_sqlite, "seal", killed)
        patched.setattr(limits, "CHECKPOINT_PAGES", 1)
        yield


async def test_a_log_that_was_copied_but_not_sealed_is_sealed_before_it_is_begun_anew(
    tmp_path: Path,
) -> None:
    """Somebody else has the store open meanwhile, so its index says that the log was copied."""
    path = tmp_path / "d0.sqlite"
    store = opened(path)
    await write(store, 0, 20)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as other:
        assert other.execute(COUNT).fetchall() == [(20,)]
        with killed_before_sealing(store):
            await write(store, 20, 1)
            await asyncio.sleep(0)
            assert isinstance(store.broken, StoreFailed)
            sums = sums_path(path).read_bytes()
            await store.close()
        assert sums_path(path).read_bytes() == sums
        salt = Path(f"{path}-wal").read_bytes()[16:24]
        again = opened(path)
        assert Path(f"{path}-wal").read_bytes()[16:24] != salt, "the log was not begun anew"
        await write(again, 21, 3)
        again.crash("lost")
    last = opened(path)
    assert last.query_now(HOW_MANY) == [(24,)]
    await last.close()
    assert look(path) is None


async def test_pages_that_a_checkpoint_has_begun_to_copy_are_compared_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader keeps it from copying all; what it has copied is newer than its checksums."""
    path = tmp_path / "d0.sqlite"
    store = opened(path)
    await write(store, 0, 50)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as other:
        other.execute("BEGIN")
        assert other.execute(COUNT).fetchall() == [(50,)]
        monkeypatch.setattr(limits, "CHECKPOINT_PAGES", 1)
        size = path.stat().st_size
        await write(store, 0, 5)
        assert path.stat().st_size > size, "it has copied nothing"
        with closing(Pages(path)) as found:
            assert found.differing(1, 1_000)
        store._writer.compare(1, 1_000)
        other.execute("ROLLBACK")
        await write(store, 0, 5)
    with closing(Pages(path)) as found:
        assert found.differing(1, 1_000) == []
    store._writer.compare(1, 1_000)
    await store.close()
    assert look(path) is None


@pytest.mark.parametrize("behind", [0, 1], ids=["after its mark", "before its mark"])
async def test_another_program_that_writes_the_log_back_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, history: History, behind: int
) -> None:
    """After a kill somebody just looks, with the command line of SQLite, say."""
    path = tmp_path / "d0.sqlite"
    history.last.put(path)
    claim = read_mark(path)
    assert claim is not None
    make_mark(path, claim._replace(commit=claim.commit - behind))
    outside(path, COUNT)
    found = Files.of(path)
    assert (found.log, found.sums) == (None, history.last.sums)
    assert found.main != history.last.main
    assert look(path) is None
    with caplog.at_level(logging.WARNING, "toque"):
        verdict = await asyncio.to_thread(judge, found, history, history.commits, tmp_path)
    assert verdict == Verdict("equal")
    assert "another program" in caplog.text
    flip(path, 5)
    with pytest.raises(StoreDamaged, match="page 5 is not as written"):
        opened(path)


# --- locks ----------------------------------------------------------------------------------------


async def test_a_store_that_closes_takes_no_lock_of_another_in_its_process(tmp_path: Path) -> None:
    """Whoever closes a file loses all of the process's locks on it. Then another process would take
    itself for the last one, and remove the log under the owner."""
    path = tmp_path / "d0.sqlite"
    first = threaded(path)
    second = threaded(path)
    await write(second, 0, 3)
    await first.close()
    with changing(path):
        assert look(path) is None
    log = Path(f"{path}-wal").stat().st_ino
    assert outside(path, COUNT) == "[(3,)]"
    assert Path(f"{path}-wal").stat().st_ino == log
    await write(second, 3, 3)
    assert outside(path, COUNT) == "[(6,)]"
    assert str(path) in pages._held
    await second.close()
    assert str(path) not in pages._held, "files stay open"


# --- found later on -------------------------------------------------------------------------------


async def test_damage_behind_what_an_opening_compares_is_found_while_the_store_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d0.sqlite"
    store = threaded(path)
    await write(store, 0, 300)
    await store.close()
    flip(path, 140)
    monkeypatch.setattr(limits, "PAGES_AT_OPENING_BYTES", 0)
    store = threaded(path)
    broken = asyncio.get_running_loop().create_future()
    store.on_broken = broken.set_result
    error = await broken
    assert isinstance(error, StoreDamaged)
    assert "page 140 is not as written" in str(error)
    assert "--accept-loss d0" in str(error)
    await store.close()
    with pytest.raises(StoreDamaged, match="page 140 is not as written"):  # at once
        threaded(path)
    flip(path, 140)
    store = threaded(path)
    assert store.statistics()["pages_compared"] >= 1
    assert store.query_now(HOW_MANY) == [(300,)]
    await store.close()


async def test_all_is_compared_again_while_commits_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_PAGES", 30)
    all_the_time(monkeypatch)
    path = tmp_path / "d0.sqlite"
    store = threaded(path)
    await write(store, 0, 300)
    while store.statistics()["pages_compared"] < 1_000:
        await write(store, 0, 5)
    assert store.broken is None
    flip(path, 100)
    while store.broken is None:
        await asyncio.sleep(0)
    assert isinstance(store.broken, StoreDamaged)
    await store.close()


def test_the_doctor_compares_all_and_changes_nothing(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAGES_AT_OPENING_BYTES", 0)
    path = tmp_path / "d0.sqlite"
    history.last.put(path)
    assert look(path) is None
    assert Files.of(path) == history.last
    with closing(Pages(path)) as found:
        last = found.main_pages()
    outside(path, "PRAGMA wal_checkpoint")
    with changing(path):
        pass
    flip(path, last)
    before = Files.of(path)
    fault = look(path)
    assert fault is not None
    assert (fault.is_damage, fault.can_go_on) == (True, True)
    assert f"page {last} is not" in fault.why
    assert Files.of(path)._replace(log=before.log) == before
