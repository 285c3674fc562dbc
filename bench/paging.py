"""Lists while creates go on: is each earlier instance shown once, and is every page as fast?

Makes `--rows` instances, then follows cursors through the list over HTTP while `--rate` creates a
second go on. Prints a table and a line of JSON: latencies of the first, middle and last tenth of
the pages, whether any was missed or shown twice, and the machine's load meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .creates import Load, serving

BATCH = 100


async def fill(load: Load, rows: int) -> set[str]:
    """Instances that sleep, made in batches; their ids."""
    made: set[str] = set()
    gate = asyncio.Semaphore(4)

    async def batch(first: int) -> None:
        ids = [f"old-{n}" for n in range(first, min(first + BATCH, rows))]
        body = [{"instance_id": each} for each in ids]
        async with gate:
            await load.post("/Parked/instances/batch", body)
        made.update(ids)

    await asyncio.gather(*(batch(first) for first in range(0, rows, BATCH)))
    return made


async def walk(load: Load, per_page: int, direction: str) -> tuple[list[str], list[float]]:
    """All ids that the list shows, and how long each page took, in milliseconds."""
    seen: list[str] = []
    took: list[float] = []
    cursor = ""
    while True:
        query = f"per_page={per_page}&direction={direction}" + (cursor and f"&cursor={cursor}")
        start = time.perf_counter()
        page = await load.get(f"/Parked/instances?{query}")
        took.append((time.perf_counter() - start) * 1000)
        seen += [line["id"] for line in page["result"]]
        cursor = page["result_info"].get("cursor") or ""
        if not cursor:
            return seen, took


async def measure(load: Load, rows: int, rate: float, per_page: int) -> list[dict[str, Any]]:
    """Both directions, each while creates go on."""
    old = await fill(load, rows)
    found = []
    for direction in ("desc", "asc"):
        stop = asyncio.Event()
        creating = asyncio.ensure_future(load.create_at(rate, stop=stop))
        seen, took = await walk(load, per_page, direction)
        stop.set()
        created = await creating
        tenth = max(1, len(took) // 10)
        middle = len(took) // 2
        earlier = [each for each in seen if each in old]
        found.append(
            {
                "direction": direction,
                "rows": rows,
                "pages": len(took),
                "created_meanwhile": len(created),
                "missed": len(old - set(earlier)),
                "twice": len(seen) - len(set(seen)),
                "first_ms": round(statistics.median(took[:tenth]), 2),
                "middle_ms": round(statistics.median(took[middle : middle + tenth]), 2),
                "last_ms": round(statistics.median(took[-tenth - 1 : -1] or took), 2),
                "p99_ms": round(sorted(took)[int(len(took) * 0.99)], 2),
                "load": round(os.getloadavg()[0], 1),
            }
        )
    return found


def show(rows: list[dict[str, Any]]) -> None:
    """As a table, and as JSON."""
    for name in rows[0]:
        print(f"{name:18}", *(f"{row[name]!s:>10}" for row in rows))
    print(json.dumps(rows))


async def _measured(rows: int, rate: float, per_page: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as folder:
        async with serving(Path(folder)) as load:
            return await measure(load, rows, rate, per_page)


def command(
    rows: Annotated[int, typer.Option(min=1)] = 100_000,
    rate: Annotated[float, typer.Option(min=1, help="Creates a second meanwhile.")] = 100,
    per_page: Annotated[int, typer.Option(min=1, max=1000)] = 500,
) -> None:
    """Lists by cursor while creates go on."""
    show(asyncio.run(_measured(rows, rate, per_page)))
