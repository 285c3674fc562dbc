"""A long queue: is anything slower, or larger, with two million queued than with a thousand?

A server on Ray whose account may run nothing gets `--n` instances of one workflow, through its API
in batches of 100. On the way, at 1,000, 100,000, ... and `--n`, single creates are timed, pages of
the list are read from its newest end, its oldest and its middle, and the memory, the CPU and the
files of all its processes are noted. Then it may run, and the queue drains; the rate is told at
the begin, in the middle and at the end, or for `--drain` seconds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer

from toque.gatekeeper.refusals import QueueFull
from toque.loadtest.histograms import percentile
from toque.runtime import limits

from . import processes, sections
from .figures import table
from .server import Server

APP = Path(__file__).with_name("queue_app.py")
BATCH = 100
PROBES = 200
PAGES = 20
WORKFLOW = "Job"


class Api:
    """Calls of the server's REST API."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._base = f"{url}/client/v4/accounts/default/workflows/{WORKFLOW}"
        self.made = 0

    async def create(self, path: str, body: Any) -> None:
        """A POST of one or many; repeated when the server says that it has too much to do."""
        while True:
            async with self._session.post(self._base + path, json=body) as answer:
                if answer.status == 429 and QueueFull.code in await answer.text():
                    raise SystemExit(f"the queue is full with {self.made:,} instances; lower --n.")
                if answer.status in (429, 503):
                    await asyncio.sleep(0.2)
                    continue
                answer.raise_for_status()
                await answer.read()
                self.made += len(body) if isinstance(body, list) else 1
                return

    async def list(self, **query: str) -> dict[str, Any]:
        """A page of the list."""
        async with self._session.get(f"{self._base}/instances", params=query) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def allow(self, running_max: int) -> None:
        """How many instances may run."""
        path = f"{self._url}/toque/v1/accounts/default/limits"
        async with self._session.patch(path, json={"running_max": running_max}) as answer:
            answer.raise_for_status()

    async def queued(self) -> int:
        """How many are queued, by the metrics; asked again while a shard does not tell."""
        while True:
            async with self._session.get(f"{self._url}/metrics") as answer:
                text = await answer.text()
            lines = (line for line in text.splitlines() if line.startswith("toque_instances{"))
            found = [line for line in lines if 'status="queued"' in line]
            if found:
                return sum(int(float(line.rsplit(" ", 1)[1])) for line in found)
            await asyncio.sleep(0.5)


def memory_mib(root: int) -> dict[str, float]:
    """Proportional memory by role; of shards the largest too."""
    found: dict[str, float] = {}
    for pid in processes.descendants(root):
        mib = processes.memory_bytes(pid) / 2**20
        name = processes.role(pid, root)
        found[name] = found.get(name, 0.0) + mib
        if name == "shards":
            found["largest shard"] = max(found.get("largest shard", 0.0), mib)
    return {name: round(value) for name, value in found.items()}


def files_mib(data: Path) -> dict[str, float]:
    """Size of stores and of their logs."""
    sizes = [(p.name, p.stat().st_size / 2**20) for p in (data / "shards").iterdir()]
    return {
        "stores": round(sum(size for name, size in sizes if not name.endswith(("-wal", "-shm")))),
        "largest log": round(max((s for name, s in sizes if name.endswith("-wal")), default=0.0)),
    }


