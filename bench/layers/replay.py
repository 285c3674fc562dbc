"""Replay of a journal, by row, against reading the same rows from the file.

An instance of many steps is woken from its hibernation by an event and runs to its end: the time
from the event to the end, over the number of its steps. CPU of the process.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from .. import steps
from . import Row


async def measure(folder: Path, scale: float) -> list[Row]:
    """One journal of many steps."""
    count = max(20, int(5_000 * scale))
    data = folder / "replay"
    await steps.first_life(data, count)
    bare_us = read_us(data / "shards" / "d0.sqlite")
    found = await steps.second_life(data, count)
    us = found["replay_cpu_s"] / count * 1e6
    return [Row("replay", "row of a journal", us, "the same row read by SQLite", bare_us)]


def read_us(path: Path) -> float:
    """CPU microseconds to read a row of the journal."""
    connection = sqlite3.connect(path)
    try:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            rows = connection.execute("SELECT * FROM steps").fetchall()
            best = min(best, (time.process_time() - start) / max(1, len(rows)))
    finally:
        connection.close()
    return best * 1e6
