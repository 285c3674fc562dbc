"""The series of a test: one sample a second of what was sent and of the control plane. Pure.

A page of metrics may be as old as the server keeps it. So rates are between two pages that
differ, over the time between them; a second without a new page has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..runtime import limits
from .histograms import percentile
from .recorder import Tick
from .shares import Use, sample_error

WANTED = (
    "toque_commit_rows",
    "toque_frame_calls",
    "toque_instances",
    "toque_lease_calls_total",
    "toque_loop_lag_seconds",
    "toque_process_",
    "toque_queue_age_seconds",
    "toque_slots_",
    "toque_souschefs",
)
CLIENT = "loadtest"
"""What the processes that send are called among the others."""
SENT = ("offered", "accepted", "completed", "failed", "create_p50_ms", "create_p99_ms", "in_flight")
SEEN = (
    "gatekeeper_calls_per_s",
    "slots_limit",
    "slots_leased",
    "slots_used",
    "queued",
    "queue_age_s",
    "commits_per_s",
    "rows_per_commit",
    "frames_per_s",
    "calls_per_frame",
)
_PROCESSES_MAX = 200


class Reading(NamedTuple):
    """A sample of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


class _Page(NamedTuple):
    """What a page tells, by what it is of."""

    at_s: float
    sums: dict[str, float]
    processes: dict[tuple[str, str], float]
    lag: dict[str, dict[float, float]]
    uses: dict[str, Use]
    statuses: dict[str, float]
    ended: float
    live: dict[str, float]
    queue_age_s: float
    souschefs: float


