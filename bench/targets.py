"""What toque is to reach, and the table that says what has been reached.

A figure is named `section.figure`, as the measures put them (see `sections.put`). What no measure
has put is shown as not measured; what was measured on less than the target asks for is shown with
its size and meets nothing. Targets that compare systems are ratios within one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .figures import shown, table


class Target(NamedTuple):
    """One line.

    Attributes:
        what: in words.
        figure: what is bounded.
        bound, unit: by how much.
        is_least: whether the figure must be at least that, not at most.
        at: figures of the same section that say how large a thing was measured, and how large it
            must be.
    """

    what: str
    figure: str
    bound: float
    unit: str
    is_least: bool
    at: Mapping[str, float]

    @property
    def section(self) -> str:
        """The section that holds the figure."""
        return self.figure.partition(".")[0]

    @property
    def measure(self) -> str:
        """The measure that writes it."""
        return "compare" if self.section == "comparison" else self.section

    def is_met(self, value: float) -> bool:
        """Whether a figure keeps to it."""
        return value >= self.bound if self.is_least else value <= self.bound

    def cells(self, measured: Mapping[str, float]) -> list[str]:
        """The line: what, the bound, what was measured, whether that meets it, by what."""
        word = "at least" if self.is_least else "at most"
        bound = f"{word} {self.bound:,g} {self.unit}".rstrip()
        return [self.what, bound, *self._found(measured), f"`{self.measure}`"]

    def _found(self, measured: Mapping[str, float]) -> tuple[str, str]:
        value = measured.get(self.figure)
        if value is None:
            return "not measured", ""
        found = shown(value, self.unit)
        sizes = {name: measured.get(f"{self.section}.{name}", 0) for name in self.at}
        short = [f"{name} {size:,g}" for name, size in sizes.items() if size < self.at[name]]
        if short:
            return f"{found} ({', '.join(short)})", "not at that size"
        return found, "yes" if self.is_met(value) else "no"


def least(what: str, figure: str, bound: float, unit: str = "", **at: float) -> Target:
    """A figure that is to be at least so much."""
    return Target(what, figure, bound, unit, True, at)


def most(what: str, figure: str, bound: float, unit: str = "", **at: float) -> Target:
    """A figure that is to be at most so much."""
    return Target(what, figure, bound, unit, False, at)


TARGETS = (
    least("create to complete: rate, times Restate's", "comparison.w1_restate", 4),
    least("the same: rate, times that of DBOS on SQLite", "comparison.w1_dbos_sqlite", 15),
    most("the same alone: time, part of Restate's", "comparison.alone_restate", 0.5),
    least("ten steps: rate, times Restate's", "comparison.w2_restate", 4),
    most("a durable step alone: time, part of Restate's", "comparison.step_restate", 0.5),
    most("waiting: memory of one, part of the smallest peer's", "comparison.w3_memory", 1),
    most(
        "every process killed while many wait: first one ends after, part of Restate's",
        "comparison.w3_recovery_restate",
        1,
    ),
    most("create to complete: CPU of all, client included", "throughput.all_ms", 1.2, "ms"),
    least(
        "each fsync 2 ms slower: create to complete, part of the fast rate", "slow-fsync.w1", 0.7
    ),
    least("the same: ten steps", "slow-fsync.w2", 0.7),
    most(
        "300 creates a second for 5 minutes, open loop: create to running, p99",
        "creates.start_p99_ms",
        100,
        "ms",
        rate=300,
        seconds=300,
    ),
    most(
        "calls at the Gatekeeper: a second, of each caller", "control-plane.calls_per_souschef_s", 1
    ),
    most("behind 1,000 queued of another: first ten start within", "control-plane.late_s", 3, "s"),
    most(
        "2,000,000 queued in one workflow: a create, times one behind 1,000",
        "queue.create_ratio",
        1.5,
        n=2_000_000,
    ),
    most(
        "nine quiet workflows beside 100,000 queued: create to running, p99",
        "noisy.wait_p99_ms",
        1_500,
        "ms",
        queued=100_000,
    ),
    most("the same: error of the shares", "noisy.share_error_pct", 5, "%", queued=100_000),
    *(
        most(f"50,000 run at once: {what}, p99", f"running.{what}_p99_ms", 100, "ms", n=50_000)
        for what in ("status", "list", "create")
    ),
    most(
        "a million hibernated: memory of all processes",
        "waiters.memory_gib",
        4,
        "GiB",
        n=1_000_000,
    ),
    most("hibernated: one wakes, to its end, p99", "waiters.one_woken_p99_ms", 50, "ms"),
    least("10,000 due at one second: rate", "waiters.herd_per_s", 2_000, "/s", herd=10_000),
    most(
        "the same: 100 creates a second meanwhile, p99",
        "waiters.create_p99_ms",
        250,
        "ms",
        herd=10_000,
    ),
    most(
        "a shard is killed, 50,000 wait and 1,000 run on it: first progress, median",
        "recovery.first_p50_s",
        3,
        "s",
        kills=20,
        waiting=50_000,
        running=1_000,
    ),
    most(
        "the same: all have gone on, p99",
        "recovery.all_p99_s",
        8,
        "s",
        kills=20,
        waiting=50_000,
        running=1_000,
    ),
    most("idle, on Ray: CPU above Ray's own", "idle.ray_cores", 0.02, "cores"),
    most("idle, embedded: CPU", "idle.embedded_cores", 0.01, "cores"),
)


def render(measured: Mapping[str, float]) -> str:
    """The section, as Markdown."""
    head = ["what", "target", "measured", "met", "by"]
    return f"## Targets\n\n{table(head, (target.cells(measured) for target in TARGETS))}\n"
