"""One durable step alone, from `step.do` to its result, against a bare commit with fsync.

In one process, without HTTP: what the engine, the entity's gates and the store take together.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path

import toque

from ..app import TenSteps
from . import Row, Sample, in_turns
from .bare import BareStore


async def measure(folder: Path, scale: float) -> list[Row]:
    """A step of ten in a row, in an instance alone."""
    instances = max(2, int(20 * scale))
    running = toque.embedded(folder / "data", [TenSteps], data_shards=1, control_shards=1)
    with contextlib.closing(BareStore(folder / "bare-step.sqlite")) as bare:
        async with running as runtime:
            client = runtime.client()

            async def layer() -> Sample:
                took: list[float] = []
                cpu = time.process_time()
                for _ in range(instances):
                    instance = await client.create_instance("TenSteps", wait=30)
                    assert instance.last is not None
                    took += instance.last.output
                cpu = time.process_time() - cpu
                return statistics.median(took) * 1e6, cpu / len(took) * 1e6

            async def alone() -> Sample:
                return bare.commits(1, instances * 10)

            wall, cpu = await in_turns(layer, alone)
    against = "SQLite commit of 1 row"
    return [
        Row("engine", "durable step alone", wall[0], against, wall[1]),
        Row("engine", "durable step, its tenth of an instance, CPU", cpu[0], against, cpu[1]),
    ]
