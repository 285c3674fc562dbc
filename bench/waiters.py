"""Instances that wait: what one takes in memory and out of it, and how they wake.

First a server in one process gets `live` instances that wait for an event, through the API, all
kept in memory. Then a server on Ray starts on a directory with `n` that wait (see `fill`), none in
memory: memory (proportional set size) and CPU are those of all its processes. Some are woken one
at a time, from the event that is sent to the end that is heard of; lists, metrics and the view of
what an instance waits for are timed. Last, `herd` more wake at one instant, out of memory, while
others are created at a fixed rate.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer

from toque.loadtest.histograms import percentile

from . import progress, sections
from .figures import shown, table
from .fill import fill
from .load import one_by_one, open_loop
from .recovery import some_wait
from .running import memory
from .server import Server

_WOKEN = 200
_VIEWS = 20
_HOUR_MS = 3_600_000
_WEEK_S = 7 * 86_400
_PATIENCE_S = 60.0


async def live(server: Server, n: int) -> dict[str, float]:
    """All in memory."""
    async with server.client() as client:
        before, cpu = server.memory_bytes(), server.cpu_s()
        made = await client.create_instances("Wait", ({"id": f"i{number}"} for number in range(n)))
        assert len(made) == n, len(made)
        for one in made[-200:]:
            async for _ in client.instance("Wait", one.id).events(types=["workflow_waiting"]):
                break
        await asyncio.sleep(5)  # reports and alarms settle
        entities = sum(s["live_entities"] for s in (await client.statistics()).values())
        assert entities >= n, entities
        return {
            "live_bytes": (server.memory_bytes() - before) / n,
            "create_cpu_ms": (server.cpu_s() - cpu) * 1000 / n,
        }


async def hibernated(server: Server, n: int) -> dict[str, Any]:
    """None in memory; some are woken, and all are looked at."""
    async with server.client() as client:
        entities = sum(s["live_entities"] for s in (await client.statistics()).values())
        found: dict[str, Any] = {"memory": memory(server), "entities": entities}
        cpu, start = server.cpu_s(), time.perf_counter()
        await asyncio.sleep(10)
        found["idle_cores"] = (server.cpu_s() - cpu) / (time.perf_counter() - start)
        dice = random.Random(2)
        names = [f"w{number}" for number in dice.sample(range(n), _WOKEN + 2 * _VIEWS)]

        async def wake(number: int) -> None:
            one = client.instance("Wait", names[number])
            await one.send_event("go", 1)
            assert (await one.wait(30)).success

        woken = await one_by_one(_WOKEN, wake)
        found["one_woken_ms"] = percentile(woken, 0.5)
        found["one_woken_p99_ms"] = percentile(woken, 0.99)
        found["views_ms"] = await views(server, client, names[_WOKEN:])
        return found


async def views(server: Server, client: Any, names: list[str]) -> dict[str, float]:
    """The slowest of some looks."""

    async def why(number: int) -> None:
        await client.instance("Wait", names[number]).why()

    async def status(number: int) -> None:
        await client.instance("Wait", names[_VIEWS + number]).status()

    async def page(number: int) -> None:
        direction = "asc" if number % 2 else "desc"
        lines = client.list_instances("Wait", per_page=100, direction=direction)
        for _ in range(100):
            await anext(lines)
        await lines.aclose()

    async def ended(number: int) -> None:
        lines = client.list_instances("Wait", per_page=100, status=["errored", "complete"])
        for _ in range(100):
            await anext(lines)
        await lines.aclose()

    async def summary(number: int) -> None:
        await client.get_workflow("Wait")

    async with aiohttp.ClientSession() as session:

        async def metrics(number: int) -> None:
            headers = {"Authorization": f"Bearer {server.access['token']}"}
            url = f"{server.access['url']}/metrics"
            async with session.get(url, headers=headers) as answer:
                await answer.read()
                assert answer.status == 200, answer.status

        looks = {
            "what one waits for": why,
            "status of one": status,
            "a page of 100": page,
            "a page of 100 that ended": ended,
            "a workflow's counts": summary,
            "metrics": metrics,
        }
        return {name: max(await one_by_one(_VIEWS, look)) for name, look in looks.items()}


async def herd(server: Server, n: int, rate: float, due_ms: int) -> dict[str, Any]:
    """How long after the common instant each ended, and how long creates took meanwhile."""
    ended = asyncio.Event()
    async with server.client() as client, server.client() as other:

        async def create(number: int) -> None:
            await other.create_instance("OneStep")

        wait_s = due_ms / 1000 - time.time()
        if wait_s < 3:
            raise SystemExit(f"the herd was made too slowly: {wait_s:.0f} s left")
        before = asyncio.create_task(open_loop(rate, ended.is_set, create))
        await asyncio.sleep(max(0.0, due_ms / 1000 - time.time()))
        cpu, start = server.cpu_s(), time.time()
        await until_ended(client, n)
        cpu = server.cpu_s() - cpu
        ended.set()
        took = await before
        during = took[-int((time.time() - start) * rate) :]
        late = [
            datetime.fromisoformat(line.ended_on).timestamp() - due_ms / 1000
            async for line in client.list_instances("Nap", status="complete")
        ]
    late.sort()
    assert len(late) == n, len(late)
    assert late[0] >= 0, "woken early"
    return {
        "herd_s": late[-1],
        "herd_per_s": n / late[-1],
        "herd_p50_s": percentile(late, 0.5),
        "herd_p99_s": percentile(late, 0.99),
        "herd_cpu_ms": cpu * 1000 / n,
        "create_p50_ms": percentile(during, 0.5),
        "create_p99_ms": percentile(during, 0.99),
        "creates": len(during),
    }


async def until_ended(client: Any, n: int) -> None:
    """Wait until the whole herd has ended; give up if none ends for long."""
    most, patience = -1, time.monotonic() + _PATIENCE_S
    while True:
        counts = (await client.get_workflow("Nap")).instances
        ended = int(counts.get("complete", 0))
        if ended >= n:
            return
        if ended > most:
            most, patience = ended, time.monotonic() + _PATIENCE_S
        elif time.monotonic() > patience:
            raise SystemExit(f"no more of the herd end, after {ended} of {n}: {counts}")
        await asyncio.sleep(0.25)


def measure(live_n: int, n: int, herd_n: int, rate: float, lead_s: float) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as name:
        with Server(Path(name), embedded=True, idle_ms=_HOUR_MS) as server:
            found: dict[str, Any] = asyncio.run(live(server, live_n))
        progress.note("waiters", live=found)
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as name:
        folder = Path(name)
        with Server(folder) as server:
            asyncio.run(some_wait(server, "Wait", None))
            asyncio.run(some_wait(server, "Nap", {"until": int(time.time()) + _WEEK_S}))
            base = server.memory_bytes()
        fill(server.data, "Wait", n)
        stores = (server.data / "shards").iterdir()
        found["disk_bytes"] = sum(path.stat().st_size for path in stores) / n
        start = time.perf_counter()
        with Server(folder) as server:
            found["start_s"] = time.perf_counter() - start
            found |= asyncio.run(hibernated(server, n))
        found["hibernated_bytes"] = (sum(found["memory"].values()) - base) / n
        progress.note("waiters", hibernated=found)
        due_ms = int(time.time() + lead_s + 3 * found["start_s"]) * 1000
        fill(server.data, "Nap", herd_n, due_ms)
        with Server(folder) as server:
            found |= asyncio.run(herd(server, herd_n, rate, due_ms))
    return found


def report(found: dict[str, Any], n: int, herd_n: int, rate: float) -> str:
    """The section."""

    def two(first: str, second: str, unit: str) -> str:
        return f"{shown(found[first], unit)}, {shown(found[second], unit)}"

    total = sum(found["memory"].values()) / 2**20
    roles = ", ".join(f"{role} {size / 2**20:,.0f}" for role, size in found["memory"].items())
    rows = [
        ["memory of one, live (`run` in memory)", shown(found["live_bytes"] / 1024, "KiB")],
        ["CPU of the server per create, up to waiting", shown(found["create_cpu_ms"], "ms")],
        ["out of memory and waiting", f"{n:,}"],
        ["memory of all processes with them", f"{total:,.0f} MiB ({roles})"],
        ["memory of one, out of it", shown(found["hibernated_bytes"] / 1024, "KiB")],
        ["disk for one, all stores", shown(found["disk_bytes"] / 1024, "KiB")],
        ["a server on them starts in", shown(found["start_s"], "s")],
        ["CPU while nobody asks", shown(found["idle_cores"], "cores")],
        [
            "one is woken by an event, to its end: median, 99th percentile",
            two("one_woken_ms", "one_woken_p99_ms", "ms"),
        ],
        *(
            [f"{name}: slowest of {_VIEWS}", shown(ms, "ms")]
            for name, ms in found["views_ms"].items()
        ),
        [f"{herd_n:,} due at one instant, out of memory", shown(found["herd_per_s"], "/s")],
        ["the same: median, 99th percentile after it", two("herd_p50_s", "herd_p99_s", "s")],
        ["the same: CPU of all processes, creates included", shown(found["herd_cpu_ms"], "ms")],
        [
            f"creates meanwhile, {rate:.0f}/s: median, 99th percentile",
            two("create_p50_ms", "create_p99_ms", "ms"),
        ],
    ]
    return f"""## Waiting instances

`python -m bench waiters`: {n:,} instances that wait for an event, {os.cpu_count()} cores. The
stores are filled with copies of instances that were made through the API.

{table(["figure", "value"], rows)}
"""


def command(
    live: Annotated[int, typer.Option(min=10, help="How many wait in memory.")] = 20_000,
    n: Annotated[int, typer.Option(min=500, help="How many wait out of it.")] = 1_000_000,
    herd: Annotated[int, typer.Option(min=100, help="How many are due at once.")] = 10_000,
    rate: Annotated[float, typer.Option(min=1, help="Creates a second meanwhile.")] = 100,
    lead: Annotated[float, typer.Option(min=5, help="Seconds to make the herd.")] = 20,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """Instances that wait: memory, disk, waking."""
    found = measure(live, n, herd, rate, lead)
    print(json.dumps(found))
    text = report(found, n, herd, rate)
    print(text)
    if page:
        figures = {key: value for key, value in found.items() if not isinstance(value, dict)}
        told = {
            "hibernated_kib": found["hibernated_bytes"] / 1024,
            "memory_gib": sum(found["memory"].values()) / 2**30,
        }
        sections.put("waiters", text, figures={**figures, **told, "n": n, "herd": herd})
