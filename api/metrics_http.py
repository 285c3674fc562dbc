"""The figures of the system in the form that Prometheus reads.

They are gathered when somebody scrapes, within METRICS_TIMEOUT_MS and once at a time; a shard that
does not answer is shown as down and its figures are left out. Series are bounded: the oldest
METRICS_WORKFLOWS_MAX workflows have their own, the others share those of `(others)`. What each
metric means stands in docs/deployment.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ..runtime import limits
from ..runtime.errors import RouteNotFound
from ..runtime.histogram import Histogram
from ..runtime.process import ProcessMeter
from .dispatch_http import Dispatcher, Receive, Scope, Send
from .errors_http import answer_of
from .front_figures import (
    FrontFigures,
    RouteFigures,
    counted_on,
    figures_of,
    merged_routes,
    read_figures,
    write_figures,
)
from .kept import Kept
from .metrics import Workflow, accounts_of, workflows_of
from .service import ControlPlane

CONTENT_TYPE = CONTENT_TYPE_LATEST
Sample = tuple[Sequence[str], float]
Figures = Mapping[str, Mapping[str, Any]]

_SHARD_GAUGES = (
    ("live_entities", "toque_live_entities", "Entities in memory.", 1),
    ("outbox_waiting", "toque_outbox_waiting", "Messages that wait for their receivers.", 1),
    ("alarm_late_ms_max", "toque_alarm_late_seconds_max", "The latest alarm was late by.", 1000),
    ("store_wal_bytes", "toque_store_wal_bytes", "Size of the write-ahead log.", 1),
    ("threads_hung", "toque_threads_hung", "Threads whose body was given up.", 1),
    ("workers", "toque_workers", "Worker processes for user code.", 1),
)
_SHARD_COUNTERS = (
    ("calls", "toque_entity_calls", "Calls of entities."),
    ("resets", "toque_entity_resets", "Activations that ended because of an error."),
    ("hibernated", "toque_hibernations", "Entities that left memory."),
    ("alarms_fired", "toque_alarms_fired", "Alarms that fired."),
    ("store_bytes", "toque_store_bytes", "Bytes committed."),
    ("store_batches_split", "toque_commits_split", "Commits that were retried in parts."),
    ("store_pages_compared", "toque_pages_compared", "Pages that were compared with checksums."),
)
_TOTALS = (
    ("grants", "toque_grants", "Slots given to instances."),
    ("refusals", "toque_grant_refusals", "Slots that were not taken."),
    ("pokes", "toque_pokes", "Instances asked how they stand."),
    ("calls", "toque_lease_calls", "Calls of SousChefs to Gatekeepers."),
    ("calls_failed", "toque_lease_calls_failed", "Of these, failed."),
)
_SHARD_HISTOGRAMS = (
    ("commit_rows", "toque_commit_rows", "Rows of a commit.", 1, range(16)),
    ("commit_us", "toque_commit_seconds", "How long a commit took.", 1e6, range(6, 26)),
    ("starts_ms", "toque_start_seconds", "From the wish for a slot to it.", 1e3, range(20)),
    ("late_ms", "toque_wake_late_seconds", "How late sleepers woke.", 1e3, range(20)),
)


class Metrics:
    """The figures of a front end and of the shards it reaches.

    Args:
        plane: reaches the shards.
        requests: counts HTTP requests.
        process: figures of this process.
        version: of toque.
        frames: how many calls this process's router sent in each frame.

    Attributes:
        page: the text for Prometheus.
    """

    def __init__(
        self,
        plane: ControlPlane,
        requests: Dispatcher,
        process: ProcessMeter | None,
        version: str,
        frames: Histogram | None = None,
    ) -> None:
        self._plane = plane
        self._requests = requests
        self._process = process
        self._version = version
        self._frames = frames
        self._shared: tuple[str, int, int] = ("", 0, 1)
        self._before: FrontFigures | None = None
        self.page = Kept(self._page, limits.METRICS_KEPT_MS)

    def share(self, folder: str, number: int, count: int) -> None:
        """Tell the figures of several front ends, which they write into a folder.

        What the one before this one had counted is counted on.

        Args:
            folder: see `front_figures`.
            number: this one's.
            count: how many there are.
        """
        self._shared = folder, number, count
        self._before = figures_of(folder, number)

    def own(self) -> FrontFigures:
        """The figures of this front end."""
        found = FrontFigures(
            self._shared[1],
            None if self._process is None else self._process.figures(),
            None if self._frames is None else self._frames.figures(),
            self._requests.in_flight,
            [
                RouteFigures(meter.method, meter.path, meter.statuses, meter.took_us.figures())
                for meter in self._requests.meters
                if meter.statuses
            ],
            self._plane.planes.reroutes,
        )
        return found if self._before is None else counted_on(found, self._before)

    async def _page(self) -> bytes:
        figures = await self._plane.figures()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Found([*self._families(figures)]))
        return generate_latest(registry)

    def _families(self, figures: Figures) -> Iterator[Metric]:
        up = [((name,), float(name in figures)) for name in self._plane.placement.names()]
        yield _gauge("toque_shard_up", "Whether the shard answered.", ("shard",), up)
        yield _gauge("toque_build_info", "The version.", ("version",), [((self._version,), 1)])
        yield from _of_shards(figures)
        folder, number, count = self._shared
        own = self.own()
        if folder:  # who is started in its place never tells less
            write_figures(folder, own)
        fronts = [own, *read_figures(folder, count, number)]
        yield from _of_processes(figures, fronts)
        yield _frames_of(figures, fronts)
        yield from _of_workflows(workflows_of(figures, limits.METRICS_WORKFLOWS_MAX))
        yield from _of_accounts(figures)
        yield from _of_requests(fronts)


class _Found:
    """A collector of what has been gathered."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families


