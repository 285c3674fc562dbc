"""No answer of an owner that has been followed; no read of writes that may yet be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from toque.runtime import chain_sqlite
from toque.runtime.chain import Claim
from toque.runtime.entity import DurableObject
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import EntityReset, Fenced, ToqueError
from toque.runtime.host import Host, tables_of
from toque.runtime.ids import EntityRef, Placement
from toque.runtime.link_local import LocalLinks
from toque.runtime.rpc import Router, ShardServer
from toque.runtime.simloop import LoopClock, VirtualTimeLoop
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Table

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)

ROWS = Table("cells", (("entity", "TEXT"), ("value", "INTEGER")), key_size=1)
CELL = EntityRef("Cell", "a")
COMMIT_S = 0.01


class Cell(DurableObject):
    """One number."""

    TABLES = (ROWS,)

    def set(self, value: int) -> None:
        self.ctx.put(ROWS, (self.ctx.ref.key, value))

    def get(self) -> int:
        row = self.ctx.get(ROWS, (self.ctx.ref.key,))
        return row[1] if row else 0


def opened(path: Path) -> SqliteStore:
    """The shard's store, opened by one more owner."""
    return SqliteStore.open(
        path,
        tables=tables_of({"Cell": Cell}),
        loop=asyncio.get_running_loop(),
        writer="inline",
        commit_delay=lambda: COMMIT_S,
    )


def hosted(
    store: SqliteStore, on_broken: Callable[[BaseException], None] | None = None
) -> tuple[Host, Router]:
    """A host over the store, and a router that reaches it."""
    loop = asyncio.get_running_loop()
    links = LocalLinks(loop)
    router = Router(Placement(1, 1), links, loop)
    classes = {"Cell": Cell}
    envs = {"Cell": None}
    clock = LoopClock(loop)
    host = Host(
        "d0", store, clock, SeededEntropy(1), loop, router, classes, envs, on_broken=on_broken
    )
    links.register("d0", ShardServer(host, loop))
    host.start()
    return host, router


async def test_a_read_is_refused_as_soon_as_there_is_a_newer_owner(tmp_path: Path) -> None:
    """Also after a commit that nobody was told of: it says nothing of what has come since."""
    store = opened(tmp_path / "d0.db")
    host, router = hosted(store)
    await router.call(CELL, "set", 1)
    cell = host.local(CELL)
    assert isinstance(cell, Cell)
    cell.set(2)
    await store.flush()
    newer = opened(tmp_path / "d0.db")
    with pytest.raises(Fenced):
        await router.call(CELL, "get")
    host.close()
    router.close()
    store.crash("lost")
    await newer.close()


async def test_a_broken_store_ends_its_host_though_nothing_waits(tmp_path: Path) -> None:
    """A write that nobody asked about, an alarm say, must not leave a dead shard standing."""
    told: list[BaseException] = []
    store = opened(tmp_path / "d0.db")
    host, router = hosted(store, told.append)
    store.put("somebody", ROWS, ("a", 1))
    newer = opened(tmp_path / "d0.db")
    await asyncio.sleep(COMMIT_S * 2)
    assert [type(error) for error in told] == [Fenced]
    with pytest.raises(ToqueError):
        await router.call(CELL, "get", timeout_ms=500)
    host.close()
    router.close()
    store.crash("lost")
    await newer.close()


async def test_a_reset_entity_shows_nothing_that_may_yet_be_lost(tmp_path: Path) -> None:
    store = opened(tmp_path / "d0.db")
    host, router = hosted(store)
    await router.call(CELL, "set", 1)
    written = router.call(CELL, "set", 2)
    await asyncio.sleep(COMMIT_S / 2)  # the commit is under way
    host.reset(host._live[CELL], EntityReset("as if a critical section had failed"))
    read = router.call(CELL, "get")
    await asyncio.sleep(COMMIT_S / 4)
    assert not read.done()
    assert await read == 2
    await asyncio.wait([written])
    written.exception()
    host.close()
    router.close()
    await store.close()


async def test_a_store_that_was_made_while_somebody_looked_for_its_mark_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d0.sqlite"
    first: list[SqliteStore] = []
    read = chain_sqlite.read_mark

    def before_it_was_made(store: Path) -> Claim | None:
        claim = read(store)
        if not first:
            monkeypatch.setattr(chain_sqlite, "read_mark", read)
            first.append(opened(path))
        return claim

    monkeypatch.setattr(chain_sqlite, "read_mark", before_it_was_made)
    second = opened(path)
    assert second.epoch > first[0].epoch
    for store in (*first, second):
        await store.close()
