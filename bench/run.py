"""`make bench`: toque over HTTP, beside its peers in the same run.

Workload: create+complete of a workflow of one trivial step, create-and-wait in one request,
fsync on. `conc` requests in flight for the rates, one for the latencies. Peers run by a kit
whose folder stands in $PEERS (its runners print one JSON line per workload); without it only
toque runs. Rounds are interleaved and medians taken; the report goes to docs/performance.md.

    python bench/run.py [--rounds 3] [--n 4000] [--conc 64] [--peers restate,dbos-sqlite]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import processes
import sections

import toque
from toque.runtime import limits

HERE = Path(__file__).resolve().parent
PEERS = {
    "restate": ("venv-restate", "run_restate.py", "--w1-n 3000 --conc 32"),
    "dbos-sqlite": ("venv-dbos", "run_dbos.py", "--db sqlite --mode sync --conc 4 --w1-n 400"),
}


RATE = str(limits.CREATES_PER_SECOND_MAX)
"""No limit of creates: what the machine can do is measured."""


class Server:
    """A `toque dev` process of its own on a fresh data directory."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.log = open(folder / "server.log", "w")  # noqa: SIM115 (closed in stop)
        command = [sys.executable, "-m", "toque.api.cli", "dev", str(HERE / "app.py")]
        command += ["--data", str(folder / "data"), "--port", "0", "--creates", RATE, *arguments]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def wait_ready(self, timeout_s: float = 90) -> dict[str, Any]:
        """Wait until it serves; gives url and token."""
        end = time.monotonic() + timeout_s
        path = self.folder / "data" / "dev.json"
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit((self.folder / "server.log").read_text())
            if path.exists():
                return json.loads(path.read_text())
            time.sleep(0.05)
        raise SystemExit("the server did not come up")

    def stop(self) -> None:
        """End it and wait."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def percentile(values: list[float], q: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q / 100 * (len(ordered) - 1)))]


async def burst(client: Any, workflow: str, n: int, conc: int) -> list[float]:
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

    await asyncio.gather(*(worker() for _ in range(conc)))
    return latencies


async def measure(server: Server, access: dict[str, Any], n: int, conc: int) -> dict[str, Any]:
    """All figures of one round of toque."""
    root = server.process.pid
    async with toque.connect(access["url"], token=access["token"]) as client:
        await burst(client, "OneStep", 300, conc)
        commits = await commits_so_far(client)
        before = processes.cpu_by_role(root)
        own, busy = time.process_time(), processes.machine_busy_s()
        start = time.perf_counter()
        await burst(client, "OneStep", n, conc)
        wall = time.perf_counter() - start
        spent = processes.spent(before, root)
        spent["client"] = time.process_time() - own
        others = processes.machine_busy_s() - busy - sum(spent.values())
        commits = await commits_so_far(client) - commits
        alone = await burst(client, "OneStep", 300, 1)
        ten_start = time.perf_counter()
        await burst(client, "TenSteps", n // 8, conc)
        ten = (n // 8) * 10 / (time.perf_counter() - ten_start)
    return {
        "completions_per_s": n / wall,
        "solo_start_to_complete_p50_ms": percentile(alone, 50),
        "solo_start_to_complete_p99_ms": percentile(alone, 99),
        "steps_per_s": ten,
        "cpu_ms_per_workflow": sum(spent.values()) * 1000 / n,
        "cpu_ms_by_role": {k: round(v * 1000 / n, 3) for k, v in sorted(spent.items())},
        "commits_per_instance": commits / n,
        "other_cpu_cores": max(0.0, others / wall),
    }


async def commits_so_far(client: Any) -> float:
    """Commits of all shards."""
    figures = await client.statistics()
    return sum(shard["store_commits"] for shard in figures.values())


def run_toque(args: argparse.Namespace) -> dict[str, Any]:
    """One round of toque, on a fresh directory."""
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as folder:
        server = Server(Path(folder), *args.server)
        try:
            return asyncio.run(measure(server, server.wait_ready(), args.n, args.conc))
        finally:
            server.stop()


def run_peer(name: str) -> dict[str, Any] | None:
    """One round of a peer by its kit."""
    kit = os.environ.get("PEERS")
    if not kit:
        return None
    venv, script, extra = PEERS[name]
    root = os.environ.get("PEERS_ROOT", str(Path(tempfile.gettempdir()) / "toque-peers"))
    command = [f"{root}/{venv}/bin/python", f"{kit}/{script}", "--workload", "w1"]
    command += ["--runs", "1", "--quiet", "0", *extra.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    if not lines:
        print(f"  {name}: no result\n{done.stderr[-400:]}", flush=True)
        return None
    line = lines[-1]
    line["cpu_ms_per_workflow"] = line.get("cpu_s", 0) * 1000 / line["n"]
    return line


def median(rows: list[dict[str, Any]], key: str) -> float | None:
    """The median of a figure over rounds."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--conc", type=int, default=64)
    parser.add_argument("--peers", default="restate,dbos-sqlite")
    parser.add_argument("--no-report", action="store_true")
    parser.add_argument("server", nargs="*", help="more arguments for `toque dev`")
    args = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {"toque": []}
    for number in range(args.rounds):
        results["toque"].append(run_toque(args))
        print(f"round {number + 1} toque {json.dumps(results['toque'][-1])}", flush=True)
        for name in filter(None, args.peers.split(",")):
            row = run_peer(name)
            if row is not None:
                results.setdefault(name, []).append(row)
                shown = {k: row.get(k) for k in KEYS}
                print(f"round {number + 1} {name} {json.dumps(shown)}", flush=True)
    text = report(results, args)
    print(text)
    if not args.no_report:
        sections.put("throughput", text)


KEYS = {
    "completions_per_s": "create+complete /s",
    "solo_start_to_complete_p50_ms": "alone p50 ms",
    "solo_start_to_complete_p99_ms": "alone p99 ms",
    "cpu_ms_per_workflow": "CPU ms each, client included",
    "other_cpu_cores": "cores used by others",
}


def report(results: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> str:
    """The page."""
    toque_rows = results["toque"]
    lines = [
        "## Create to complete",
        "",
        f"Run: {args.rounds} interleaved rounds, medians; Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; {args.n} instances of one trivial step, {args.conc} requests in "
        "flight, create-and-wait in one request over HTTP, fsync on every commit.",
        "",
        "| system | " + " | ".join(KEYS.values()) + " | rate, toque to it |",
        "|" + " --- |" * (len(KEYS) + 2),
    ]
    ours = median(toque_rows, "completions_per_s") or 0.0
    for name, rows in results.items():
        cells = []
        for key in KEYS:
            value = median(rows, key)
            cells.append(
                "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
            )
        rate = median(rows, "completions_per_s")
        cells.append(f"{ours / rate:.1f}" if rate else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    roles = sorted({role for row in toque_rows for role in row["cpu_ms_by_role"]})
    lines += ["", "toque's CPU per instance by process (ms, medians):", ""]
    lines += ["| " + " | ".join(roles) + " |", "|" + " --- |" * len(roles)]
    by_role = [
        statistics.median(row["cpu_ms_by_role"].get(role, 0.0) for row in toque_rows)
        for role in roles
    ]
    lines.append("| " + " | ".join(f"{value:.3f}" for value in by_role) + " |")
    lines += [
        "",
        f"Commits per instance, all shards: {median(toque_rows, 'commits_per_instance'):.2f}. "
        f"Ten-step workflows: {median(toque_rows, 'steps_per_s'):.0f} steps/s.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