async def fill(api: Api, count: int, lanes: int = 6) -> float:
    """`count` instances in batches; gives how many a second."""
    left = [BATCH] * (count // BATCH) + ([count % BATCH] if count % BATCH else [])
    start = time.perf_counter()

    async def lane() -> None:
        while left:
            size = left.pop()
            await api.create("/instances/batch", [{} for _ in range(size)])

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return count / (time.perf_counter() - start)


async def create_ms(api: Api) -> list[float]:
    """Single creates, one after the other."""
    took = []
    for _ in range(PROBES):
        start = time.perf_counter()
        await api.create("/instances", {})
        took.append((time.perf_counter() - start) * 1000)
    return took


async def page_ms(api: Api, **query: str) -> float:
    """Median of a walk over some pages of 100."""
    took: list[float] = []
    cursor = ""
    for _ in range(PAGES):
        start = time.perf_counter()
        page = await api.list(per_page="100", **query, **({"cursor": cursor} if cursor else {}))
        took.append((time.perf_counter() - start) * 1000)
        cursor = page["result_info"].get("cursor") or ""
        if not cursor:
            break
    return statistics.median(took)


async def look(api: Api, server: Server, middle: str) -> dict[str, Any]:
    """All figures at one depth of the queue."""
    took = await create_ms(api)
    start = time.perf_counter()
    await api.list(per_page="100", status="errored")
    none_ms = (time.perf_counter() - start) * 1000
    return {
        "create_p50_ms": round(percentile(took, 0.5), 2),
        "create_p99_ms": round(percentile(took, 0.99), 2),
        "page_newest_ms": round(await page_ms(api, direction="desc"), 2),
        "page_oldest_ms": round(await page_ms(api, direction="asc"), 2),
        "page_middle_ms": round(await page_ms(api, direction="asc", date_start=middle), 2),
        "page_of_none_ms": round(none_ms, 1),
        "memory_mib": memory_mib(server.pid),
        "files_mib": files_mib(server.data),
    }


def now_text() -> str:
    """The time, as the API takes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def fill_and_look(api: Api, server: Server, n: int) -> list[dict[str, Any]]:
    """Fill by stages, with figures at each."""
    depths = sorted({depth for depth in (1_000, 100_000, 500_000, 1_000_000) if depth < n} | {n})
    rows: list[dict[str, Any]] = []
    middle = now_text()
    await fill(api, 300)
    for depth in depths:
        if depth == depths[-1]:
            await fill(api, (depth - api.made) // 2)
            middle = now_text()
        before = processes.cpu_by_role(server.pid)
        count = depth - api.made - PROBES  # those are created one by one, and queue as well
        rate = await fill(api, count)
        spent = processes.spent(before, server.pid)
        cpu = {name: round(s * 1e6 / count) for name, s in spent.items()}
        await asyncio.sleep(3)
        row = {"queued": depth, "fill_per_s": round(rate), "cpu_us": cpu}
        rows.append({**row, **await look(api, server, middle)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


async def drain(api: Api, server: Server, for_s: float) -> dict[str, Any]:
    """Let them run; the rate in the first, middle and last tenth of what drained."""
    first = await api.queued()
    before, start = processes.cpu_by_role(server.pid), time.perf_counter()
    await api.allow(limits.RUNNING_PER_ACCOUNT_DEFAULT)
    seen = [(0.0, first)]
    while seen[-1][1] and not (for_s and seen[-1][0] > for_s):
        await asyncio.sleep(0.5)
        seen.append((time.perf_counter() - start, await api.queued()))
    spent = sum(processes.spent(before, server.pid).values())
    gone = first - seen[-1][1]

    def rate(low: float, high: float) -> int:
        inside = [(t, q) for t, q in seen if low <= (first - q) / max(1, gone) <= high]
        inside = inside if len(inside) > 1 else seen
        (t0, q0), (t1, q1) = inside[0], inside[-1]
        return round((q0 - q1) / (t1 - t0)) if t1 > t0 else 0

    return {
        "drained": gone,
        "seconds": round(seen[-1][0], 1),
        "rate_begin": rate(0, 0.2),
        "rate_middle": rate(0.4, 0.6),
        "rate_end": rate(0.8, 1),
        "cpu_us_each": round(spent * 1e6 / max(1, gone)),
        "memory_mib": memory_mib(server.pid),
        "files_mib": files_mib(server.data),
    }


async def measure(server: Server, n: int, drain_s: float) -> tuple[list[Any], dict[str, Any]]:
    """Everything."""
    headers = {"Authorization": f"Bearer {server.access['token']}"}
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        api = Api(session, server.access["url"])
        await api.allow(0)
        rows = await fill_and_look(api, server, n)
        drained = await drain(api, server, drain_s)
        print(json.dumps(drained), flush=True)
        return rows, drained


FIGURES = {
    "create_p50_ms": "a create, p50, ms",
    "create_p99_ms": "a create, p99, ms",
    "page_newest_ms": "a page of the newest, ms",
    "page_oldest_ms": "a page of the oldest, ms",
    "page_middle_ms": "a page from the middle, ms",
    "page_of_none_ms": "a page by a status that none has, ms",
    "fill_per_s": "filled, per second",
}


def report(rows: list[dict[str, Any]], drained: dict[str, Any]) -> str:
    """The section of docs/performance.md."""
    n = rows[-1]["queued"]
    lines = [[text, *(str(row[key]) for row in rows)] for key, text in FIGURES.items()]
    for name in ("shards", "largest shard", "api"):
        cells = [str(row["memory_mib"].get(name, 0)) for row in rows]
        lines.append([f"memory of {name}, MiB", *cells])
    lines.append(["files, MiB", *(str(row["files_mib"]["stores"]) for row in rows)])
    return "\n".join(
        [
            f"## {n:,} queued instances",
            "",
            f"`python -m bench queue --n {n}`: one workflow, filled through the API in batches of "
            f"{BATCH}; medians of {PROBES} creates and of {PAGES} pages of 100.",
            "",
            table(["queued", *(f"{row['queued']:,}" for row in rows)], lines),
            "",
            f"Drained: {drained['drained']:,} in {drained['seconds']} s; per second "
            f"{drained['rate_begin']} at the begin, {drained['rate_middle']} in the middle, "
            f"{drained['rate_end']} at the end; CPU of all processes {drained['cpu_us_each']} us "
            "each.",
        ]
    )


def command(
    n: Annotated[int, typer.Option(help="Instances.", min=2_000)] = 200_000,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds at most; 0: all.")] = 0,
    report_to_docs: Annotated[bool, typer.Option("--report/--no-report")] = True,
) -> None:
    """A queue of many: creates, lists, memory and files on the way, and how it drains."""
    with (
        tempfile.TemporaryDirectory(prefix="toque-bench-") as folder,
        Server(Path(folder), app=APP) as server,
    ):
        rows, drained = asyncio.run(measure(server, n, drain_s))
    text = report(rows, drained)
    print(text)
    if report_to_docs:
        ratio = rows[-1]["create_p50_ms"] / rows[0]["create_p50_ms"]
        figures = {"create_ratio": ratio, "create_p99_ms": rows[-1]["create_p99_ms"], "n": n}
        sections.put("queue", text, figures=figures)
