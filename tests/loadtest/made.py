"""A result as the load test makes it, from figures that are made up."""

from __future__ import annotations

import msgspec

from toque.loadtest.histograms import Latencies
from toque.loadtest.objectives import parse_objective, verdicts
from toque.loadtest.options import resolved
from toque.loadtest.recorder import Recorder
from toque.loadtest.result import Kill, Machine, Result, Target
from toque.loadtest.samples import Reading, Samples
from toque.runtime.entropy import SeededEntropy


def page(second: int) -> list[Reading]:
    """What the control plane tells after so many seconds."""
    one = {"account": "default", "workflow": "LoadOneStep"}
    return [
        Reading("toque_slots_limit", {"account": "default"}, 50_000),
        Reading("toque_slots_leased", {"account": "default"}, 40 + second),
        Reading("toque_slots_used", {"account": "default"}, 5 + second),
        Reading("toque_souschefs", {"shard": "c0"}, 2),
        Reading("toque_lease_calls_total", {"shard": "c0"}, 2 * second),
        Reading("toque_instances", {**one, "status": "queued"}, second),
        Reading("toque_instances", {**one, "status": "running"}, 5),
        Reading("toque_instances_ended_total", {**one, "status": "complete"}, 50 * second),
        Reading("toque_queue_age_seconds", one, 0.02),
        Reading("toque_commit_rows_count", {"shard": "d0"}, 80 * second),
        Reading("toque_commit_rows_sum", {"shard": "d0"}, 400 * second),
        Reading("toque_frame_calls_count", {"shard": "d0"}, 120 * second),
        Reading("toque_frame_calls_sum", {"shard": "d0"}, 180 * second),
        Reading("toque_process_resident_bytes", {"process": "d0"}, 90 * 2**20),
        Reading("toque_process_cpu_seconds_total", {"process": "d0"}, 0.25 * second),
        Reading("toque_loop_lag_seconds_bucket", {"process": "d0", "le": "0.001"}, 9 * second),
        Reading("toque_loop_lag_seconds_bucket", {"process": "d0", "le": "0.004"}, 10 * second),
        Reading("toque_loop_lag_seconds_bucket", {"process": "d0", "le": "+Inf"}, 10 * second),
    ]


def example() -> Result:
    """Ten seconds at fifty a second, with one kill."""
    draws = SeededEntropy("example")
    recorder = Recorder(draws)
    samples = Samples("default", {"LoadOneStep"})
    for second in range(10):
        tally = recorder.group("create")
        for _ in range(50):
            ms = 2 + 6 * draws.random()
            recorder.offered(tally)
            recorder.accepted(tally)
            recorder.create_took(tally, ms)
            tally.latencies.add("create_service", ms * 0.9)
            tally.latencies.add("start", 3 * ms)
            tally.latencies.add("end", 4 * ms)
            tally.counts.completed += 1
            recorder.created += 1
        tick = recorder.take_tick()
        tick.cpu_s, tick.rss_mib = 0.1 * second, 60.0
        samples.add(float(second), tick, page(second))
    recorder.offered(tally, 2)
    recorder.refused(tally, "rate.limited")
    recorder.failed(tally, "outcome.unknown", unknown=True)
    tally.latencies.add("recovery", 1_900.0)
    total = recorder.total()
    options = resolved("chaos", rate=50.0, duration_s=10.0, slo=["p99_start_ms=100"])
    result = Result(
        toque="0.1.0",
        scenario="chaos",
        options=msgspec.to_builtins(options),
        target=Target("server", "http://127.0.0.1:8787"),
        machine=Machine("3.11.7", "Linux", 2, 0.07),
        started_on="2026-01-31T12:00:00.000Z",
        wall_s=10.0,
        counts=total.counts,
        refusals=dict(recorder.refusals),
        failures=dict(recorder.failures),
        latencies=total.latencies,
        series=samples.series(),
        control_plane=samples.totals(),
        processes=samples.processes,
        chaos=[Kill(4.0, "kill -9", "d0", 1.9)],
    )
    result.slos = verdicts([parse_objective(text) for text in options.slo], result)
    return result


def latencies(*values_ms: float, name: str = "create") -> Latencies:
    """A histogram of some values."""
    found = Latencies()
    for value in values_ms:
        found.add(name, value)
    return found
