"""Two commits beside each other on one machine: the same measure, in turns, and the ratios.

Each commit gets a git worktree in a temporary folder, which is removed at the end. This version's
benchmark measures both, so that the measure is the same: `toque` is taken from the worktree by its
`.typing` links. Read CPU first; rates move with the machine's other load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from . import processes
from .figures import median_of, shown, table

ROOT = Path(__file__).resolve().parent.parent
STOP_S = 60
MEASURES = ("rates", "layers")
LESS_IS_BETTER = ("_ms", "_ratio", "_per_instance")
NOISE = "other_cpu_cores"
_CHECK = "import sys, toque.api as m; sys.exit(not m.__file__.startswith(sys.argv[1]))"


def git(*words: str) -> str:
    """What git says."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


class Commit:
    """A commit's worktree; as a context it is removed at the end."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.hash = git("rev-parse", "--verify", f"{name}^{{commit}}")
        self.tree = folder / f"tree-{self.hash[:12]}-{name.replace('/', '_')}"
        self._start = folder / "start"  # holds this version's benchmark and nothing else
        self._start.mkdir(parents=True, exist_ok=True)
        if not (self._start / "bench").exists():
            (self._start / "bench").symlink_to(ROOT / "bench")

    def __enter__(self) -> Commit:
        git("worktree", "add", "--detach", str(self.tree), self.hash)
        if self._call("-c", _CHECK, str(self.tree)).returncode:
            self.__exit__()
            raise SystemExit(f"{self.name} can't be measured: its toque can't be imported here.")
        return self

    def __exit__(self, *_: object) -> None:
        git("worktree", "remove", "--force", str(self.tree))

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A Python process that imports this commit's toque; ended by its ids at the latest."""
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=self._start,
            env={**os.environ, "PYTHONPATH": str(self.tree / ".typing")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=600)
        except BaseException:
            if process.poll() is None:
                processes.end(process, STOP_S)
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, errors)

    def measure(self, kind: str, n: int) -> dict[str, Any]:
        """One round."""
        words = ["throughput", "--rounds", "1", "--n", str(n)]
        if kind == "layers":
            words = ["layers", "--scale", str(n / 4000)]
        done = self._call("-m", "bench", *words, "--no-report", "--json")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise SystemExit(f"{self.name}: {kind} failed:\n{done.stderr[-1500:]}")
        found: dict[str, Any] = json.loads(lines[-1])
        if kind == "layers":  # the ratios only: the machine's speed is in both halves of each
            return {key: value for key, value in found.items() if key.endswith("_ratio")}
        roles = found.pop("cpu_ms_by_role", {})
        return {**found, **{f"cpu_{role}_ms": value for role, value in roles.items()}}


def report(runs: dict[str, list[dict[str, Any]]], names: tuple[str, str]) -> str:
    """Medians of both, and the second over the first."""
    keys = dict.fromkeys(key for rows in runs.values() for row in rows for key in row)
    keys.pop(NOISE, None)  # what else the machine did is nobody's merit
    lines = []
    for key in keys:
        first, second = (median_of(runs[name], key) for name in names)
        if not first or second is None:
            continue
        change = second / first
        better = (
            change < 1 if key.endswith(LESS_IS_BETTER) or key.startswith("cpu_") else change > 1
        )
        told = "" if abs(change - 1) < 0.05 else "better" if better else "worse"
        lines.append([key, shown(first), shown(second), f"{change:.2f}", told])
    return table(["measure", *names, "ratio", "more than 5 %"], lines)


def command(
    a: Annotated[str, typer.Argument(help="A commit.")],
    b: Annotated[str, typer.Argument(help="Another one, the newer.")],
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    n: Annotated[int, typer.Option(min=100, help="Instances a round.")] = 2000,
    measures: Annotated[str, typer.Option(help="Some of rates,layers.")] = "rates",
) -> None:
    """Two git commits in turns on this machine, and the ratios."""
    wanted = measures.split(",")
    if unknown := [kind for kind in wanted if kind not in MEASURES]:
        raise typer.BadParameter(f"no measure {unknown[0]!r}; there are {', '.join(MEASURES)}.")
    names = (a, b) if a != b else (f"{a} (1)", f"{b} (2)")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as name:
        folder = Path(name)
        with Commit(a, folder / "a") as first, Commit(b, folder / "b") as second:
            for number in range(rounds):
                for title, commit in zip(names, (first, second), strict=True):
                    found: dict[str, Any] = {}
                    for kind in wanted:
                        found |= commit.measure(kind, n)
                    runs[title].append(found)
                    print(f"round {number + 1} {title} {json.dumps(found)}", flush=True)
    print(report(runs, names))
