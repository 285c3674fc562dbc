"""Stores and directories of older formats are upgraded, and all that was in them goes on.

The stores of each format were made when it was the newest (see `making`). Each upgrade is cut short
after every statement, and by killing the process; the next opening ends it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.migration import victim
from tests.migration.flows import FLOWS, Counter, held
from tests.migration.house import ACCOUNT, START_MS, House
from tests.migration.making import make, store_from
from toque.api import cli_doctor
from toque.api.formats_sqlite import formats_of
from toque.api.wiring import embedded
from toque.migration.formats import DIR_UPGRADES, STORE_UPGRADES
from toque.runtime import datadir, opening_sqlite
from toque.runtime.chain_sqlite import look
from toque.runtime.datadir import DIR_FORMAT, SHARDS_FOLDER, DataDir, store_path
from toque.runtime.errors import DataDirFormat, InstanceNotFound
from toque.runtime.high_water import make_mark, mark_path
from toque.runtime.pages import sums_path
from toque.runtime.schema_sqlite import CHAIN_FORMAT, STORE_FORMAT, SUMS_FORMAT
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.store_sqlite import SqliteStore

STORES = Path(__file__).with_name("stores")
OLDER = [f"format-{number}" for number in range(1, STORE_FORMAT)]
LATER_MS = START_MS + 60_000


def directory_from(name: str, folder: Path) -> Path:
    """A data directory with the stores of an older format."""
    (folder / SHARDS_FOLDER).mkdir(parents=True)
    (folder / "toque.json").write_bytes((STORES / name / "toque.json").read_bytes())
    for text in (STORES / name).glob("*.sql"):
        store = store_path(folder, text.stem)
        store_from(text.read_text(encoding="utf-8"), store)
        if format_of(name) >= CHAIN_FORMAT:
            make_mark(store)
    return folder


@pytest.fixture(params=OLDER)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return directory_from(request.param, tmp_path / "data")


def format_of(name: str) -> int:
    return int(name.removeprefix("format-"))


def rows(store: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def everything(store: Path) -> dict[str, list[Any]]:
    """All rows of a store's tables, but those about the store itself."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'shard%'"
    return {
        name: sorted(rows(store, f'SELECT * FROM "{name}"'), key=repr)
        for (name,) in rows(store, names)
        if name != "pending_upgrades"
    }


def open_and_close(store: Path, **options: Any) -> None:
    """Take a store over by today's code, and let it go."""

    async def main() -> None:
        opened = SqliteStore.open(store, **{"tables": [], "upgrades": STORE_UPGRADES, **options})
        await opened.close()

    asyncio.run(main())


# --- all that was in them goes on ---


async def all_ends_right(folder: Path) -> None:
    """Every instance of `making.live` comes to the end that it would have come to then."""
    house = House(folder, LATER_MS, seed="later")
    client = house.client
    house.held.set()
    assert (await client.instance("holds", "running").wait(60)).output == "let go"
    for id in ("queued-1", "queued-2"):
        assert (await client.instance("adds", id).wait(60)).output == 102
    ended = await client.instance("adds", "ended").status()
    assert (ended.status, ended.output) == ("complete", 42)
    assert [step.output for step in ended.steps] == [41, [41, "zwei", {"drei": 3.5}], 42]
    errored = await client.instance("fails", "errored").status()
    assert errored.status == "errored"
    assert errored.error is not None
    assert errored.error.message == "nothing there"
    assert (await client.instance("asks", "terminated").status()).status == "terminated"
    with pytest.raises(InstanceNotFound):
        await client.instance("adds", "deleted").status()
    assert (await client.run_instance("adds", "deleted", 5)).output == 7

    asking = client.instance("asks", "asking")
    assert [one.type for one in (await asking.why()).buffered] == ["other"]
    await asking.send_event("answer", "yes")
    assert (await asking.wait(60)).output == "Ada: yes"
    paused = client.instance("asks", "paused")
    assert (await paused.status()).status == "paused"
    again = await client.create_instance(
        "asks", "paused", {"name": "Paul"}, request_id="make-paused"
    )
    assert again.id == "paused"  # the request was answered before the upgrade
    await paused.resume()
    await paused.send_event("answer", "no")
    assert (await paused.wait(60)).output == "Paul: no"
    sleeping = await client.instance("sleeps", "sleeping").wait(7_200)
    assert sleeping.output == ["before", "came early", "after"]

    assert await house.counter("visits").add(0) == 12  # its alarm has fired meanwhile
    await client.instance("adds", "ended").restart()
    assert (await client.instance("adds", "ended").wait(60)).output == 42
    await house.close()


@pytest.mark.loop(factory=VirtualTimeLoop)
async def test_every_instance_of_an_older_store_ends_right(old: Path) -> None:
    await all_ends_right(old)
    for shard in ("c0", "d0"):
        store = store_path(old, shard)
        assert rows(store, "SELECT format, epoch FROM shard") == [(STORE_FORMAT, 2)]
        assert mark_path(store).exists()
        assert look(store) is None
    assert rows(store_path(old, "c0"), "SELECT * FROM souschef_held") == []


