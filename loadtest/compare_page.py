"""Two results of load tests on one page. Needs the extra `loadtest`.

The figures of `compare` in a table, and the curves of both in the same plots: the first's drawn
through, the second's dashed.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..runtime import limits
from .compare import Comparison
from .report_data import Curve, timelines_of
from .report_hdr import curve_of
from .report_page import (
    Column,
    Drawing,
    Grid,
    Page,
    Section,
    drawing,
    html,
    n,
    percentile_drawing,
)
from .report_words import (
    COMPARED_COLUMNS,
    compared_cells,
    noise_text,
    shown,
    title_of,
    verdict_of_both,
)
from .result import Result


def comparison_html(comparison: Comparison, a: Result, b: Result) -> str:
    """The page as one HTML document; `a` and `b` are those that were compared."""
    return html(
        Page(
            title=f"Load tests compared: {comparison.scenario}",
            when=f"First: {comparison.a}. Second: {comparison.b}.",
            verdict=verdict_of_both(comparison),
            warnings=[f"Not got in the same way: {each}" for each in comparison.differences],
            tiles=[],
            sections=list(_sections(comparison, a, b)),
        )
    )


def _sections(comparison: Comparison, a: Result, b: Result) -> Iterator[Section]:
    figure, unit, *figures, outcome = COMPARED_COLUMNS
    columns = [Column(figure, "w"), Column(unit), *map(n, figures), Column(outcome)]
    rows = [compared_cells(row) for row in comparison.rows[: limits.REPORT_ROWS_MAX]]
    grid = Grid("Figures of both", columns, rows)
    yield Section("Figures", noise_text(comparison), [grid], list(_percentiles(a, b)))
    plots = timelines_of([("first: ", a), ("second: ", b)]).plots
    yield Section("Over time", "", (), [drawing(plot) for plot in plots])
    options = [Column("option"), Column("first", "w"), Column("second", "w")]
    names = sorted({*a.options, *b.options})[: limits.REPORT_ROWS_MAX]
    rows = [[each, shown(a.options.get(each)), shown(b.options.get(each))] for each in names]
    rows = [["when", a.started_on, b.started_on], ["toque", a.toque, b.toque], *rows]
    yield Section("What was run", "", [Grid("Of both", options, rows)])


def _percentiles(a: Result, b: Result) -> Iterator[Drawing]:
    """A plot for each latency that both have."""
    both = [name for name in a.latencies if name in b.latencies]
    for place, name in enumerate(both[: limits.REPORT_OTHERS_MAX]):
        found = [curve_of(each.latencies[name], limits.REPORT_POINTS_MAX) for each in (a, b)]
        if all(found):
            first, second = found
            curves = [Curve("first", first, 0, 0), Curve("second", second, 1, 1)]
            yield percentile_drawing(f"percentiles-{place}", title_of(name), curves)
