"""What upgrades leave to do after deploy: in bounded batches, among living entities."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.migration.house import House
from tests.migration.upgrading import (
    ADDS,
    BATCH,
    NEW,
    NOTES,
    REWRITES,
    fill,
    in_new_form,
    newest_format,
    progress_of,
)
from toque.migration import background
from toque.migration.background import Background
from toque.migration.formats import STORE_UPGRADES
from toque.runtime.codec import pack, unpack
from toque.runtime.datadir import SHARDS_FOLDER
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.storage import KV
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Query, Row
from toque.runtime.upgrades import Rows, StoreUpgrade

COMMIT_S = 0.01
ROWS = 95
OLD = Query("old", f"SELECT count(*) FROM notes WHERE text NOT LIKE '{NEW}%' AND text != 'short'")
pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


def opened(path: Path, *upgrades: StoreUpgrade) -> SqliteStore:
    return SqliteStore.open(
        path,
        tables=[NOTES],
        writer="inline",
        commit_delay=lambda: COMMIT_S,
        upgrades=upgrades,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of today's format with rows in the old form."""

    async def main() -> None:
        store = opened(tmp_path / "d0.sqlite")
        fill(store, ROWS)
        await store.flush()
        await store.close()

    with newest_format(REWRITES.to - 1), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    return tmp_path / "d0.sqlite"


@pytest.fixture(autouse=True)
def a_newer_format() -> Iterator[None]:
    with newest_format(REWRITES.to):
        yield


def started(store: SqliteStore, *upgrades: StoreUpgrade) -> Background:
    running = Background(store, upgrades, asyncio.get_running_loop())
    running.start()
    return running


async def ended(store: SqliteStore) -> None:
    while progress_of(store):
        await asyncio.sleep(COMMIT_S)
    await store.flush()
    assert store.query_now(OLD) == [(0,)]


async def test_rows_change_in_batches_and_the_way_is_noted(path: Path) -> None:
    with newest_format(REWRITES.to - 1):
        store = opened(path)
    before = {row[:2]: row for row in store.scan(NOTES)}
    await store.close()
    store = opened(path, REWRITES)
    assert progress_of(store) == [(REWRITES.to, b"")]
    assert store.query_now(OLD)[0][0] > 50  # nothing is done while it is opened
    started(store, REWRITES)
    left = []
    while progress_of(store):
        left.append(store.query_now(OLD)[0][0])
        await asyncio.sleep(COMMIT_S)
    steps = [a - b for a, b in pairwise(left)]
    assert max(steps) <= BATCH
    assert len([step for step in steps if step]) >= ROWS // BATCH - 1
    await ended(store)
    assert {row[:2]: row for row in store.scan(NOTES)} == {
        key: in_new_form(row) or row for key, row in before.items()
    }
    await store.close()
    again = opened(path, REWRITES)
    assert progress_of(again) == []
    await again.close()


async def test_entities_live_meanwhile(path: Path) -> None:
    """Rows that others write, delete or add while it runs are theirs."""
    store = opened(path, REWRITES)
    started(store, REWRITES)
    n = 0
    while progress_of(store):
        store.put("live", NOTES, ("e3", 3 + 7 * (n % 13), f"{NEW}live {n}"))
        store.delete("live", NOTES, ("e5", 5 + 7 * (n % 13)))
        store.put("live", NOTES, ("e9", n, f"{NEW}added"))
        n += 1
        await asyncio.sleep(COMMIT_S / 3)
    await ended(store)
    assert n > 10
    live = [row for row in store.scan(NOTES, ("e3",)) if "live" in row[2]]
    assert len(live) == 13
    assert store.scan(NOTES, ("e5",)) == []
    assert len(store.scan(NOTES, ("e9",))) == n
    await store.close()


