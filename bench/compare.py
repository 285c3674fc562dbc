"""toque beside its peers: three workloads, in turns within one run, medians.

w1 creates instances of one step and waits for each end; w2 runs ten steps one after another; w3
has instances wait for an event, wakes them, and kills every process while as many wait again.
toque serves HTTP from a Ray cluster. Peers come from a kit (see peers); without it there is
nothing to compare, and the page keeps what it says of them.

Rates depend on who else uses the machine: beside each stands how many cores others used. CPU for a
unit of work hardly does. What does not fit into `--seconds` is left out, the last rounds first.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from . import asked, peers, processes, progress, sections, throughput, waiting
from .figures import median_of, shown, table
from .server import fresh

Rows = dict[str, list[dict[str, Any]]]
WORKLOADS = ("w1", "w2", "w3")
USUAL_S = {"w1": 15, "w2": 15, "w3": 60}
"""How long one system's turn takes; ours of w3, which waits until all are out of memory, twice."""
OURS = "toque"
CONC = 64
TITLES = {
    "w1": {
        "completions_per_s": "create to complete, /s",
        "solo_start_to_complete_p50_ms": "alone: p50, ms",
        "solo_start_to_complete_p99_ms": "p99, ms",
        "cpu_ms_per_workflow": "CPU of one, client included, ms",
        "other_cpu_cores": "cores used by others",
    },
    "w2": {
        "steps_per_s": "steps/s",
        "step_p50_ms": "a step alone: p50, ms",
        "step_p99_ms": "p99, ms",
        "cpu_ms_per_step": "CPU of a step, client included, ms",
        "other_cpu_cores": "cores used by others",
    },
    "w3": {
        "n": "waiting",
        "pss_per_waiter_kib": "memory of one, KiB",
        "waiter_creates_per_s": "creates, /s",
        "wakeups_per_s": "woken and ended, /s",
        "recovery_server_up_s": "after the kill: serves again, s",
        "recovery_first_event_s": "first one ended, s",
        "recovery_last_event_s": "last of three, s",
        "other_cpu_cores": "cores used by others",
    },
}
MAIN = {"w1": "completions_per_s", "w2": "steps_per_s", "w3": "wakeups_per_s"}
HEADS = {
    "w1": "Create to complete",
    "w2": "Ten steps, one after another",
    "w3": "Waiting for an event, and a kill",
}