class MetricsApp:
    """Serves the page to whoever asks: for an address that only this machine reaches.

    Args:
        metrics: what it serves.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        try:
            if scope["path"] != "/metrics":
                raise RouteNotFound("only /metrics is served here.")
            status, body = 200, await self._metrics.page.get()
            headers = [(b"content-type", CONTENT_TYPE.encode())]
        except Exception as error:
            status, headers, body = answer_of(error)
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def drain(self) -> None:
        """No request takes long here."""


# --- families -------------------------------------------------------------------------------


def _gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], Sequence[int]]],
    unit: float,
    bits: range,
) -> Metric:
    """Of the figures of histograms; `unit` of them are one of the metric's, `bits` are shown."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, (total, *buckets) in samples:
        bounds = [(str((1 << b) / unit), float(sum(buckets[: b + 1]))) for b in bits]
        family.add_metric(values, [*bounds, ("+Inf", float(sum(buckets)))], total / unit)
    return family


def _of_shards(figures: Figures) -> Iterator[Metric]:
    shard = ("shard",)
    epochs = [((name,), float(found["epoch"])) for name, found in figures.items()]
    yield _gauge("toque_shard_epoch", "How often the shard was opened.", shard, epochs)
    for key, name, text, per in _SHARD_GAUGES:
        yield _gauge(name, text, shard, _counted(figures, "counters", key, per))
    for key, name, text in _SHARD_COUNTERS:
        yield _counter(name, text, shard, _counted(figures, "counters", key))
    for key, name, text in _TOTALS:
        yield _counter(name, text, shard, _counted(figures, "totals", key))
    chefs = [
        ((name,), float(len(f["souschefs"]))) for name, f in figures.items() if "souschefs" in f
    ]
    yield _gauge("toque_souschefs", "SousChefs that know instances.", shard, chefs)
    waiting = _counted(figures, "reports", "pending")
    yield _gauge("toque_reports_waiting", "Reports that wait for their SousChefs.", shard, waiting)
    for key, name, text, unit, bits in _SHARD_HISTOGRAMS:
        found = [((each,), told[key]) for each, told in figures.items() if key in told]
        yield _histogram(name, text, shard, found, unit, bits)


