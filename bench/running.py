"""Many instances that run at once, each in a step that awaits: memory, and who is served meanwhile.

A server on Ray gets `n` instances whose one step awaits for an hour. Memory is the proportional
set size of all processes. Then statuses, lists and creates are asked for at fixed rates for some
seconds, all at once, and each is timed from when it was due.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from typing import Annotated, Any

import aiohttp
import typer

from toque.loadtest.histograms import percentile

from . import processes, sections
from .figures import shown, table
from .load import open_loop
from .server import Server, fresh

_RATES = {"status": 50.0, "list": 10.0, "create": 20.0}


async def fill(server: Server, client: Any, n: int) -> float:
    """Create all and wait until all run; gives how long it took."""
    start = time.perf_counter()
    news = ({"id": f"i{number}", "params": {"s": 3_600}} for number in range(n))
    made = await client.create_instances("Hold", news)
    assert len(made) == n, len(made)
    while await running(server) < n:
        await asyncio.sleep(1.1)
    return time.perf_counter() - start


async def running(server: Server) -> int:
    """How many run, as the SousChefs count them."""
    headers = {"Authorization": f"Bearer {server.access['token']}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{server.access['url']}/metrics") as answer,
    ):
        text = await answer.text()
    for line in text.splitlines():
        if line.startswith("toque_instances{") and '"Hold"' in line and '"running"' in line:
            return int(float(line.rsplit(" ", 1)[1]))
    return 0


async def probe(client: Any, n: int, seconds: float) -> dict[str, list[float]]:
    """All three at their rates, at the same time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    dice = random.Random(1)

    async def status(number: int) -> None:
        await client.instance("Hold", f"i{dice.randrange(n)}").status(steps=False)

    async def page(number: int) -> None:
        lines = client.list_instances("Hold", per_page=50)
        await anext(lines)
        await lines.aclose()

    async def create(number: int) -> None:
        await client.create_instance("OneStep")

    acts = {"status": status, "list": page, "create": create}
    found = await asyncio.gather(
        *(open_loop(_RATES[name], lambda: loop.time() >= end, act) for name, act in acts.items())
    )
    return dict(zip(acts, found, strict=True))


async def measure(server: Server, n: int, seconds: float) -> dict[str, Any]:
    """All figures."""
    async with server.client() as client:
        before = memory(server)
        cpu = server.cpu_s()
        fill_s = await fill(server, client, n)
        fill_cpu = server.cpu_s() - cpu
        await asyncio.sleep(10)  # reports and alarms settle
        after = memory(server)
        cpu, start = server.cpu_s(), time.perf_counter()
        await asyncio.sleep(10)
        idle = (server.cpu_s() - cpu) / (time.perf_counter() - start)
        took = await probe(client, n, seconds)
        assert await running(server) >= n
        return {
            "n": n,
            "fill_s": fill_s,
            "fill_cpu_ms": fill_cpu * 1000 / n,
            "bytes_each": (sum(after.values()) - sum(before.values())) / n,
            "memory": after,
            "idle_cores": idle,
            "took": {
                name: {"n": len(ms), "p50": percentile(ms, 0.5), "p99": percentile(ms, 0.99)}
                for name, ms in took.items()
            },
        }


def memory(server: Server) -> dict[str, int]:
    """Proportional set size by role."""
    total: dict[str, int] = {}
    for pid in processes.descendants(server.pid):
        role = processes.role(pid, server.pid)
        total[role] = total.get(role, 0) + processes.memory_bytes(pid)
    return total


def report(found: dict[str, Any]) -> str:
    """The section."""
    memory = ", ".join(f"{role} {size / 2**20:,.0f} MiB" for role, size in found["memory"].items())
    rows = [
        ["running at once", f"{found['n']:,}"],
        ["memory of each", shown(found["bytes_each"] / 1024, "KiB")],
        ["memory of all processes", memory],
        ["CPU of the server per create, up to running", shown(found["fill_cpu_ms"], "ms")],
        ["CPU while they run and nobody asks", shown(found["idle_cores"], "cores")],
    ]
    for name, took in found["took"].items():
        figures = f"{shown(took['p50'], 'ms')}, {shown(took['p99'], 'ms')}"
        rows.append([f"{name}, {_RATES[name]:.0f}/s: median, 99th percentile", figures])
    return f"""## Instances that run at once

`python -m bench running`: each in a step that awaits; on Ray, {os.cpu_count()} cores.

{table(["figure", "value"], rows)}
"""


def command(
    n: Annotated[int, typer.Option(min=10, help="How many run.")] = 50_000,
    seconds: Annotated[float, typer.Option(min=1, help="How long it is asked.")] = 20,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """Many that run at once: memory, and how long others wait."""
    with fresh() as server:
        found = asyncio.run(measure(server, n, seconds))
    print(json.dumps(found))
    text = report(found)
    print(text)
    if page:
        figures = {f"{name}_p99_ms": took["p99"] for name, took in found["took"].items()}
        sections.put("running", text, figures={"n": n, **figures})
