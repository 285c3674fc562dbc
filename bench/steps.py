"""One long instance: how long 10,000 steps take, what they weigh on disk, and their replay.

In one process, fsync on. The instance ends with a wait for an event; the process's runtime is then
opened anew on the same data, and an event makes it replay everything. A ticker on the same event
loop shows for how long others had to wait meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

import toque

from . import sections
from .app import ManySteps

TICK_S = 0.001


class Ticker:
    """Wakes all the time; `worst_ms`: how late it was at worst."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.worst_ms = max(self.worst_ms, (time.perf_counter() - due) * 1000)

    def stop(self) -> None:
        """End it."""
        self._task.cancel()


async def first_life(folder: Path, steps: int) -> dict[str, float]:
    """All steps, up to the wait."""
    async with toque.embedded(folder, [ManySteps], data_shards=1, control_shards=1) as runtime:
        client = runtime.client()
        wall, cpu = time.perf_counter(), time.process_time()
        instance = await client.create_instance("ManySteps", "long", steps)
        async for event in instance.events(types=["workflow_waiting", "workflow_errored"]):
            assert event.type == "workflow_waiting", event
            break
        return {
            "first_s": time.perf_counter() - wall,
            "first_cpu_s": time.process_time() - cpu,
        }


async def second_life(folder: Path, steps: int) -> dict[str, float]:
    """Replay of all of them."""
    async with toque.embedded(folder, [ManySteps], data_shards=1, control_shards=1) as runtime:
        instance = runtime.client().instance("ManySteps", "long")
        await asyncio.sleep(0.5)
        gc.collect()
        ticker = Ticker()
        await asyncio.sleep(0.1)
        ticker.worst_ms = 0.0
        wall, cpu = time.perf_counter(), time.process_time()
        await instance.send_event("go")
        status = await instance.wait(60)
        found = {
            "replay_s": time.perf_counter() - wall,
            "replay_cpu_s": time.process_time() - cpu,
            "replay_worst_ms": ticker.worst_ms,
        }
        ticker.stop()
        assert status.output == steps * (steps - 1) // 2, status
        start = time.perf_counter()
        count = 0
        async for _ in instance.events():
            count += 1
        return {**found, "events": count, "events_s": time.perf_counter() - start}


def journal_bytes(folder: Path) -> tuple[int, int]:
    """Bytes of the journal's rows, and of the shard's file."""
    path = folder / "shards" / "d0.sqlite"
    store = sqlite3.connect(path)
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (rows,) = store.execute("SELECT sum(length(blob)) FROM steps").fetchone()
    store.close()
    return rows, path.stat().st_size


def report(found: dict[str, float], steps: int) -> str:
    """The section."""
    return f"""## An instance of {steps:,} steps

`python -m bench steps`: trivial steps one after the other, one process, fsync on every commit, \
{os.cpu_count()} cores.

| figure | value |
| --- | --- |
| all steps: time | {found["first_s"]:.2f} s, {steps / found["first_s"]:.0f} steps/s |
| CPU per step | {found["first_cpu_s"] * 1e6 / steps:.0f} us |
| journal: rows per step; the file in all | {found["row_bytes"] / steps:.0f} bytes; \
{found["file_bytes"] / 2**20:.1f} MiB |
| replay, from the event that wakes it to its end | {found["replay_s"] * 1000:.0f} ms |
| CPU of that per step | {found["replay_cpu_s"] * 1e6 / steps:.1f} us |
| longest time that others of the shard had to wait meanwhile | {found["replay_worst_ms"]:.0f} ms |
| its {found["events"]:,.0f} events read by a subscriber | {found["events_s"]:.2f} s |
"""


def measure(steps: int) -> dict[str, float]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as name:
        folder = Path(name) / "data"
        found = asyncio.run(first_life(folder, steps))
        rows, size = journal_bytes(folder)
        found |= {"row_bytes": rows, "file_bytes": size}
        return found | asyncio.run(second_life(folder, steps))


def command(
    steps: Annotated[int, typer.Option(min=1)] = 9_990,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """One long instance: time, disk, replay."""
    found = measure(steps)
    print(json.dumps(found))
    text = report(found, steps)
    print(text)
    if page:
        sections.put("steps", text, figures=found)
