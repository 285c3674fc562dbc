"""The report of a load test: one HTML file. Needs the extra `loadtest`.

It reads nothing but the result document, and takes every part of it as possibly missing. What it
looks like: `report_page`, `report.html.j2`, `report.css`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..runtime import limits
from .report_data import Curve, timelines
from .report_format import MISSING, count, duration, number
from .report_hdr import curve_of
from .report_page import (
    Column,
    Drawing,
    Grid,
    Page,
    Section,
    Tile,
    drawing,
    html,
    n,
    percentile_drawing,
    write_page,
)
from .report_words import (
    COUNTS,
    LATENCY_COLUMNS,
    by_latency,
    in_order,
    latency_cells,
    shown,
    title_of,
    verdict_of,
    when,
)
from .result import Latency, RampStep, Result


def report(result: Result) -> str:
    """The report as one HTML document."""
    return html(page_of(result))


def write_report(result: Result, path: Path) -> None:
    """Write the report, whole or not at all; `InvalidArgument` if that is not possible."""
    write_page(report(result), path)


def page_of(result: Result) -> Page:
    """What the report shows."""
    parts = (
        _objectives,
        _ramp,
        _latencies,
        _counts,
        _groups,
        _over_time,
        _chaos,
        _control_plane,
        _what_ran,
    )
    return Page(
        title=f"Load test: {result.scenario}",
        when=when(result),
        verdict=verdict_of(result),
        warnings=[f"Stopped early: {result.stopped_early}"] if result.stopped_early else [],
        tiles=list(_tiles(result)),
        sections=[section for part in parts for section in part(result)],
    )


def _tiles(result: Result) -> Iterator[Tile]:
    counts = result.counts
    yield Tile("completed", count(counts.completed))
    if result.wall_s:
        yield Tile("completed a second", number(counts.completed / result.wall_s))
    if result.held_rate is not None:
        yield Tile("last rate that held", number(result.held_rate))
    yield Tile("failed", count(counts.failed + counts.errored + counts.unfinished))
    for name in ("create", "start", "end"):
        latency = result.latencies.get(name)
        if latency is not None and latency.count:
            yield Tile(f"p99 of {name}, ms", number(latency.p99))


def _objectives(result: Result) -> Iterator[Section]:
    if not result.slos:
        return
    rows = [
        [slo.objective, number(slo.measured), "✓ met" if slo.met else "✗ missed"]
        for slo in result.slos
    ]
    columns = [Column("objective", "w"), n("measured"), Column("")]
    yield Section("Objectives", "", [Grid("What was asked for, and what came", columns, rows)])


def _ramp(result: Result) -> Iterator[Section]:
    if not result.ramp:
        return
    rows = [
        [number(step.rate), "✓ held" if step.held else "✗ missed", _measures(step)]
        for step in result.ramp[: limits.REPORT_ROWS_MAX]
    ]
    columns = [n("a second"), Column(""), Column("measured", "w")]
    held = MISSING if result.held_rate is None else f"{number(result.held_rate)} a second"
    text = f"The last rate at which every objective held: {held}."
    yield Section("Ramp", text, [Grid("Each rate", columns, rows)])


def _measures(step: RampStep) -> str:
    return ", ".join(f"{slo.objective}: {number(slo.measured)}" for slo in step.slos)


def _latencies(result: Result) -> Iterator[Section]:
    measured = in_order(result.latencies)
    if not measured:
        yield Section("Latencies", "None were measured.")
        return
    rows = [[title_of(name), *latency_cells(one)] for name, one in measured.items()]
    grid = Grid("Latencies, ms", _latency_columns("latency"), rows)
    named = {title_of(name): one for name, one in measured.items()}
    yield Section("Latencies", "", [grid], list(_curves("latencies", "Percentiles", named)))


def _latency_columns(first: str) -> list[Column]:
    return [Column(first, "w"), *map(n, LATENCY_COLUMNS)]


def _curves(key: str, title: str, latencies: Mapping[str, Latency]) -> Iterator[Drawing]:
    """A plot of what has any points."""
    found = [(label, curve_of(one, limits.REPORT_POINTS_MAX)) for label, one in latencies.items()]
    found = [(label, points) for label, points in found if points][: limits.REPORT_LINES_MAX]
    if found:
        curves = [Curve(label, points, i, i) for i, (label, points) in enumerate(found)]
        yield percentile_drawing(key, title, curves)


def _counts(result: Result) -> Iterator[Section]:
    rows = [[name, count(getattr(result.counts, name))] for name in COUNTS]
    grids = [Grid("Creates and instances", [Column(""), n("count")], rows)]
    for caption, codes in (
        ("Refusals by code", result.refusals),
        ("Failures by code", result.failures),
    ):
        if codes:
            ordered = sorted(codes.items(), key=lambda item: (-item[1], item[0]))
            rows = [[code, count(times)] for code, times in ordered[: limits.REPORT_ROWS_MAX]]
            grids.append(Grid(caption, [Column("code", "w"), n("count")], rows))
    yield Section("Counts", "", grids)


def _groups(result: Result) -> Iterator[Section]:
    groups = dict(list(result.groups.items())[: limits.REPORT_ROWS_MAX])
    if not groups:
        return
    shown = [name for name in COUNTS if any(getattr(g.counts, name) for g in groups.values())]
    rows = [
        [label, *(count(getattr(group.counts, name)) for name in shown)]
        for label, group in groups.items()
    ]
    grids = [Grid("Counts by group", [Column("group", "w"), *map(n, shown)], rows)]
    drawings: list[Drawing] = []
    for place, (name, found) in enumerate(
        list(by_latency(groups).items())[: limits.REPORT_OTHERS_MAX]
    ):
        title = title_of(name)
        if len(found) > 1:  # else it stands among all latencies
            rows = [[label, *latency_cells(latency)] for label, latency in found.items()]
            grids.append(Grid(f"{title}, ms", _latency_columns("group"), rows))
            drawings += _curves(f"group-{place}", f"By group: {title}", found)
    yield Section("Groups", "", grids, drawings)


def _over_time(result: Result) -> Iterator[Section]:
    found = timelines(result)
    missing = ", ".join(found.missing)
    text = f"Not measured: {missing}." if missing else ""
    if result.chaos:
        text = f"Upright lines are faults; the bar at the top lasts until it went on. {text}"
    yield Section("Over time", text.strip(), (), [drawing(plot) for plot in found.plots])


def _chaos(result: Result) -> Iterator[Section]:
    if not result.chaos:
        return
    rows = [
        [number(each.t_s), each.what, str(each.shard or MISSING), duration(each.recovered_s)]
        for each in result.chaos[: limits.REPORT_ROWS_MAX]
    ]
    columns = [n("at, s"), Column("what", "w"), Column("shard", "w"), n("went on after")]
    yield Section("Faults", "", [Grid("Each fault that was made", columns, rows)])


def _control_plane(result: Result) -> Iterator[Section]:
    grids = []
    if result.control_plane:
        grids.append(_facts("Totals", result.control_plane))
    if result.fairness:
        grids.append(_facts("Fairness", result.fairness))
    if result.processes:
        rows = [
            [name, number(one.get("rss_mib_max")), number(one.get("cpu_s"))]
            for name, one in list(result.processes.items())[: limits.REPORT_ROWS_MAX]
        ]
        columns = [Column("process", "w"), n("memory at most, MiB"), n("CPU, s")]
        grids.append(Grid("Processes", columns, rows))
    if grids:
        yield Section("Control plane and processes", "", grids)


def _what_ran(result: Result) -> Iterator[Section]:
    machine = msgspec.to_builtins(result.machine)
    grids = [_facts("Options", result.options), _facts("Machine", machine)]
    yield Section("What was run", "", [grid for grid in grids if grid.rows])


def _facts(caption: str, facts: Mapping[str, Any]) -> Grid:
    rows = [[name, shown(value)] for name, value in list(facts.items())[: limits.REPORT_ROWS_MAX]]
    return Grid(caption, [Column(""), Column("value", "w")], rows)
