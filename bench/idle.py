"""What a system that has nothing to do takes: toque on Ray beside a Ray that is idle, and embedded.

The bare Ray is started with the same settings by a process that then waits. toque has run a few
instances before, so that all its parts are there. CPU is that of all processes of the tree.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from typing import Annotated, Any

import typer

from . import processes, sections
from .figures import table
from .server import READY_S, STOP_S, Server, fresh

_BARE_RAY = """
import sys
import ray
from toque.actors import cluster_ray
cluster_ray.start_ray(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
ray.shutdown()
"""
SETTLE_S = 10


class Idle:
    """CPU and memory of a process tree over some seconds."""

    def __init__(self, root: int, seconds: float) -> None:
        before, start = self._cpu_s(root), time.perf_counter()
        time.sleep(seconds)
        wall = time.perf_counter() - start
        self.cores = (self._cpu_s(root) - before) / wall
        pids = processes.descendants(root)
        self.mib = sum(processes.memory_bytes(pid) for pid in pids) / 2**20
        self.processes = len(pids)

    @staticmethod
    def _cpu_s(root: int) -> float:
        return sum(processes.cpu_s(pid) for pid in processes.descendants(root))


def bare_ray(seconds: float, settle_s: float) -> Idle:
    """A Ray cluster that nobody uses."""
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", _BARE_RAY, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()  # an end of file if it fails
            if line.strip() != b"ready":
                raise SystemExit(f"Ray did not start: {line.decode(errors='replace')}")
            time.sleep(settle_s)
            return Idle(process.pid, seconds)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    pids = processes.descendants(process.pid)
    try:
        process.communicate(timeout=STOP_S)  # closes its input, which ends it
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    processes.kill(pids)
    process.wait()


async def warm(server: Server) -> None:
    """A few instances."""
    async with server.client() as client:
        for _ in range(20):
            await client.create_instance("OneStep", wait=READY_S)


def served(seconds: float, settle_s: float, *, embedded: bool) -> Idle:
    """A server after a few instances."""
    with fresh(embedded=embedded) as server:
        asyncio.run(warm(server))
        time.sleep(settle_s)
        return Idle(server.pid, seconds)


def report(found: dict[str, Any], seconds: float) -> str:
    """The section."""
    rows = [
        [name, f"{idle.cores:.3f}", f"{idle.mib:.0f}", str(idle.processes)]
        for name, idle in found.items()
    ]
    return f"""## Idle

`python -m bench idle`: nothing to do for {seconds:g} s. Memory is proportional set size.

{table(["system", "cores", "memory, MiB", "processes"], rows)}
"""


def command(
    seconds: Annotated[float, typer.Option(min=1)] = 20,
    settle: Annotated[float, typer.Option(min=0, help="Seconds of rest before.")] = SETTLE_S,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """CPU and memory of a system that has nothing to do."""
    found = {
        "Ray alone": bare_ray(seconds, settle),
        "toque on Ray": served(seconds, settle, embedded=False),
        "toque embedded": served(seconds, settle, embedded=True),
    }
    text = report(found, seconds)
    print(text)
    if page:
        figures = {
            "ray_cores": found["toque on Ray"].cores - found["Ray alone"].cores,
            "embedded_cores": found["toque embedded"].cores,
        }
        sections.put("idle", text, figures=figures)