def run_toque(workload: str, n: int, waiters: int) -> dict[str, Any]:
    """One round of toque on a fresh directory."""
    if workload == "w3":
        return waiting.measure(waiters)
    with fresh() as server:
        if workload == "w1":
            return asyncio.run(throughput.create_to_complete(server, n, CONC))
        return asyncio.run(throughput.ten_steps(server, max(1, n // 8), CONC))


def run_peer(name: str, workload: str, timeout_s: float) -> dict[str, Any] | None:
    """One round of a peer."""
    line = peers.run(name, workload, timeout_s=timeout_s)
    if line is not None and line.get("recovery_by_pick_s"):
        line["recovery_last_event_s"] = max(line["recovery_by_pick_s"].values())
    return line


class Plan:
    """What is run, in which order, until the time is up.

    Args:
        names: the systems, ours first.
        workloads: which.
        rounds: how often w1 and w2; w3 once.
        seconds: how long in all.
    """

    def __init__(self, names: list[str], workloads: list[str], rounds: int, seconds: float) -> None:
        self.names = names
        self.turns = [
            (number, workload)
            for number in range(rounds)
            for workload in workloads
            if number == 0 or workload != "w3"
        ]
        self.found: dict[str, Rows] = {workload: {} for workload in workloads}
        self.end = time.monotonic() + seconds
        self._longest: dict[tuple[str, str], float] = {}

    def left_s(self) -> float:
        """Seconds until the time is up."""
        return self.end - time.monotonic()

    def fits(self, name: str, workload: str) -> bool:
        """Whether a turn would end in time: as long as before, or as usual."""
        usual = USUAL_S[workload] * (2 if (name, workload) == (OURS, "w3") else 1)
        return self.left_s() >= 1.2 * self._longest.get((name, workload), usual)

    def run(self, one: Callable[[str, str, float], dict[str, Any] | None]) -> dict[str, Rows]:
        """All turns that fit; what was found so far stands in `found`."""
        for number, workload in self.turns:
            for name in self.names:
                if name != OURS and not getattr(peers.PEERS[name], workload):
                    continue
                if not self.fits(name, workload):
                    progress.note("compare", round=number + 1, left_out=f"{name} {workload}")
                    continue
                start = time.monotonic()
                row = one(name, workload, max(30, self.left_s()))
                took = time.monotonic() - start
                self._longest[name, workload] = max(took, self._longest.get((name, workload), 0))
                if row is not None:
                    self.found[workload].setdefault(name, []).append(row)
                    keys = {key: row.get(key) for key in TITLES[workload]}
                    progress.note(
                        "compare", round=number + 1, system=name, workload=workload,
                        took_s=round(took, 1), **keys,
                    )  # fmt: skip
        return self.found


def ratio(rows: Rows, name: str, key: str) -> float | None:
    """A figure of ours over that of another."""
    ours, theirs = median_of(rows.get(OURS, []), key), median_of(rows.get(name, []), key)
    return ours / theirs if ours and theirs else None


def figures(found: dict[str, Rows]) -> dict[str, float]:
    """What the targets ask for."""
    w1, w2, w3 = (found.get(workload, {}) for workload in WORKLOADS)
    named: dict[str, float | None] = {}
    for peer in peers.PEERS:
        short = peer.replace("-", "_")
        named[f"w1_{short}"] = ratio(w1, peer, "completions_per_s")
        named[f"w1_cpu_{short}"] = ratio(w1, peer, "cpu_ms_per_workflow")
        named[f"alone_{short}"] = ratio(w1, peer, "solo_start_to_complete_p50_ms")
        named[f"w2_{short}"] = ratio(w2, peer, "steps_per_s")
        named[f"step_{short}"] = ratio(w2, peer, "step_p50_ms")
    rates = [named["w1_restate"], named["w1_restate_call"]]
    named["w1_restate"] = min((rate for rate in rates if rate), default=None)
    alone = [named["alone_restate"], named["alone_restate_call"]]
    named["alone_restate"] = max((part for part in alone if part), default=None)
    memory = [ratio(w3, peer, "pss_per_waiter_kib") for peer in peers.PEERS]
    named["w3_memory"] = max((value for value in memory if value is not None), default=None)
    named["w3_recovery_restate"] = ratio(w3, "restate", "recovery_first_event_s")
    return {key: value for key, value in named.items() if value is not None}


def report(found: dict[str, Rows]) -> str:
    """The section."""
    parts = []
    for workload, rows in found.items():
        titles = TITLES[workload]
        lines = []
        for name, runs in rows.items():
            cells = [shown(median_of(runs, key)) for key in titles]
            lines.append([name, str(len(runs)), *cells, shown(ratio(rows, name, MAIN[workload]))])
        head = ["system", "runs", *titles.values(), "rate, toque to it"]
        parts.append(f"### {HEADS[workload]}\n\n{table(head, lines)}\n")
    versions = sorted(
        {
            f"{name}: {runs[-1]['version']}"
            for rows in found.values()
            for name, runs in rows.items()
            if "version" in runs[-1]
        }
    )
    text = "\n".join(parts)
    return f"""## Beside others

`PEERS=kit python -m bench compare`: in turns within one run, medians; {processes.machine()}. \
Every system acknowledges after an fsync, each in the mode that was the fastest of those tried: \
toque over HTTP on Ray, {CONC} requests in flight, create-and-wait in one; Restate over HTTP, by \
two requests and by one (`restate-call`); DBOS in process; Cloudflare's local engine over HTTP.

{text}
Versions: {"; ".join(versions)}.
"""


def command(
    others: Annotated[str, typer.Option("--peers", help="all, none, or a list.")] = "all",
    workloads: Annotated[str, typer.Option(help="Some of w1,w2,w3.")] = ",".join(WORKLOADS),
    rounds: Annotated[int, typer.Option(min=1, help="Of w1 and w2; w3 runs once.")] = 3,
    seconds: Annotated[float, typer.Option(min=10, help="How long in all, about.")] = 780,
    n: Annotated[int, typer.Option(min=100, help="toque's instances a round.")] = 4000,
    waiters: Annotated[int, typer.Option(min=3, help="toque's in w3.")] = 10_000,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """Three workloads, beside the peers of the kit that $PEERS names."""
    names = peers.chosen(others)
    wanted = asked.words(workloads, "--workloads", WORKLOADS)
    plan = Plan([OURS, *names], wanted, rounds, seconds)

    def one(name: str, workload: str, timeout_s: float) -> dict[str, Any] | None:
        if name == OURS:
            return run_toque(workload, n, waiters)
        return run_peer(name, workload, min(timeout_s, 300))

    if not names:
        print(
            f"No peers ($PEERS is {os.environ.get('PEERS')!r}): the page keeps the last comparison."
        )
    try:
        plan.run(one)
    finally:  # what was found is kept, also of a run that is ended
        peers.stop_postgres()
        found = {workload: rows for workload, rows in plan.found.items() if rows}
        print(report(found))
        print(json.dumps(figures(found)))
        if page and names and found:
            sections.put("comparison", report(found), figures=figures(found))
            _put_ours(found, n)


def _put_ours(found: dict[str, Rows], n: int) -> None:
    """toque's own section, as `throughput` writes it, of the rounds that had both workloads."""
    ours = [found.get(workload, {}).get(OURS, []) for workload in ("w1", "w2")]
    rows = [{**steps, **creates} for creates, steps in zip(*ours, strict=False)]
    if rows:
        throughput.put(rows, n, CONC)
