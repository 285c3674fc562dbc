"""Many seeds, perhaps in several processes, and one table of what they met.

A campaign fails if a seed breaks a promise, and also if a fault or a check never happened in all
of it: a check that is never made keeps no promise.
"""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from .checklist import CHECKS
from .faults import FAULTS
from .focus import EVERYTHING, Focus
from .parts import Sabotage
from .sabotage import bugs
from .scenario import Report, run_seed
from .shrink import shrunk
from .work import ITEMS

FAILURES_MAX = 20
"""A campaign that fails so often has nothing more to tell."""
SHRUNK_MAX = 3
"""So many failures of a campaign are shrunk, which takes a minute each."""
MEMORY_FOLDER = Path("/dev/shm")
"""Where files cost no disk, if the system has it."""

GARBAGE = (200_000, 5, 5)
"""Thresholds of the collector. A seed makes less than a few hundred megabytes."""

OTHER_FAULTS = ("a workflow has more SousChefs",)
FAULT_NAMES = tuple(
    dict.fromkeys(
        [name for fault in FAULTS.values() for name in fault.counts]
        + [name for item in ITEMS.values() for name in item.counts]
        + list(OTHER_FAULTS)
    )
)
"""What must come up in a campaign."""


def new_folder() -> Path:
    """An empty folder for the files of one world, in memory if possible."""
    parent = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="toque-sim-", dir=parent))


def settle_in() -> None:
    """For a process that plays many seeds: its modules are not searched for garbage, and what a
    seed leaves is, about once."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def play(
    seed: int,
    sabotage: tuple[str, ...] = (),
    echo: Callable[[str], None] | None = None,
    ignored: frozenset[str] = frozenset(),
    focus: Focus = EVERYTHING,
    only: Iterable[str] | None = None,
) -> Report:
    """Play one seed in a folder of its own, which is removed."""
    folder = new_folder()
    logging.disable(logging.CRITICAL)
    try:
        with bugs(sabotage) as switches:
            given = Sabotage(**dict.fromkeys(switches, True))
            return run_seed(seed, folder, given, echo, ignored, focus, only)
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder, ignore_errors=True)


def shrink(report: Report, sabotage: tuple[str, ...] = (), focus: Focus = EVERYTHING) -> str:
    """Play a seed that failed again, and tell the fewest parts with which it still fails."""
    seed, broken = report.seed, report.broken
    assert broken is not None, "only what failed can be shrunk"
    again = play(seed, sabotage, focus=focus)
    if again.digest != report.digest:
        return f"seed {seed} is another run each time: {report.digest}, then {again.digest}"

    def fails(parts: Sequence[str]) -> bool:
        found = play(seed, sabotage, focus=focus, only=parts).broken
        return found is not None and found.promise == broken.promise

    parts, runs = shrunk(report.parts, fails)
    last = play(seed, sabotage, focus=focus, only=parts)
    return "\n".join(
        [
            *last.tail,
            f"{last.broken}",
            f"shrunk in {runs} runs from {len(report.parts)} parts to {len(parts)}, hash "
            f"{last.digest}; once more:",
            f"python -m tests.simulation --seed {seed} --only '{'; '.join(parts)}'",
        ]
    )


def play_all(first: int, count: int, jobs: int, sabotage: tuple[str, ...] = ()) -> Iterator[Report]:
    """Play seeds, in order; with `jobs` > 1 in that many processes."""
    seeds = range(first, first + count)
    one = partial(play, sabotage=sabotage)
    if jobs <= 1:
        settle_in()
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=settle_in) as pool:
        yield from pool.map(one, seeds)  # one at a time: seeds differ a lot in what they take


@dataclass
class Summary:
    """What all seeds met."""

    seeds: int = 0
    failed: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    cpu_s_max: float = 0.0
    virtual_s: float = 0.0
    instances: int = 0
    bodies: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        """Take a seed in."""
        self.seeds += 1
        self.cpu_s += report.cpu_s
        self.cpu_s_max = max(self.cpu_s_max, report.cpu_s)
        self.virtual_s += report.virtual_s
        self.instances += report.instances
        self.bodies += report.bodies
        self.faults.update(report.faults)
        self.checked.update(report.checked)
        if report.broken is not None:
            self.failed.append(report.seed)

    def never(self) -> list[str]:
        """Faults and checks that have not happened."""
        return [name for name in FAULT_NAMES if not self.faults[name]] + [
            name for name in CHECKS if not self.checked[name]
        ]

    def table(self, wall_s: float, jobs: int) -> str:
        """All of it, to be read."""
        lines = [
            f"{self.seeds} seeds in {wall_s:.0f} s ({60 * self.seeds / max(wall_s, 1e-3):.0f} a "
            f"minute), CPU {self.cpu_s / max(1, self.seeds):.2f} s each, at most "
            f"{self.cpu_s_max:.2f}; {jobs} processes were busy for "
            f"{100 * self.cpu_s / max(jobs * wall_s, 1e-3):.0f}% of the time",
            f"{self.virtual_s / 3600:.1f} virtual hours, {self.instances} instances, "
            f"{self.bodies} bodies",
            "",
        ]
        tables = (("fault", self.faults, FAULT_NAMES), ("check", self.checked, CHECKS))
        for title, counts, names in tables:
            lines.append(f"{title:>12}")
            lines += [f"{counts[name]:>12}  {name}" for name in sorted({*counts, *names})]
        if never := self.never():
            lines += ["", "never happened: " + "; ".join(never)]
        lines += ["", f"failed: {self.failed}" if self.failed else "every promise was kept"]
        return "\n".join(lines)


def campaign(
    first: int, count: int, jobs: int, sabotage: tuple[str, ...], tell: Callable[[str], None]
) -> int:
    """Play seeds, tell of failures and progress, and at the end of everything. 0 if all is well."""
    summary = Summary()
    began = time.monotonic()
    for report in play_all(first, count, jobs, sabotage):
        summary.add(report)
        if report.broken is not None:
            tell(report.describe())
            if len(summary.failed) <= SHRUNK_MAX:
                tell(shrink(report, sabotage))
            if len(summary.failed) == FAILURES_MAX:
                tell(f"stopped after {FAILURES_MAX} failures")
                break
        if summary.seeds % 50 == 0:
            rate = 60 * summary.seeds / (time.monotonic() - began)
            tell(f"{summary.seeds} of {count}, {rate:.0f} a minute, failed: {summary.failed}")
    tell(summary.table(time.monotonic() - began, jobs))
    return 1 if summary.failed or summary.never() else 0
