"""The third workload: instances that wait for an event, on Ray, until every process is killed.

First all of them are woken by events. Then as many wait again, all processes of the server get
SIGKILL at once, it is started again on the same data, and the first, the middle and the last one
made get their events as soon as the server takes them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from toque.runtime import limits

from . import processes
from .server import Server

CONC = 32
LIMIT_S = 300


async def create(client: Any, prefix: str, n: int) -> float:
    """Make `n` that wait; gives the seconds until all were acknowledged, once all wait."""
    start = time.perf_counter()
    made = await client.create_instances("Wait", ({"id": f"{prefix}{i}"} for i in range(n)))
    took = time.perf_counter() - start
    if len(made) != n:
        raise SystemExit(f"{len(made)} of {n} were made")
    end = time.monotonic() + LIMIT_S
    while (await counts(client)).get("waiting", 0) < n:
        if time.monotonic() > end:
            raise SystemExit(f"not all of {n} wait after {LIMIT_S} s: {await counts(client)}")
        await asyncio.sleep(0.2)
    return took


async def counts(client: Any) -> dict[str, int]:
    """How many there are by status."""
    found: dict[str, int] = (await client.get_workflow("Wait")).instances
    return found


async def wake_all(client: Any, prefix: str, n: int) -> tuple[float, float]:
    """Send every event; seconds until all were acknowledged, and until all have ended."""
    numbers, start = iter(range(n)), time.perf_counter()

    async def worker() -> None:
        for number in numbers:
            await client.instance("Wait", f"{prefix}{number}").send_event("go", 1)

    await asyncio.gather(*(worker() for _ in range(CONC)))
    sent = time.perf_counter() - start
    while (await counts(client)).get("complete", 0) < n:
        if time.perf_counter() - start > LIMIT_S:
            raise SystemExit(f"not all of {n} have ended: {await counts(client)}")
        await asyncio.sleep(0.1)
    return sent, time.perf_counter() - start


async def first_life(server: Server, n: int) -> dict[str, float]:
    """Wait, be woken, wait again."""
    async with server.client() as client:
        await client.create_instance("OneStep", wait=30)
        base = server.memory_bytes()
        with processes.Window(server.pid) as window:
            create_s = await create(client, "a-", n)
        live = server.memory_bytes()
        await asyncio.sleep(limits.IDLE_EVICTION_MS / 1000 + 5)
        waiting, cpu = server.memory_bytes(), server.cpu_s()
        await asyncio.sleep(5)
        idle = (server.cpu_s() - cpu) / 5
        send_s, all_s = await wake_all(client, "a-", n)
        await create(client, "b-", n)
    return {
        "n": n,
        "waiter_creates_per_s": n / create_s,
        "live_per_waiter_kib": (live - base) / n / 1024,
        "pss_per_waiter_kib": (waiting - base) / n / 1024,
        "idle_cpu_cores": idle,
        "send_s": send_s,
        "wakeups_per_s": n / all_s,
        "other_cpu_cores": window.others_cores,
    }


async def second_life(server: Server, n: int, start: float) -> dict[str, float]:
    """Events to the first, the middle and the last one, after the kill at `start`."""
    async with server.client() as client:

        async def one(number: int) -> float:
            instance = client.instance("Wait", f"b-{number}")
            await instance.send_event("go", 1)
            await instance.wait(LIMIT_S)
            return time.perf_counter() - start

        first, middle, last = await asyncio.gather(one(0), one(n // 2), one(n - 1))
    return {
        "recovery_first_event_s": min(first, middle, last),
        "recovery_last_event_s": max(first, middle, last),
    }


def measure(n: int) -> dict[str, float]:
    """One run on a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as name:
        folder = Path(name)
        with Server(folder) as server:
            found = asyncio.run(first_life(server, n))
            server.kill()
        start = time.perf_counter()
        with Server(folder) as server:
            found["recovery_server_up_s"] = time.perf_counter() - start
            found |= asyncio.run(second_life(server, n, start))
    return found