class Samples:
    """The series, as they grow.

    Args:
        account, workflows: whose instances count.

    Attributes:
        pages: how many have been read.
        errors: of each page from `shares_from_s` on, see `shares`.
        processes: what each took, by name.
    """

    def __init__(self, account: str, workflows: Iterable[str]) -> None:
        self._account = account
        self._workflows = set(workflows)
        self._rows: list[dict[str, float | None]] = []
        self._first: _Page | None = None
        self._page: _Page | None = None
        self._client_cpu: tuple[float, float] | None = None
        self.pages = 0
        self.shares_from_s = 0.0
        self.errors: list[float | None] = []
        self.calls_max: float | None = None
        self.calls_over = 0
        self.souschefs_max = 0.0
        self.processes: dict[str, dict[str, float]] = {}
        self._cpu_first: dict[str, float] = {}

    @property
    def has_figures(self) -> bool:
        """Whether the control plane tells any."""
        return self._page is not None

    @property
    def ended(self) -> float:
        """Instances that have ended since the first page."""
        return 0.0 if self._page is None or self._first is None else (
            self._page.ended - self._first.ended
        )  # fmt: skip

    def live(self, workflows: Iterable[str]) -> float | None:
        """Instances of some workflows that have not ended; None: not known."""
        if self._page is None:
            return None
        return sum(self._page.live.get(name, 0.0) for name in workflows)

    @property
    def last(self) -> dict[str, float | None]:
        """The newest sample."""
        return self._rows[-1] if self._rows else {}

    def count(self, status: str) -> float | None:
        """How many instances had that status (`queued`, `running`, `waiting`); None: not known."""
        return None if self._page is None else self._page.statuses.get(status, 0.0)

    def series(self) -> dict[str, list[float | None]]:
        """All samples, by name."""
        names = {"t_s": None, **dict.fromkeys((*SENT, *SEEN))}
        for row in self._rows:
            names.update(dict.fromkeys(row))
        return {name: [row.get(name) for row in self._rows] for name in names}

    def totals(self) -> dict[str, float | None]:
        """Figures of the whole test."""
        return {
            "gatekeeper_calls_per_s_max": self.calls_max,
            "gatekeeper_calls_over_bound": self.calls_over if self.has_figures else None,
            "souschefs": self.souschefs_max if self.has_figures else None,
        }

    def add(self, at_s: float, tick: Tick, readings: Sequence[Reading] | None) -> None:
        """Note a second.

        Args:
            at_s: since the test began.
            tick: what was sent in it.
            readings: of a page that was not seen before; None: there is no new one.
        """
        row: dict[str, float | None] = {
            "t_s": round(at_s, 3),
            "offered": tick.offered,
            "accepted": tick.accepted,
            "failed": tick.failed,
            "in_flight": tick.in_flight,
            "create_p50_ms": _percentile(tick.creates_ms, 0.5),
            "create_p99_ms": _percentile(tick.creates_ms, 0.99),
        }
        self._note_client(row, at_s, tick)
        page = self._read(at_s, readings) if readings else None
        if page is not None:
            self._note_page(row, page)
        if len(self._rows) < limits.LOADTEST_SECONDS_MAX:
            self._rows.append(row)

    # --- the sending processes ---

    def _note_client(self, row: dict[str, float | None], at_s: float, tick: Tick) -> None:
        row[f"rss_mib.{CLIENT}"] = round(tick.rss_mib, 1)
        if self._client_cpu is not None and at_s > self._client_cpu[0]:
            spent = tick.cpu_s - self._client_cpu[1]
            row[f"cpu_cores.{CLIENT}"] = round(max(0.0, spent / (at_s - self._client_cpu[0])), 3)
        self._client_cpu = at_s, tick.cpu_s
        self._note_process(CLIENT, tick.rss_mib, tick.cpu_s)

    def _note_process(self, name: str, rss_mib: float, cpu_s: float) -> None:
        if name not in self.processes and len(self.processes) >= _PROCESSES_MAX:
            return
        found = self.processes.setdefault(name, {"rss_mib_max": 0.0, "cpu_s": 0.0})
        first = self._cpu_first.setdefault(name, cpu_s)
        if cpu_s < first:  # another process has its place
            first = self._cpu_first[name] = 0.0
        found["rss_mib_max"] = round(max(found["rss_mib_max"], rss_mib), 1)
        found["cpu_s"] = round(max(found["cpu_s"], cpu_s - first), 3)

    # --- the control plane ---

    def _read(self, at_s: float, readings: Sequence[Reading]) -> _Page:
        sums: dict[str, float] = {}
        processes: dict[tuple[str, str], float] = {}
        lag: dict[str, dict[float, float]] = {}
        uses: dict[str, Use] = {}
        statuses: dict[str, float] = {}
        live: dict[str, float] = {}
        ended = queue_age_s = 0.0
        for name, labels, value in readings:
            if name.startswith("toque_process_"):
                processes[name, labels.get("process", "")] = value
            elif name == "toque_loop_lag_seconds_bucket":
                lag.setdefault(labels["process"], {})[float(labels["le"])] = value
            elif name.startswith("toque_slots_"):
                if labels.get("account") == self._account:
                    sums[name] = value
            elif name in ("toque_instances", "toque_instances_ended_total"):
                if not self._is_ours(labels):
                    continue
                if name == "toque_instances":
                    live[labels["workflow"]] = live.get(labels["workflow"], 0.0) + value
                    statuses[labels["status"]] = statuses.get(labels["status"], 0.0) + value
                    _use(uses, labels["workflow"], labels["status"], int(value))
                elif labels["status"] != "deleted":
                    ended += value
            elif name == "toque_queue_age_seconds":
                queue_age_s = max(queue_age_s, value if self._is_ours(labels) else 0.0)
            else:
                sums[name] = sums.get(name, 0.0) + value
        souschefs = sums.get("toque_souschefs", 0.0)
        return _Page(
            at_s, sums, processes, lag, uses, statuses, ended, live, queue_age_s, souschefs
        )

    def _is_ours(self, labels: Mapping[str, str]) -> bool:
        return labels["account"] == self._account and labels["workflow"] in self._workflows

    def _note_page(self, row: dict[str, float | None], page: _Page) -> None:
        before, self._page = self._page, page
        self.pages += 1
        if self._first is None:
            self._first = page
        sums = page.sums
        for name in ("limit", "leased", "used"):
            row[f"slots_{name}"] = sums.get(f"toque_slots_{name}")
        row["queued"] = float(sum(use.queued for use in page.uses.values()))
        row["queue_age_s"] = page.queue_age_s
        self.souschefs_max = max(self.souschefs_max, page.souschefs)
        if page.at_s >= self.shares_from_s:
            self.errors.append(sample_error(int(sums.get("toque_slots_limit", 0)), page.uses))
        for (name, process), value in page.processes.items():
            if name == "toque_process_resident_bytes":
                row[f"rss_mib.{process}"] = round(value / limits.MIB, 1)
                cpu = page.processes.get(("toque_process_cpu_seconds_total", process), 0.0)
                self._note_process(process, value / limits.MIB, cpu)
        if before is not None and page.at_s > before.at_s:
            self._note_rates(row, before, page)

    def _note_rates(self, row: dict[str, float | None], before: _Page, page: _Page) -> None:
        seconds = page.at_s - before.at_s

        def grown(name: str) -> float:
            return _grown(before.sums.get(name, 0.0), page.sums.get(name, 0.0))

        row["completed"] = round(_grown(before.ended, page.ended) / seconds, 2)
        commits, frames = grown("toque_commit_rows_count"), grown("toque_frame_calls_count")
        row["commits_per_s"] = round(commits / seconds, 2)
        row["frames_per_s"] = round(frames / seconds, 2)
        if commits:
            row["rows_per_commit"] = round(grown("toque_commit_rows_sum") / commits, 3)
        if frames:
            row["calls_per_frame"] = round(grown("toque_frame_calls_sum") / frames, 3)
        calls = grown("toque_lease_calls_total") / seconds
        row["gatekeeper_calls_per_s"] = round(calls, 2)
        self.calls_max = max(self.calls_max or 0.0, round(calls, 2))
        # One call a SousChef and period; the time between two pages may begin just before one.
        most = min(limits.GATEKEEPER_CALLS_PER_SECOND_MAX, page.souschefs) * (int(seconds) + 1)
        self.calls_over += calls * seconds > most
        for (name, process), value in page.processes.items():
            if name == "toque_process_cpu_seconds_total":
                spent = _grown(before.processes.get((name, process), value), value)
                row[f"cpu_cores.{process}"] = round(spent / seconds, 3)
        for process, buckets in page.lag.items():
            late = _lag_p99_ms(before.lag.get(process, {}), buckets)
            row[f"loop_lag_p99_ms.{process}"] = late


def _use(uses: dict[str, Use], workflow: str, status: str, count: int) -> None:
    found = uses.get(workflow, Use(0, 0))
    if status == "running":
        found = found._replace(running=count)
    elif status == "queued":
        found = found._replace(queued=count)
    uses[workflow] = found


def _grown(before: float, now: float) -> float:
    """By how much a counter grew; one that went back began anew."""
    return now - before if now >= before else now


def _lag_p99_ms(before: Mapping[float, float], now: Mapping[float, float]) -> float | None:
    """The bound of the bucket that holds the 99th percentile of what came in between."""
    bounds = sorted(now)
    counts = [_grown(before.get(bound, 0.0), now[bound]) for bound in bounds]
    if not counts or counts[-1] <= 0:
        return None
    finite = [bound for bound in bounds if bound != float("inf")]
    for bound, count in zip(bounds, counts, strict=True):
        if count >= 0.99 * counts[-1]:
            return round(min(bound, finite[-1]) * 1000, 3)
    return None


def _percentile(values: Sequence[float], part: float) -> float | None:
    return round(percentile(values, part), 3) if values else None
