"""Create to complete, and ten steps: toque over HTTP, with its CPU by process.

`--conc` requests in flight for the rates, one for the latencies; a request creates an instance and
waits for its end. fsync on. Rounds on fresh directories, medians.
"""

from __future__ import annotations

import asyncio
import json
import platform
import time
from typing import Annotated, Any

import typer

from toque.loadtest.histograms import percentile

from . import processes, sections
from .figures import median_of, shown, table
from .server import Server, fresh

WARM = 300
ALONE = 300


async def burst(
    client: Any, workflow: str, n: int, conc: int, outputs: list[Any] | None = None
) -> list[float]:
    """`n` create-and-waits, `conc` in flight; gives each latency in ms."""
    latencies: list[float] = []
    numbers = iter(range(n))

    async def worker() -> None:
        for _ in numbers:
            start = time.perf_counter()
            instance = await client.create_instance(workflow, params={"n": 1}, wait=30)
            status = await instance.status() if instance.last is None else instance.last
            if status.status != "complete":
                raise SystemExit(f"instance {instance.id} is {status.status}")
            latencies.append((time.perf_counter() - start) * 1000)
            if outputs is not None:
                outputs.append(status.output)

    await asyncio.gather(*(worker() for _ in range(conc)))
    return latencies


async def commits_so_far(client: Any) -> float:
    """Commits of all shards."""
    figures = await client.statistics()
    return float(sum(shard["store_commits"] for shard in figures.values()))


async def create_to_complete(server: Server, n: int, conc: int) -> dict[str, Any]:
    """The first workload: one trivial step."""
    async with server.client() as client:
        await burst(client, "OneStep", WARM, conc)
        commits = await commits_so_far(client)
        with processes.Window(server.pid) as window:
            await burst(client, "OneStep", n, conc)
        commits = await commits_so_far(client) - commits
        alone = await burst(client, "OneStep", ALONE, 1)
    return {
        "completions_per_s": n / window.wall_s,
        "solo_start_to_complete_p50_ms": percentile(alone, 0.5),
        "solo_start_to_complete_p99_ms": percentile(alone, 0.99),
        "cpu_ms_per_workflow": window.cpu_total_s * 1000 / n,
        "cpu_ms_by_role": {k: round(v * 1000 / n, 3) for k, v in sorted(window.cpu_s.items())},
        "commits_per_instance": commits / n,
        "other_cpu_cores": window.others_cores,
    }


async def ten_steps(server: Server, n: int, conc: int) -> dict[str, Any]:
    """The second workload: ten steps, one after another; then some alone."""
    async with server.client() as client:
        await burst(client, "TenSteps", max(10, n // 10), conc)
        with processes.Window(server.pid) as window:
            await burst(client, "TenSteps", n, conc)
        outputs: list[list[float]] = []
        start = time.perf_counter()
        await burst(client, "TenSteps", 50, 1, outputs)
        alone_s = time.perf_counter() - start
    each_ms = [took * 1000 for output in outputs for took in output]
    return {
        "steps_per_s": n * 10 / window.wall_s,
        "step_p50_ms": percentile(each_ms, 0.5),
        "step_p99_ms": percentile(each_ms, 0.99),
        "solo_steps_per_s": len(each_ms) / alone_s,
        "cpu_ms_per_step": window.cpu_total_s * 1000 / (n * 10),
        "other_cpu_cores": window.others_cores,
    }


def one_round(n: int, conc: int, arguments: list[str]) -> dict[str, Any]:
    """Both workloads, each on a fresh directory."""
    with fresh(*arguments) as server:
        found = asyncio.run(create_to_complete(server, n, conc))
        steps = asyncio.run(ten_steps(server, max(1, n // 8), conc))
    return {**steps, **found}


KEYS = {
    "completions_per_s": "create to complete, /s",
    "solo_start_to_complete_p50_ms": "the same alone: p50, ms",
    "solo_start_to_complete_p99_ms": "p99, ms",
    "cpu_ms_per_workflow": "CPU of one, client included, ms",
    "commits_per_instance": "commits of one, all shards",
    "steps_per_s": "ten steps: steps/s",
    "step_p50_ms": "a step alone: p50, ms",
    "cpu_ms_per_step": "CPU of a step, client included, ms",
    "other_cpu_cores": "cores used by others meanwhile",
}


def by_role(rows: list[dict[str, Any]]) -> dict[str, float]:
    """CPU of an instance by process, ms, medians."""
    roles = sorted({role for row in rows for role in row["cpu_ms_by_role"]})
    parts = [row["cpu_ms_by_role"] for row in rows]
    return {role: median_of(parts, role) or 0.0 for role in roles}


def report(rows: list[dict[str, Any]], n: int, conc: int) -> str:
    """The section."""
    found = {title: median_of(rows, key) for key, title in KEYS.items()}
    roles = by_role(rows)
    return f"""## toque alone

`python -m bench throughput`: {len(rows)} round(s), medians; Python {platform.python_version()}, \
{processes.machine()}; {n} instances, {conc} requests in flight, create-and-wait in one request \
over HTTP, fsync on every commit.

{table(["figure", "value"], [[title, shown(value)] for title, value in found.items()])}

CPU of an instance of one step by process, ms:

{table(list(roles), [[f"{value:.3f}" for value in roles.values()]])}
"""


def put(rows: list[dict[str, Any]], n: int, conc: int) -> None:
    """Write the section."""
    roles = by_role(rows)
    figures = {f"{role}_ms": value for role, value in roles.items()}
    figures["all_ms"] = sum(roles.values())
    sections.put("throughput", report(rows, n, conc), figures=figures)


def command(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    n: Annotated[int, typer.Option(min=100, help="Instances a round.")] = 4000,
    conc: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print medians as JSON last.")] = False,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
    arguments: Annotated[list[str] | None, typer.Argument(help="More for `toque dev`.")] = None,
) -> None:
    """Create to complete and ten steps, over HTTP, with the CPU by process."""
    rows = []
    for number in range(rounds):
        rows.append(one_round(n, conc, arguments or []))
        print(f"round {number + 1} {json.dumps(rows[-1])}", flush=True)
    text = report(rows, n, conc)
    print(text)
    if as_json:
        medians = {key: median_of(rows, key) for key in KEYS}
        print(json.dumps({**medians, "cpu_ms_by_role": by_role(rows)}))
    if page:
        put(rows, n, conc)
