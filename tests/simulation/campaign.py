"""Many seeds, perhaps in several processes, and one table of what they met.

A campaign fails if a seed breaks a promise, and also if a fault or a check never happened in all
of it: a check that is never made keeps no promise.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from .focus import EVERYTHING, Focus
from .parts import Sabotage
from .sabotage import bugs
from .scenario import Report, run_seed

FAILURES_MAX = 20
"""A campaign that fails so often has nothing more to tell."""
MEMORY_FOLDER = Path("/dev/shm")
"""Where files cost no disk, if the system has it."""

FAULTS = (
    "crash, commit kept",
    "crash, commit lost",
    "a commit fails, kept",
    "a commit fails, lost",
    "all restarted",
    "evicted",
    "reset",
    "clock set",
    "zombie",
    "pause",
    "fenced",
    "front end died",
    "partition",
    "loss of calls",
    "loss of answers",
    "stall of calls",
    "stall of answers",
    "repeat",
    "delay",
    "limit changed",
    "a workflow has more SousChefs",
    "paused by a client",
    "resumed by a client",
    "cancelled by a client",
    "terminated by a client",
    "terminated with rollback by a client",
    "restarted by a client",
    "restarted from a step by a client",
    "deleted by a client",
    "client tries again",
    "client gives up",
    "create refused as a duplicate",
)
CHECKS = (
    "Gatekeeper calls stay below their bound",
    "a cancelled run cleans up",
    "a create that was refused runs nothing",
    "a deleted id is free at once",
    "a failed store ends its owner at once",
    "a fenced owner does not commit",
    "a late result of an older attempt is refused",
    "a life has results of its own",
    "a list misses nothing acknowledged",
    "a list shows nothing twice",
    "a lowered limit lets nothing start above it",
    "a new life is its own",
    "a program ends as it must",
    "a repeated batch gets the first answer",
    "a repeated create gets the first answer",
    "a repeated delete gets the first answer",
    "a restart keeps what came before its step",
    "a restart takes effect once",
    "a rollback ends well",
    "a run that has continued never goes back",
    "a run that was replaced begins nothing",
    "a sensitive output is shown to nobody",
    "a sleep is never short",
    "a step ends as it must",
    "a step has a result of a body",
    "a step has one result",
    "a terminated instance is terminated",
    "an acknowledged create ends",
    "an acknowledged instance exists",
    "an end has its output",
    "an end that was seen stays",
    "an event that is there is taken",
    "an instance keeps its params",
    "at most once",
    "attempts have numbers of their own",
    "events arrive once and in order",
    "every step has run",
    "no event is made up",
    "nothing is left when all has ended",
    "once a rollback has begun nothing else does",
    "one Gatekeeper call per SousChef and period",
    "one create wins an id",
    "only who asks for it is cancelled",
    "only who asks for it is terminated",
    "only who fails undoes what it did",
    "payloads go through the codec",
    "recorded result is of a body that ended",
    "recorded result never changes",
    "recorded step never runs again",
    "rollbacks run one after the other",
    "running <= ledger",
    "running <= limit",
    "running <= the workflow's own limit",
    "the ledger keeps to the limit",
    "user code runs only in a slot",
    "what is deleted runs no more",
    "what is undone has been undone",
    "what is shielded is done though the run is cancelled",
    "who fails undoes what it did",
)


def new_folder() -> Path:
    """An empty folder for the files of one world, in memory if possible."""
    parent = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="toque-sim-", dir=parent))


def play(
    seed: int,
    sabotage: tuple[str, ...] = (),
    echo: Callable[[str], None] | None = None,
    ignored: frozenset[str] = frozenset(),
    focus: Focus = EVERYTHING,
) -> Report:
    """Play one seed in a folder of its own, which is removed."""
    folder = new_folder()
    logging.disable(logging.CRITICAL)
    try:
        with bugs(sabotage) as switches:
            given = Sabotage(**dict.fromkeys(switches, True))
            return run_seed(seed, folder, given, echo, ignored, focus)
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(folder, ignore_errors=True)


def play_all(first: int, count: int, jobs: int, sabotage: tuple[str, ...] = ()) -> Iterator[Report]:
    """Play seeds, in order; with `jobs` > 1 in that many processes."""
    seeds = range(first, first + count)
    one = partial(play, sabotage=sabotage)
    if jobs <= 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, seeds, chunksize=4)


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
        return [name for name in FAULTS if not self.faults[name]] + [
            name for name in CHECKS if not self.checked[name]
        ]

    def table(self, wall_s: float) -> str:
        """All of it, to be read."""
        lines = [
            f"{self.seeds} seeds in {wall_s:.0f} s ({60 * self.seeds / max(wall_s, 1e-3):.0f} a "
            f"minute), CPU {self.cpu_s / max(1, self.seeds):.2f} s each, at most "
            f"{self.cpu_s_max:.2f}",
            f"{self.virtual_s / 3600:.1f} virtual hours, {self.instances} instances, "
            f"{self.bodies} bodies",
            "",
        ]
        for title, counts in (("fault", self.faults), ("check", self.checked)):
            lines.append(f"{title:>12}")
            lines += [f"{counts[name]:>12}  {name}" for name in sorted(counts)]
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
            if len(summary.failed) == FAILURES_MAX:
                tell(f"stopped after {FAILURES_MAX} failures")
                break
        if summary.seeds % 50 == 0:
            rate = 60 * summary.seeds / (time.monotonic() - began)
            tell(f"{summary.seeds} of {count}, {rate:.0f} a minute, failed: {summary.failed}")
    tell(summary.table(time.monotonic() - began))
    return 1 if summary.failed or summary.never() else 0