@pytest.mark.parametrize("outcome", ["lost", "kept"])
async def test_a_crash_at_every_commit_goes_on_from_the_note(
    path: Path, outcome: Literal["lost", "kept"], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    changes_of = background.changes_of

    def counted(*args: Any) -> Any:
        nonlocal looked_at
        looked_at += 1
        return changes_of(*args)

    monkeypatch.setattr(background, "changes_of", counted)
    crashes = 0
    while True:
        store = opened(path, REWRITES)
        running = started(store, REWRITES)
        if not progress_of(store):
            break
        await asyncio.sleep(1.5 * COMMIT_S if outcome == "lost" else 0.5 * COMMIT_S)
        store.crash(outcome)
        running.close()
        crashes += 1
    await ended(store)
    assert crashes >= ROWS // BATCH
    assert looked_at <= 2 * crashes  # what was noted is not looked at again
    await store.close()


async def test_a_full_batch_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path, REWRITES)
    monkeypatch.setattr(store._group, "_rows_max", 1)
    store.put("others", NOTES, ("e9", 1, f"{NEW}x"))
    started(store, REWRITES)
    await asyncio.sleep(10 * COMMIT_S)
    assert progress_of(store) == [(REWRITES.to, b"")]
    monkeypatch.undo()
    await ended(store)
    await store.close()


async def test_a_fenced_owner_upgrades_nothing(path: Path) -> None:
    zombie = opened(path, REWRITES)
    old = started(zombie, REWRITES)
    await asyncio.sleep(COMMIT_S / 2)
    owner = opened(path, REWRITES)
    note = progress_of(owner)
    await asyncio.sleep(5 * COMMIT_S)
    assert zombie.broken is not None
    assert progress_of(owner) == note == [(REWRITES.to, b"")]
    old.close()
    zombie.crash("lost")
    started(owner, REWRITES)
    await ended(owner)
    await owner.close()


async def test_the_next_upgrade_ends_what_was_left(path: Path) -> None:
    """It may rely on all rows being in the form of the format before it."""
    store = opened(path, REWRITES)
    running = started(store, REWRITES)
    await asyncio.sleep(3 * COMMIT_S)
    assert progress_of(store)[0][1] != b""
    running.close()
    store.crash("kept")
    with newest_format(ADDS.to):
        store = opened(path, REWRITES, ADDS)
    assert progress_of(store) == []
    assert store.query_now(OLD) == [(0,)]
    changed = sum(in_new_form(("e", n, "text")) is not None and n % 5 != 0 for n in range(ROWS))
    assert store.query_now(Query("counted", "SELECT n FROM counted")) == [(changed,)]
    await store.close()


async def test_a_shard_that_is_opened_upgrades_in_the_background(tmp_path: Path) -> None:
    """The whole shard: its users' entities answer before, meanwhile and after."""

    def greater(row: Row) -> Row | None:
        *key, value = row
        total = unpack(value)
        return (*key, pack(total + 100)) if key[1] != "new" and total < 100 else None

    (tmp_path / SHARDS_FOLDER).mkdir()
    with newest_format(REWRITES.to - 1):
        house = House(tmp_path)
        for n in range(8):
            await house.counter(f"c{n}").add(n)
        await house.close()
    values = StoreUpgrade(REWRITES.to, "values are greater", after=Rows(KV, greater, 2))
    house = House(tmp_path, seed="later", upgrades=[*STORE_UPGRADES, values])
    store = house.shards["d0"].store
    assert progress_of(store) != []
    while progress_of(store):
        assert await house.counter("new").add(0) == 0
    for n in range(8):
        assert await house.counter(f"c{n}").add(0) == n + 100
    await house.close()


@pytest.mark.loop(factory=asyncio.new_event_loop)
def test_killed_again_and_again_it_ends(path: Path) -> None:
    """Real processes: each is killed after a few commits."""
    command = [sys.executable, "-m", "tests.migration.upgrading", str(path)]
    root = Path(__file__).parents[2]
    kills = 0
    while True:
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            process.kill()
            rest = process.stdout.read()
            process.wait(60)
        kills += process.returncode == -signal.SIGKILL
        if process.returncode == 0 or not lines[0] or kills > 12:
            break
        assert "Traceback" not in rest
    assert kills >= 1

    async def main() -> None:
        store = opened(path, REWRITES)
        started(store, REWRITES)
        await ended(store)
        await store.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
