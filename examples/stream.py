"""A result that is too large for a row: one step streams it to a file, others read it.

    python examples/stream.py

A body that returns an iterator of bytes (this one is a generator) has it written to a file under
the data directory, chunk by chunk, never all in memory. `run` gets a handle, which it passes on to
other steps; the client reads the content by the step's name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import toque


class Export(toque.WorkflowEntrypoint):
    """Exports so many orders as lines of JSON, and counts them."""

    async def run(self, event: toque.WorkflowEvent[int], step: toque.WorkflowStep) -> int:
        def export() -> Iterator[bytes]:
            for number in range(event.payload):
                yield json.dumps({"order": number}).encode() + b"\n"

        orders = await step.do("export", export)

        def count() -> int:
            return sum(part.count(b"\n") for part in orders)

        return await step.do("count", count)


async def main(data: Path, orders: int) -> tuple[int, int]:
    """How many orders were exported, and into how many bytes."""
    async with toque.embedded(data, [Export]) as runtime:
        instance = await runtime.client().create_instance("Export", params=orders)
        counted = await instance.output(int, timeout=60)
        size = 0
        async for part in instance.stream("export-1"):
            size += len(part)
        return counted, size


if __name__ == "__main__":
    print(asyncio.run(main(Path(".toque/stream"), 50_000)))
