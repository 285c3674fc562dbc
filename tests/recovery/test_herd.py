"""A herd of alarms that fell due while nobody had the directory: all fire, calls go on beside."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

import toque
from toque.runtime.entity import AlarmInfo
from toque.runtime.limits import HOUR_MS
from toque.runtime.pages_sqlite import changing

WAIT_S = 600.0


class Bell(toque.DurableObject):
    """Notes that it rang."""

    async def rung(self) -> int:
        """How often."""
        return int(await self.ctx.storage.get("rung", 0))

    async def alarm(self, info: AlarmInfo) -> None:
        await self.ctx.storage.put("rung", await self.rung() + 1)


async def herd(folder: Path, size: int) -> list[float]:
    """Let so many fire; gives how long calls took meanwhile, in seconds, in order of length."""

    async def fired() -> int:
        return int((await client.statistics())["d0"]["alarms_fired"])

    async with toque.embedded(folder, [Bell]) as runtime:
        now_ms = runtime.control_plane.clock.now_ms()
    with changing(folder / "shards" / "d0.sqlite") as store:
        store.execute("BEGIN")
        store.executemany(
            "INSERT INTO alarms (kind, key, due_ms, retries) VALUES ('Bell', ?, ?, 0)",
            ((f"b{number}", now_ms - HOUR_MS) for number in range(size)),
        )
    took = []
    async with toque.embedded(folder, [Bell]) as runtime:
        client = runtime.client()
        assert await fired() < size, "all had fired before anybody called"
        async with asyncio.timeout(WAIT_S):
            while not took or len(took) % 10 or await fired() < size:
                start = time.perf_counter()
                await runtime.object("Bell", f"caller{len(took) % 50}").rung()
                took.append(time.perf_counter() - start)
        assert await runtime.object("Bell", f"b{size // 2}").rung() == 1
    with closing(sqlite3.connect(folder / "shards" / "d0.sqlite")) as store:
        left = store.execute("SELECT count(*) FROM alarms WHERE kind = 'Bell'").fetchone()
        rung = store.execute("SELECT count(*) FROM kv WHERE kind = 'Bell'").fetchone()
    assert (left, rung) == ((0,), (size,))
    return sorted(took)


async def test_a_herd_fires_and_calls_go_on(tmp_path: Path) -> None:
    took = await herd(tmp_path / "data", 5_000)
    assert took[-1] < 1


@pytest.mark.campaign
@pytest.mark.timeout(900)
async def test_a_herd_of_a_hundred_thousand(tmp_path: Path) -> None:
    size = int(os.environ.get("TOQUE_HERD", "100000"))
    start = time.monotonic()
    took = await herd(tmp_path / "data", size)
    print(
        f"{size} alarms in {time.monotonic() - start:.0f} s; of {len(took)} calls beside, p99 "
        f"{took[len(took) * 99 // 100] * 1000:.0f} ms, longest {took[-1] * 1000:.0f} ms"
    )
    assert took[len(took) * 99 // 100] < 1
