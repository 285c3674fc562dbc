"""What toque is to reach, and the table that says what a run has reached.

A figure is named `section.figure`, as the measures put them (see `sections.put`). What no measure
has put is shown as not measured. Targets that compare systems are ratios within one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .figures import shown, table


class Target(NamedTuple):
    """One line: `least` or `most` is the bound; `by` is the measure that finds it out."""

    what: str
    figure: str
    by: str
    least: float | None = None
    most: float | None = None
    unit: str = ""

    def bound(self) -> str:
        """As it is shown."""
        if self.least is not None:
            return f"at least {self.least:,g} {self.unit}".rstrip()
        return f"at most {self.most:,g} {self.unit}".rstrip()

    def is_met(self, value: float) -> bool:
        """Whether a figure keeps to it."""
        if self.least is not None:
            return value >= self.least
        return self.most is not None and value <= self.most


TARGETS = (
    Target("create to complete: rate, times Restate's", "comparison.w1_restate", "compare", 4),
    Target(
        "the same alone: time, part of Restate's", "comparison.alone_restate", "compare", most=1
    ),
    Target("ten steps: rate, times Restate's", "comparison.w2_restate", "compare", 4),
    Target(
        "waiting for an event: memory of one, part of the smallest peer's",
        "comparison.w3_memory",
        "compare",
        most=1,
    ),
    Target(
        "every process killed while many wait: first one ends after, part of Restate's",
        "comparison.w3_recovery_restate",
        "compare",
        most=1,
    ),
    Target(
        "create to complete: CPU of the API", "throughput.api_ms", "throughput", most=0.2, unit="ms"
    ),
    Target(
        "create to complete: CPU of the client",
        "throughput.client_ms",
        "throughput",
        most=0.25,
        unit="ms",
    ),
    Target(
        "each fsync 2 ms slower: rate of create to complete, part of the fast one",
        "slow-fsync.w1",
        "slow-fsync",
        0.7,
    ),
    Target("the same: rate of ten steps", "slow-fsync.w2", "slow-fsync", 0.7),
    Target(
        "300 creates a second for 5 minutes, open loop: p99",
        "creates.p99_ms",
        "creates",
        most=100,
        unit="ms",
    ),
    Target(
        "calls at the Gatekeeper: a second and SousChef",
        "control-plane.calls_per_souschef_s",
        "control-plane",
        most=1,
    ),
    Target(
        "a workflow behind 1,000 queued of another: its first ten start within",
        "control-plane.late_s",
        "control-plane",
        most=3,
        unit="s",
    ),
    Target(
        "a create behind the queue of `queue`, times one behind 1,000: p50",
        "queue.create_ratio",
        "queue",
        most=1.5,
    ),
    Target(
        "nine quiet workflows beside a long queue: create to running, p99",
        "noisy.wait_p99_ms",
        "noisy",
        most=1500,
        unit="ms",
    ),
    Target(
        "the same: error of the shares against max-min",
        "noisy.share_error_pct",
        "noisy",
        most=5,
        unit="%",
    ),
    Target("idle, on Ray: CPU above Ray's own", "idle.ray_cores", "idle", most=0.05, unit="cores"),
    Target("idle, embedded: CPU", "idle.embedded_cores", "idle", most=0.02, unit="cores"),
    Target(
        "hibernated: memory of one of them", "waiters.hibernated_kib", "waiters", most=4, unit="KiB"
    ),
    Target(
        "hibernated: one wakes, to its end, p99",
        "waiters.one_woken_p99_ms",
        "waiters",
        most=50,
        unit="ms",
    ),
    Target(
        "a million hibernated: memory of all processes",
        "waiters.memory_gib",
        "waiters",
        most=4,
        unit="GiB",
    ),
    Target("10,000 due at one second: rate", "waiters.herd_per_s", "waiters", 2000, unit="/s"),
    Target(
        "the same: 100 creates a second meanwhile, p99",
        "waiters.create_p99_ms",
        "waiters",
        most=250,
        unit="ms",
    ),
    *(
        Target(
            f"50,000 run at once: {what}, p99",
            f"running.{what}_p99_ms",
            "running",
            most=100,
            unit="ms",
        )
        for what in ("status", "list", "create")
    ),
    Target(
        "a shard is killed, 50,000 wait and 1,000 run on it: first progress, median",
        "recovery.first_p50_s",
        "recovery",
        most=3,
        unit="s",
    ),
    Target("the same: all have gone on, p99", "recovery.all_p99_s", "recovery", most=8, unit="s"),
)


def render(measured: Mapping[str, float]) -> str:
    """The section, as Markdown."""
    rows = []
    for target in TARGETS:
        value = measured.get(target.figure)
        found = "not measured" if value is None else shown(value, target.unit)
        met = "" if value is None else "yes" if target.is_met(value) else "no"
        rows.append([target.what, target.bound(), found, met, f"`{target.by}`"])
    head = ["measure", "target", "measured", "met", "by"]
    return f"## Targets\n\n{table(head, rows)}\n"
