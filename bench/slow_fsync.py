"""The rates of create to complete and of ten steps when each fsync takes longer.

Disks of clouds take 1 to 5 ms for an fsync, a fast local one 0.1 ms. A small library, built here
with the machine's C compiler and loaded into all processes of a system, makes every fsync sleep
first. Each system runs fast and slow in turns; the ratio of the two rates says how well its commits
are shared. A system that the library can't reach (a static binary) is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from . import peers, sections, throughput
from .figures import median_of, shown, table
from .server import fresh

SOURCE = Path(__file__).with_name("slow_fsync.c")
_PROBE = """
import os, sys, time
with open(sys.argv[1], "wb") as file:
    start = time.perf_counter()
    for _ in range(20):
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    print((time.perf_counter() - start) / 20 * 1000)
"""


class Shim(NamedTuple):
    """The library, and the file in which it counts."""

    library: Path
    counter: Path

    def environment(self, ms: float) -> dict[str, str]:
        """The variables of a process whose every fsync is to take so much longer."""
        return {
            "LD_PRELOAD": str(self.library),
            "SLOW_FSYNC_US": str(round(ms * 1000)),
            "SLOW_FSYNC_COUNT": str(self.counter),
        }

    def count(self) -> int:
        """How many calls it has slowed since this was last asked."""
        number: int = struct.unpack("=Q", self.counter.read_bytes())[0]
        self.reset()
        return number

    def reset(self) -> None:
        """Count from 0."""
        with self.counter.open("r+b") as file:  # the same file: processes have it mapped
            file.write(bytes(8))


def compiler() -> str:
    """The C compiler; ends with a clear text if there is none."""
    named = os.environ.get("CC")
    for name in [named] if named else ["cc", "gcc", "clang"]:
        if found := shutil.which(name):
            return found
    raise SystemExit(
        "slow-fsync needs a C compiler (cc, gcc or clang, or what $CC names) and found none. "
        "On Debian: apt-get install gcc libc6-dev. All other measures go without."
    )


@contextlib.contextmanager
def built() -> Iterator[Shim]:
    """The library in a folder that other users can read too, since PostgreSQL runs as one."""
    if not sys.platform.startswith("linux"):
        raise SystemExit(f"slow-fsync works on Linux only, not on {sys.platform}.")
    cc = compiler()
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shim = Shim(folder / "slow_fsync.so", folder / "count")
        command = [cc, "-shared", "-fPIC", "-O2", "-o", str(shim.library), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise SystemExit(f"{cc} could not build {SOURCE.name}:\n{done.stderr[-1000:]}")
        shim.library.chmod(0o755)
        shim.counter.write_bytes(bytes(8))
        shim.counter.chmod(0o666)
        yield shim


def probe_ms(shim: Shim, ms: float) -> float:
    """How long an fsync takes in a process with the library."""
    path = shim.library.with_name("probe")
    command = [sys.executable, "-c", _PROBE, str(path)]
    environment = {**os.environ, **shim.environment(ms)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return float(done.stdout)


def run_toque(n: int, conc: int, environment: dict[str, str]) -> dict[str, Any]:
    """Both workloads of toque on a fresh directory."""
    with fresh(environment=environment) as server:
        found = asyncio.run(throughput.create_to_complete(server, n, conc))
        steps = asyncio.run(throughput.ten_steps(server, max(1, n // 8), conc))
    return {"w1": found["completions_per_s"], "w2": steps["steps_per_s"]}


def run_peer(name: str, environment: dict[str, str]) -> dict[str, Any]:
    """Both workloads of a peer."""
    found = {}
    for workload, key in (("w1", "completions_per_s"), ("w2", "steps_per_s")):
        peers.stop_postgres()  # it would keep the environment that it was started with
        line = peers.run(name, workload, environment=environment)
        found[workload] = None if line is None else line.get(key)
    return found


Runs = dict[str, list[dict[str, Any]]]


def one_turn(name: str, shim: Shim, ms: float, n: int, conc: int, into: Runs) -> None:
    """A system fast, then slow."""
    for pace, environment in (("fast", {}), ("slow", shim.environment(ms))):
        shim.reset()
        found = run_toque(n, conc, environment) if name == "toque" else run_peer(name, environment)
        found["slowed"] = shim.count()
        print(f"  {name} {pace} {json.dumps(found)}", flush=True)
        into.setdefault(f"{name} {pace}", []).append(found)


def ratios(runs: Runs, name: str) -> dict[str, float]:
    """`{"w1": slow over fast, ...}` of what was measured and was slowed at all."""
    found = {}
    if not (median_of(runs[f"{name} slow"], "slowed") or 0):
        return {}
    for key in ("w1", "w2"):
        fast, slow = (median_of(runs[f"{name} {pace}"], key) for pace in ("fast", "slow"))
        if fast and slow:
            found[key] = slow / fast
    return found


def report(runs: Runs, names: list[str], ms: float) -> str:
    """The section."""
    head = [
        "system",
        "create to complete /s",
        f"+{ms:g} ms",
        "part",
        "steps/s",
        f"+{ms:g} ms",
        "part",
    ]
    lines = []
    for name in names:
        parts, cells = ratios(runs, name), [name]
        for key in ("w1", "w2"):
            for pace in ("fast", "slow"):
                reached = pace == "fast" or parts
                value = median_of(runs[f"{name} {pace}"], key) if reached else None
                cells.append(shown(value))
            cells.append(f"{parts[key]:.2f}" if key in parts else "-")
        lines.append(cells)
    return f"""## Slower fsyncs

`python -m bench slow-fsync`: each fsync sleeps {ms:g} ms first; each system fast and slow in \
turns, medians of {len(runs[f"{names[0]} fast"])}.

{table(head, lines)}
"""


def command(
    ms: Annotated[float, typer.Option(min=0, max=1000, help="How much longer.")] = 2,
    rounds: Annotated[int, typer.Option(min=1)] = 2,
    n: Annotated[int, typer.Option(min=100, help="toque's instances a round.")] = 3000,
    conc: Annotated[int, typer.Option(min=1, help="Requests in flight to toque.")] = 64,
    others: Annotated[str, typer.Option("--peers", help="all, none, or a list.")] = "none",
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """Rates when each fsync takes longer, against the fast ones."""
    names = ["toque", *(name for name in peers.chosen(others) if peers.PEERS[name].w2)]
    runs: Runs = {}
    with built() as shim:
        print(f"an fsync with the library takes {probe_ms(shim, ms):.2f} ms", flush=True)
        try:
            for number in range(rounds):
                for name in names if number == 0 else ["toque"]:
                    one_turn(name, shim, ms, n, conc, runs)
        finally:  # what was found is kept, also of a run that is ended
            peers.stop_postgres()
            done = [name for name in names if f"{name} slow" in runs]
            if done:
                print(report(runs, done, ms))
            if done and page:
                sections.put("slow-fsync", report(runs, done, ms), figures=ratios(runs, "toque"))
