"""How long a create takes over HTTP at a steady rate, in an open loop.

Creates are sent at their intended times whether earlier ones were answered or not, and each is
timed from the time at which it was intended: a server that stalls is not spared. Prints p50 and
p99 for each rate as a table and a line of JSON, with the machine's load meanwhile.

    python bench/create_latency.py [--rates 100,300,600] [--seconds 20] [--ray]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from toque.runtime.limits import CREATES_PER_SECOND_MAX

APP = Path(__file__).with_name("create_app.py")
READY_S = 90


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


async def raise_rates(session: aiohttp.ClientSession, url: str) -> None:
    """Take the bounds on creates away: what is measured is the server, not its manners."""
    base = f"{url}/toque/v1/accounts/default"
    for path in ("/limits", "/workflows/Parked/limits"):
        body = {"creates_per_second": CREATES_PER_SECOND_MAX}
        async with session.patch(base + path, json=body) as answer:
            answer.raise_for_status()


@contextlib.asynccontextmanager
async def serving(folder: Path, *, ray: bool = False) -> AsyncIterator[Load]:
    """A `toque dev` process of its own, and calls to it."""
    command = [sys.executable, "-m", "toque.api.cli", "dev", str(APP), "--port", "0"]
    command += ["--data", str(folder / "data"), *([] if ray else ["--embedded"])]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + READY_S
            about = folder / "data" / "dev.json"
            while not about.exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit((folder / "server.log").read_text())
                await asyncio.sleep(0.05)
            told = json.loads(about.read_text())
            headers = {"Authorization": f"Bearer {told['token']}"}
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
                await raise_rates(session, told["url"])
                yield Load(session, told["url"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def of(took: list[float], part: float) -> float:
    """A percentile, in milliseconds."""
    return round(sorted(took)[min(len(took) - 1, int(len(took) * part))], 2)


async def measure(load: Load, rates: list[float], seconds: float) -> list[dict[str, Any]]:
    """Each rate for some seconds, after a second to warm up."""
    found = []
    for rate in rates:
        await load.create_at(rate, count=int(rate))
        start = time.perf_counter()
        took = await load.create_at(rate, count=int(rate * seconds))
        spent = time.perf_counter() - start
        found.append(
            {
                "rate": rate,
                "creates": len(took),
                "answered_per_s": round(len(took) / spent, 1),
                "p50_ms": of(took, 0.5),
                "p99_ms": of(took, 0.99),
                "max_ms": of(took, 1),
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


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rates", default="100,300,600")
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--ray", action="store_true")
    given = options.parse_args()
    rates = [float(rate) for rate in given.rates.split(",")]
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as folder:
        async with serving(Path(folder), ray=given.ray) as load:
            show(await measure(load, rates, given.seconds))


if __name__ == "__main__":
    asyncio.run(main())
