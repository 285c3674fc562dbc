"""Results of load tests that never ran, for tests of what reads results."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec
from hdrh.histogram import HdrHistogram

from toque.loadtest.result import Result

HDR_UNITS_PER_MS = 1000


def latency(values_ms: Iterable[float]) -> dict[str, Any]:
    """A latency of some values."""
    histogram = HdrHistogram(1, 3_600_000_000, 3)
    values = sorted(values_ms)
    for value in values:
        histogram.record_value(round(value * HDR_UNITS_PER_MS))

    def at(q: float) -> float | None:
        return values[max(math.ceil(q * len(values)), 1) - 1] if values else None

    return {
        "unit": "ms",
        "count": len(values),
        "min": at(0),
        "mean": math.fsum(values) / len(values) if values else None,
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "p999": at(0.999),
        "max": at(1),
        "hdr": histogram.encode().decode(),
    }


def long_tail(count: int, scale: float = 1.0, shift: float = 0.0) -> list[float]:
    """Latencies as servers have them: most short, a few long; the same each time."""
    return [(2 + shift + 1.5 * -math.log(1 - (n + 0.5) / count)) * scale for n in range(count)]


def counts(completed: int, **more: int) -> dict[str, int]:
    """Counts of a test in which `completed` were offered and completed, but for `more`."""
    names = ("offered", "accepted", "completed")
    zeros = ("refused", "failed", "errored", "retries", "unknown")
    return {**dict.fromkeys(names, completed), **dict.fromkeys(zeros, 0), **more}


def document(**changed: Any) -> dict[str, Any]:
    """A small whole document, with some of its parts changed."""
    seconds = 20
    wave = [100 + 5 * math.sin(t) for t in range(seconds)]
    found = {
        "schema": "toque.loadtest/1",
        "toque": "0.1.0",
        "scenario": "steady",
        "options": {"rate": 100, "duration": 20},
        "target": {"kind": "server", "url": "http://127.0.0.1:8787"},
        "machine": {"python": "3.11.7", "platform": "Linux", "cores": 2, "fsync_ms": 0.2},
        "started_on": "2026-01-02T03:04:05Z",
        "wall_s": float(seconds),
        "stopped_early": None,
        "counts": counts(2000),
        "refusals": {},
        "failures": {},
        "latencies": {"create": latency(long_tail(2000)), "end": latency(long_tail(2000, 3))},
        "groups": {},
        "series": {
            "t_s": [float(t) for t in range(seconds)],
            "offered": wave,
            "completed": wave,
            "rss_mib.api": [80.0] * seconds,
        },
        "control_plane": {"gatekeeper_calls_per_s_max": 2.0, "souschefs": 4},
        "processes": {"api": {"rss_mib_max": 81.5, "cpu_s": 3.25}},
        "chaos": [],
        "fairness": None,
        "slos": [],
    }
    return {**found, **changed}


def result(**changed: Any) -> Result:
    """A small whole result, with some of its parts changed."""
    return msgspec.convert(document(**changed), Result)