def test_an_upgrade_changes_no_row_of_an_entity(old: Path) -> None:
    for shard in ("c0", "d0"):
        store = store_path(old, shard)
        before = everything(store)
        open_and_close(store)
        assert sum(map(len, before.values())) > 20
        assert everything(store) == before


def test_upgraded_tables_are_those_of_a_new_store(old: Path, tmp_path: Path) -> None:
    """Statements of upgrades are written out in full; they lead to what is declared today."""
    schema = "SELECT name, sql FROM sqlite_master WHERE name LIKE 'shard%' ORDER BY name"
    fresh = tmp_path / "d0.sqlite"
    open_and_close(fresh)
    open_and_close(store_path(old, "d0"))
    assert rows(store_path(old, "d0"), schema) == rows(fresh, schema)


# --- killed on the way ---


class Cut(Exception):
    """The process is gone."""


class Cutting:
    """A connection that is cut off before one of its statements.

    Args:
        inner: the real one.
        at: which statement never runs, from 0; what was begun is rolled back, as after a kill.
    """

    def __init__(self, inner: sqlite3.Connection, at: int) -> None:
        self._inner = inner
        self._left = at

    def execute(self, *args: Any) -> Any:
        if self._left == 0:
            if self._inner.in_transaction:
                self._inner.rollback()
            raise Cut
        self._left -= 1
        return self._inner.execute(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def cut_everywhere(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Open a store again and again, each time one statement further; ends when it opens."""
    prepare = opening_sqlite.prepare
    for at in range(10_000):
        with monkeypatch.context() as patched:
            patched.setattr(
                "toque.runtime.store_sqlite.prepare",
                lambda connection, *rest, at=at: prepare(Cutting(connection, at), *rest),
            )
            try:
                open_and_close(store)
                return
            except Cut:
                yield at


def test_an_upgrade_is_cut_short_before_every_statement(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_path(old, "d0")
    before = everything(store), rows(store, "SELECT * FROM shard")
    cuts = 0
    for at in cut_everywhere(store, monkeypatch):
        assert (everything(store), rows(store, "SELECT * FROM shard")) == before, at
        cuts += 1
    assert cuts > 15
    assert rows(store, "SELECT format, epoch FROM shard") == [(STORE_FORMAT, 2)]


@pytest.mark.parametrize("point", victim.POINTS)
def test_a_process_that_is_killed_while_it_upgrades_does_no_harm(old: Path, point: str) -> None:
    store = store_path(old, "d0")
    before = everything(store)
    command = [sys.executable, "-m", "tests.migration.victim", str(store), point]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == -9, done.stderr
    was_committed = point == "committed"
    format_now = rows(store, "SELECT format FROM shard")[0][0]
    assert (format_now == STORE_FORMAT) is was_committed
    open_and_close(store)
    assert everything(store) == before
    assert rows(store, "SELECT format, epoch FROM shard") == [(STORE_FORMAT, 2 + was_committed)]


@pytest.mark.parametrize("point", [one for one in victim.POINTS if one != "half"])
def test_a_process_that_is_killed_while_it_makes_a_store_does_no_harm(
    tmp_path: Path, point: str
) -> None:
    store = tmp_path / "d0.sqlite"
    command = [sys.executable, "-m", "tests.migration.victim", str(store), point]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == -9, done.stderr
    open_and_close(store)
    assert rows(store, "SELECT format, epoch FROM shard") == [
        (STORE_FORMAT, 1 + (point == "committed"))
    ]


def test_two_openers_at_once_upgrade_once(old: Path) -> None:
    store = store_path(old, "d0")
    before = everything(store)
    command = [sys.executable, "-m", "tests.migration.victim", str(store), "none"]
    root = Path(__file__).parents[2]
    openers = [
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        for _ in range(3)
    ]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == b"ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write(b"go\n")
        opener.stdin.flush()
    assert [opener.communicate(timeout=60)[0] for opener in openers] == [b"open\n"] * 3
    assert [opener.returncode for opener in openers] == [0] * 3
    assert rows(store, "SELECT format, epoch FROM shard") == [(STORE_FORMAT, 4)]
    epochs = rows(store, "SELECT epoch FROM shard_openings WHERE epoch > 1")
    assert epochs == [(2,), (3,), (4,)]
    assert everything(store) == before


# --- refused ---


def test_without_its_upgrades_an_older_store_is_refused(old: Path) -> None:
    store = store_path(old, "d0")
    before = store.read_bytes()
    with pytest.raises(DataDirFormat, match="must be upgraded first"):
        open_and_close(store, upgrades=())
    assert store.read_bytes() == before
    assert not sums_path(store).exists()


def test_an_older_version_refuses_what_was_upgraded(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_path(old, "d0")
    open_and_close(store)
    DataDir.open(old, upgrades=DIR_UPGRADES).close()
    monkeypatch.setattr(opening_sqlite, "STORE_FORMAT", STORE_FORMAT - 1)
    monkeypatch.setattr(datadir, "DIR_FORMAT", DIR_FORMAT - 1)
    before = store.read_bytes(), (old / "toque.json").read_bytes()
    with pytest.raises(
        DataDirFormat,
        match=rf"store format {STORE_FORMAT}; .*up to {STORE_FORMAT - 1}\. Use the version that",
    ):
        open_and_close(store)
    with pytest.raises(
        DataDirFormat, match=rf"directory format {DIR_FORMAT}; .* Use the version that"
    ):
        DataDir.open(old, upgrades=DIR_UPGRADES)
    assert (store.read_bytes(), (old / "toque.json").read_bytes()) == before


# --- directories ---


def test_a_directory_is_upgraded_under_its_lock(old: Path) -> None:
    with pytest.raises(DataDirFormat, match="must be upgraded first"):
        DataDir.open(old)
    directory = DataDir.open(old, upgrades=DIR_UPGRADES)
    try:
        assert directory.settings.format == DIR_FORMAT
        assert directory.settings.stores_made
        assert directory.settings.created_ms == START_MS
        assert not directory.created
    finally:
        directory.close()
    DataDir.open(old).close()


def test_a_directory_killed_between_steps_goes_on(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is one atomic write; a kill before it leaves the step before, whole."""
    write: Callable[..., None] = datadir.write_atomically

    def killed(path: Path, content: bytes, mode: int = 0o600) -> None:
        raise Cut

    before = (old / "toque.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(datadir, "write_atomically", killed)
        with pytest.raises(Cut):
            DataDir.open(old, upgrades=DIR_UPGRADES)
    assert (old / "toque.json").read_bytes() == before
    assert datadir.write_atomically is write
    DataDir.open(old, upgrades=DIR_UPGRADES).close()


# --- told ---


def test_formats_are_told(old: Path) -> None:
    found = formats_of(old)
    older = found[0].format
    assert older < STORE_FORMAT
    assert [(one.format, one.is_fine) for one in found] == [(older, True)] * 3
    assert all("the next start upgrades it" in one.state for one in found)
    DataDir.open(old, upgrades=DIR_UPGRADES).close()
    open_and_close(store_path(old, "d0"))
    told = {Path(one.place).name: (one.format, one.state) for one in formats_of(old)}
    assert told["toque.json"] == (DIR_FORMAT, "newest")
    assert told["d0.sqlite"] == (STORE_FORMAT, "newest")
    assert told["c0.sqlite"] == (older, "older: the next start upgrades it")


def test_the_doctor_looks_no_further_and_changes_nothing(old: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(old.rglob("*")) if path.is_file()}
    for fix in (False, True):
        (found,) = cli_doctor.look_at(old, fix)
        assert (found.code, found.note, found.place) == ("format.older", True, str(old))
    assert {path: path.read_bytes() for path in before} == before
    DataDir.open(old, upgrades=DIR_UPGRADES).close()
    assert [(each.code, each.place) for each in cli_doctor.look_at(old, False)] == [
        ("format.older", str(store_path(old, shard))) for shard in ("c0", "d0")
    ]


async def test_a_runtime_upgrades_the_directory_it_opens(old: Path) -> None:
    held[asyncio.get_running_loop()] = asyncio.Event()
    held[asyncio.get_running_loop()].set()
    async with embedded(old, [*FLOWS, Counter], account=ACCOUNT) as runtime:
        assert await runtime.object("Counter", "visits").add(1) in (8, 13)
        queued = await runtime.client(ACCOUNT).instance("adds", "queued-1").wait(60)
        assert queued.output == 102
    assert {(each.format, each.state) for each in formats_of(old)} == {
        (DIR_FORMAT, "newest"),
        (STORE_FORMAT, "newest"),
    }


def test_upgrades_are_numbered_without_gaps() -> None:
    assert [one.to for one in STORE_UPGRADES] == list(range(2, STORE_FORMAT + 1))
    assert [one.to for one in DIR_UPGRADES] == list(range(2, DIR_FORMAT + 1))
    assert all(one.what for one in (*STORE_UPGRADES, *DIR_UPGRADES))
    without = [one.to for one in STORE_UPGRADES if not one.before and not one.after]
    assert without == [SUMS_FORMAT]  # the store itself makes them


def test_the_stores_of_a_format_can_be_made(tmp_path: Path) -> None:
    """The program that made them still works: the next format will need it."""
    make(tmp_path / "a")
    make(tmp_path / "b")
    for name in ("c0.sql", "d0.sql"):
        text = (tmp_path / "a" / name).read_text()
        assert "'holds'" in text or "/running'" in text
        assert len(text) > 10_000
    again = tmp_path / "again"
    (again / SHARDS_FOLDER).mkdir(parents=True)
    for name in ("c0", "d0"):
        store_from((tmp_path / "a" / f"{name}.sql").read_text(), store_path(again, name))
    assert [name for name, each in everything(store_path(again, "d0")).items() if each]
