"""One durable step alone, from `step.do` to its result, against a bare commit with fsync.

In one process, without HTTP: what the engine, the entity's gates and the store take together.
"""

from __future__ import annotations

import contextlib
import statistics
from pathlib import Path

import toque

from ..app import TenSteps
from . import Row, in_turns
from .bare import BareStore


async def measure(folder: Path, scale: float) -> list[Row]:
    """A step of ten in a row, in an instance alone."""
    instances = max(2, int(20 * scale))
    running = toque.embedded(folder / "data", [TenSteps], data_shards=1, control_shards=1)
    with contextlib.closing(BareStore(folder / "bare-step.sqlite")) as bare:
        async with running as runtime:
            client = runtime.client()

            async def layer() -> float:
                took: list[float] = []
                for _ in range(instances):
                    instance = await client.create_instance("TenSteps", wait=30)
                    assert instance.last is not None
                    took += instance.last.output
                return statistics.median(took) * 1e6

            async def alone() -> float:
                return bare.commits_us(1, instances * 10)

            us, bare_us = await in_turns(layer, alone)
    return [Row("engine", "durable step alone", us, "SQLite commit of 1 row", bare_us)]
