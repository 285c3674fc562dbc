"""Instances that wait: what one takes in memory and out of it, and how fast a herd wakes.

A server (`toque dev --embedded`, one process: Ray's own processes do not grow with instances) gets
`n` instances that wait for an event, all kept in memory; then it is started again on the same data,
with all of them hibernated. Memory is the process's proportional set size. Then `herd` instances
that sleep until one common second are made, the server is started again so that all are out of
memory, and the ends are compared with that second.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from . import sections
from .server import Server


async def create(client: Any, workflow: str, n: int, params: Any) -> None:
    """`n` instances, and wait until all of them wait."""
    made = await client.create_instances(
        workflow, ({"id": f"i{number}", "params": params} for number in range(n))
    )
    assert len(made) == n, len(made)
    for one in made[-200:]:
        async for _ in client.instance(workflow, one.id).events(types=["workflow_waiting"]):
            break
    await asyncio.sleep(5)  # reports and alarms settle


async def live(server: Server, n: int) -> dict[str, float]:
    """All in memory."""
    async with server.client() as client:
        before, cpu, start = server.memory_bytes(), server.cpu_s(), time.perf_counter()
        await create(client, "Wait", n, None)
        wall = time.perf_counter() - start
        entities = sum(s["live_entities"] for s in (await client.statistics()).values())
        return {
            "live_bytes": (server.memory_bytes() - before) / n,
            "live_entities": entities,
            "create_cpu_ms": (server.cpu_s() - cpu) * 1000 / n,
            "create_s": wall,
            "base_bytes": before,
        }


async def hibernated(server: Server, n: int, base_bytes: float) -> dict[str, float]:
    """None in memory; then one is woken."""
    async with server.client() as client:
        await asyncio.sleep(3)
        entities = sum(s["live_entities"] for s in (await client.statistics()).values())
        found = {
            "hibernated_bytes": (server.memory_bytes() - base_bytes) / n,
            "hibernated_entities": entities,
        }
        start = time.perf_counter()
        await client.instance("Wait", "i1").send_event("go", 1)
        status = await client.instance("Wait", "i1").wait(30)
        assert status.success, status
        return {**found, "one_woken_ms": (time.perf_counter() - start) * 1000}


async def wake_herd(server: Server, n: int, until_s: int, cpu: float) -> dict[str, float]:
    """How long after the common second each ended."""
    async with server.client() as client:
        last = client.instance("Nap", f"i{n - 1}")
        await last.wait(120)
        late: list[float] = []
        while len(late) < n:
            late = [
                datetime.fromisoformat(line.ended_on).timestamp() - until_s
                async for line in client.list_instances("Nap", status="complete")
            ]
            await asyncio.sleep(0.5)
        late.sort()
        assert late[0] >= 0, "woken early"
        return {
            "herd_s": late[-1],
            "herd_per_s": n / late[-1],
            "herd_p50_s": late[n // 2],
            "herd_p99_s": late[int(n * 0.99) - 1],
            "herd_cpu_ms": (server.cpu_s() - cpu) * 1000 / n,
        }


def measure(n: int, herd_n: int) -> dict[str, float]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as name:
        folder = Path(name)
        with Server(folder, embedded=True, idle_ms=3_600_000) as server:
            found = asyncio.run(live(server, n))
        store = sum(path.stat().st_size for path in (folder / "data" / "shards").iterdir())
        found["disk_bytes"] = store / n
        print(json.dumps(found), flush=True)
        with Server(folder, embedded=True, idle_ms=60_000) as server:
            found |= asyncio.run(hibernated(server, n, found["base_bytes"]))
            until_s = int(time.time()) + max(20, herd_n // 300)
            asyncio.run(_make_herd(server, herd_n, until_s))
        with Server(folder, embedded=True, idle_ms=60_000) as server:
            slack = until_s - time.time()
            if slack < 1:
                raise SystemExit(f"the herd was made too slowly: {slack:.0f} s left")
            time.sleep(slack - 0.5)
            found |= asyncio.run(wake_herd(server, herd_n, until_s, server.cpu_s()))
    return found


async def _make_herd(server: Server, n: int, until_s: int) -> None:
    async with server.client() as client:
        await create(client, "Nap", n, {"until": until_s})


def report(found: dict[str, float], n: int, herd_n: int) -> str:
    """The section."""
    return f"""## Waiting instances

`python -m bench waiters`: {n:,} instances that wait for an event, {os.cpu_count()} cores.

| figure | value |
| --- | --- |
| memory per waiting instance, live (`run` in memory) | {found["live_bytes"] / 1024:.1f} KiB |
| memory per waiting instance, hibernated | {found["hibernated_bytes"] / 1024:.2f} KiB |
| disk per waiting instance, all stores | {found["disk_bytes"] / 1024:.1f} KiB |
| CPU of the server per create, up to waiting | {found["create_cpu_ms"]:.2f} ms |
| one woken from hibernation by an event, to its end | {found["one_woken_ms"]:.0f} ms |
| {herd_n:,} woken at one second, all out of memory: rate | {found["herd_per_s"]:.0f} /s |
| the same: median and 99th percentile after that second | {found["herd_p50_s"]:.1f} s, \
{found["herd_p99_s"]:.1f} s |
| the same: CPU of the server each, from wake-up to end | {found["herd_cpu_ms"]:.2f} ms |
"""


def command(
    n: Annotated[int, typer.Option(min=1, help="How many wait.")] = 100_000,
    herd: Annotated[int, typer.Option(min=100, help="How many are due at once.")] = 10_000,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """Instances that wait: memory, disk, waking."""
    found = measure(n, herd)
    print(json.dumps(found))
    text = report(found, n, herd)
    print(text)
    if page:
        told = {"hibernated_kib": found["hibernated_bytes"] / 1024}
        sections.put("waiters", text, figures={**found, **told})