def _counted(figures: Figures, group: str, key: str, per: float = 1) -> list[Sample]:
    return [
        ((name,), found[group][key] / per)
        for name, found in figures.items()
        if key in found.get(group, ())
    ]


def _of_processes(figures: Figures, fronts: Sequence[FrontFigures]) -> Iterator[Metric]:
    """Each process once, though it has several shards; front ends are called `api`, `api-1`, ..."""
    found: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for front in fronts:
        if front.process is not None:
            found[front.process["pid"]] = front.name, front.process
    for name, shard in figures.items():
        if (process := shard.get("process")) is not None:
            found.setdefault(process["pid"], (name, process))
    label = ("process",)
    memory = [((name,), told["resident_bytes"]) for name, told in found.values()]
    yield _gauge("toque_process_resident_bytes", "Memory of the process.", label, memory)
    cpu = [((name,), told["cpu_seconds"]) for name, told in found.values()]
    yield _counter("toque_process_cpu_seconds", "CPU time of the process.", label, cpu)
    lag = [((name,), told["lag_us"]) for name, told in found.values()]
    text = "How late the event loop was."
    yield _histogram("toque_loop_lag_seconds", text, label, lag, 1e6, range(6, 26))


def _frames_of(figures: Figures, fronts: Sequence[FrontFigures]) -> Metric:
    """Those of each shard and of each front end."""
    frames = [((name,), shard["calls_per_frame"]) for name, shard in figures.items()]
    frames += [((front.name,), front.frames) for front in fronts if front.frames is not None]
    text = "Calls that left in one frame."
    return _histogram("toque_frame_calls", text, ("shard",), frames, 1, range(12))


def _of_workflows(found: list[Workflow]) -> Iterator[Metric]:
    labels = ("account", "workflow")
    live = [
        ((*each.labels, status), float(count)) for each in found for status, count in each.live()
    ]
    yield _gauge("toque_instances", "Instances that have not ended.", (*labels, "status"), live)
    ended = [
        ((*each.labels, status), float(count))
        for each in found
        for status, count in each.ended.items()
    ]
    text = "Instances that have ended, or were deleted."
    yield _counter("toque_instances_ended", text, (*labels, "status"), ended)
    ages = [(each.labels, each.queue_age_ms / 1000) for each in found]
    yield _gauge("toque_queue_age_seconds", "How long the oldest has queued.", labels, ages)


def _of_accounts(figures: Figures) -> Iterator[Metric]:
    accounts = accounts_of(figures, limits.METRICS_WORKFLOWS_MAX)
    for name, text in (
        ("limit", "Slots that the account has."),
        ("leased", "Of these, leased to SousChefs or in use."),
        ("used", "Of these, in use or granted."),
        ("wanted", "Slots that SousChefs could use."),
        ("leases", "Leases that are out."),
    ):
        samples = [((each,), float(told[name])) for each, told in accounts.items()]
        metric = "toque_leases" if name == "leases" else f"toque_slots_{name}"
        yield _gauge(metric, text, ("account",), samples)
    truncated = float(any(found.get("truncated") for found in figures.values()))
    yield _gauge("toque_metrics_truncated", "1: not everything was told.", (), [((), truncated)])


def _of_requests(fronts: Sequence[FrontFigures]) -> Iterator[Metric]:
    seen = merged_routes(fronts)
    counts = [
        ((route.method, route.path, str(status)), float(count))
        for route in seen
        for status, count in route.statuses.items()
    ]
    labels = ("method", "route")
    yield _counter("toque_http_requests", "Requests by route.", (*labels, "status"), counts)
    took = [((route.method, route.path), route.took_us) for route in seen]
    text = "Until a request's answer was handed over."
    yield _histogram("toque_http_request_seconds", text, labels, took, 1e6, range(6, 30, 2))
    in_flight = [((), float(sum(front.in_flight for front in fronts)))]
    yield _gauge("toque_http_requests_in_flight", "Requests under way.", (), in_flight)
    reroutes = [((), float(sum(front.reroutes for front in fronts)))]
    text = "Calls sent another way: the account is on another control plane."
    yield _counter("toque_plane_reroutes", text, (), reroutes)
