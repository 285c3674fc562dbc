"""How long a create takes over HTTP at a steady rate, in an open loop.

Creates are sent at their intended times whether earlier ones were answered or not, and each is
timed from the time at which it was intended: a server that stalls is not spared. Prints p50 and
p99 for each rate as a table and a line of JSON, with the machine's load meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer

from toque.loadtest.histograms import percentile

from . import asked, sections
from .figures import table
from .server import Server

QUANTILES = (("p50", 0.5), ("p99", 0.99))
SETTLE_S = 3


class Load:
    """Calls a server's REST API."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._base = f"{url}/client/v4/accounts/default/workflows"

    async def get(self, path: str) -> Any:
        """The answer to a GET."""
        async with self._session.get(self._base + path) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def post(self, path: str, body: Any) -> Any:
        """The answer to a POST."""
        async with self._session.post(self._base + path, json=body) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def create_at(
        self,
        rate: float,
        *,
        count: int | None = None,
        stop: asyncio.Event | None = None,
        workflow: str = "Parked",
    ) -> list[float]:
        """Create at a rate until `count` or `stop`; milliseconds of each from its intended time."""
        loop = asyncio.get_running_loop()
        took: list[float] = []

        async def one(intended: float) -> None:
            await self.post(f"/{workflow}/instances", {})
            took.append((loop.time() - intended) * 1000)

        tasks: set[asyncio.Task[None]] = set()
        start, number = loop.time(), 0
        while (count is None or number < count) and not (stop is not None and stop.is_set()):
            intended = start + number / rate
            if (wait := intended - loop.time()) > 0:
                await asyncio.sleep(wait)
            tasks.add(asyncio.ensure_future(one(intended)))
            number += 1
        await asyncio.gather(*tasks)
        return took


@contextlib.asynccontextmanager
async def serving(folder: Path, *, ray: bool = False) -> AsyncIterator[Load]:
    """A `toque dev` process of its own, and calls to it."""
    with Server(folder, embedded=not ray) as server:
        headers = {"Authorization": f"Bearer {server.access['token']}"}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            yield Load(session, server.access["url"])


def _since_ms(line: dict[str, Any], until: str) -> float:
    first, last = (datetime.fromisoformat(line[key]) for key in ("created_on", until))
    return (last - first).total_seconds() * 1000


async def lives_ms(load: Load, newest: int) -> dict[str, float]:
    """From create to running and to the end, as the server's own times say, of the newest."""
    await asyncio.sleep(SETTLE_S)
    lines: list[dict[str, Any]] = []
    cursor = ""
    while len(lines) < newest:
        page = await load.get(f"/OneStep/instances?per_page=500&direction=desc{cursor}")
        lines += page["result"]
        if not page["result_info"].get("cursor"):
            break
        cursor = f"&cursor={page['result_info']['cursor']}"
    ended = [line for line in lines[:newest] if line.get("ended_on")]
    if not ended:
        raise SystemExit(f"no instance has ended {SETTLE_S} s after the last create")
    found = {"ended": float(len(ended))}
    for name, until in (("start", "started_on"), ("end", "ended_on")):
        took = [_since_ms(line, until) for line in ended]
        found |= {f"{name}_{q}_ms": round(percentile(took, n), 1) for q, n in QUANTILES}
    return found


async def measure(load: Load, rates: list[float], seconds: float) -> list[dict[str, Any]]:
    """Each rate for some seconds, after a second to warm up."""
    found = []
    for rate in rates:
        await load.create_at(rate, count=int(rate), workflow="OneStep")
        start = time.perf_counter()
        took = await load.create_at(rate, count=int(rate * seconds), workflow="OneStep")
        spent = time.perf_counter() - start
        found.append(
            {
                "rate": rate,
                "creates": len(took),
                "answered_per_s": round(len(took) / spent, 1),
                "p50_ms": round(percentile(took, 0.5), 2),
                "p99_ms": round(percentile(took, 0.99), 2),
                "max_ms": round(percentile(took, 1), 2),
                **await lives_ms(load, len(took)),
                "load": round(os.getloadavg()[0], 1),
            }
        )
    return found


def show(rows: list[dict[str, Any]]) -> None:
    """As a table, and as JSON."""
    print(*(f"{name:>14}" for name in rows[0]))
    for row in rows:
        print(*(f"{value!s:>14}" for value in row.values()))
    print(json.dumps(rows))


def report(rows: list[dict[str, Any]], seconds: float, ray: bool) -> str:
    """The section."""
    head = ["creates /s", "answered /s", "p50 ms", "p99 ms", "longest ms"]
    head += ["to running: p50 ms", "p99 ms", "to the end: p50 ms", "p99 ms", "machine's load"]
    keys = ("rate", "answered_per_s", "p50_ms", "p99_ms", "max_ms")
    keys += ("start_p50_ms", "start_p99_ms", "end_p50_ms", "end_p99_ms", "load")
    lines = [[f"{row[key]:g}" for key in keys] for row in rows]
    where = "on Ray" if ray else "one process"
    return f"""## Creates at a steady rate

`python -m bench creates`: for {seconds:g} s each, over HTTP, {where}, in an open loop: every create
is sent at its intended time, whether earlier ones were answered or not, and is timed from then. To
running and to the end of the one step: by the server's own times, from the create on.

{table(head, lines)}
"""


async def _measured(rates: list[float], seconds: float, ray: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as folder:
        async with serving(Path(folder), ray=ray) as load:
            return await measure(load, rates, seconds)


def command(
    rates: Annotated[str, typer.Option(help="Creates a second, one after the other.")] = "300",
    seconds: Annotated[float, typer.Option(min=1)] = 300,
    ray: Annotated[bool, typer.Option(help="On Ray, as users run it.")] = True,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """Creates at a steady rate, in an open loop."""
    rows = asyncio.run(_measured(asked.numbers(rates, "--rates", 1), seconds, ray))
    show(rows)
    if page:
        sections.put("creates", report(rows, seconds, ray), figures={**rows[0], "seconds": seconds})
