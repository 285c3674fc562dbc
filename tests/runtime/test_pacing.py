"""Work in bulk leaves each turn of the loop, and the store's open batch, to others as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toque.runtime import limits
from toque.runtime.pacing import Pacer
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Table

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)
ROWS = Table("rows", (("entity", "TEXT"), ("n", "INTEGER")), key_size=2)
TURN = limits.PACED_PER_TURN_MAX


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store on virtual time."""
    store = SqliteStore.open(
        tmp_path / "d0.sqlite", tables=[ROWS], writer="inline", commit_delay=lambda: 0.005
    )
    yield store
    if store.broken is None:
        await store.close()


async def turns(done: list[Any], count: int) -> list[int]:
    """How much was done after each of so many turns of the loop."""
    found = []
    for _ in range(count):
        await asyncio.sleep(0)
        found.append(len(done))
    return found


async def test_a_turn_does_a_bounded_part_in_the_order_given(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        done: list[int] = []
        pacer = Pacer(store, asyncio.get_running_loop())
        pacer.add(partial(done.append, n) for n in range(TURN + 1))
        pacer.add(partial(done.append, n) for n in range(TURN + 1, 2 * TURN + 1))
        assert not pacer.idle
        assert await turns(done, 4) == [TURN, 2 * TURN, 2 * TURN + 1, 2 * TURN + 1]
        assert done == sorted(done)
        assert pacer.idle


async def test_what_is_added_by_a_piece_is_done_after_the_rest(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        done: list[str] = []
        pacer = Pacer(store, asyncio.get_running_loop())
        pacer.add(
            [lambda: pacer.add([partial(done.append, "late")]), partial(done.append, "early")]
        )
        await turns(done, 3)
        assert done == ["early", "late"]


async def test_it_waits_while_the_disk_is_behind(tmp_path: Path) -> None:
    """Else a full batch would refuse the calls of others."""
    async with opened(tmp_path) as store:
        written: list[int] = []

        def write(n: int) -> None:
            for part in range(100):
                store.put("x", ROWS, ("x", 100 * n + part))
            written.append(n)

        pacer = Pacer(store, asyncio.get_running_loop())
        count = 10 * limits.BATCH_ROWS_MAX // 100
        pacer.add(partial(write, n) for n in range(count))
        most = 0
        while len(written) < count:
            await asyncio.sleep(0.001)
            assert store.has_room(limits.BATCH_ROWS_RESERVED, limits.BATCH_BYTES_RESERVED)
            most = max(most, store._group.open_rows)
        assert most <= limits.PACED_ROWS_MAX + 100 * TURN
        await store.flush()


async def test_nothing_is_done_after_the_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        done: list[int] = []
        pacer = Pacer(store, asyncio.get_running_loop())
        pacer.add([pacer.close, partial(done.append, 1)])
        pacer.add([partial(done.append, 2)])
        await turns(done, 3)
        assert not done
        pacer.add([partial(done.append, 3)])
        await turns(done, 3)
        assert not done


async def test_nothing_is_done_once_the_store_has_broken(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        done: list[int] = []
        pacer = Pacer(store, asyncio.get_running_loop())
        pacer.add([partial(done.append, 1)])
        store.crash("lost")
        await turns(done, 3)
        assert not done
