"""A page of figures: what it is made of, and its HTML. Needs the extra `loadtest`.

The page is one file that needs nothing else: no scripts, no fonts, nothing from the net, and a
policy in its head that forbids them. All text is escaped by the template; only drawings of
`report_plots` pass as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..runtime import limits
from ..runtime.errors import InvalidArgument
from ..runtime.files import write_atomically
from .report_data import Curve, Line, Plot
from .report_format import count, duration, number, percentile
from .report_plots import percentiles, swatch, timeline
from .report_words import Standing


class Column(NamedTuple):
    """A column of a table: `n` of figures, `w` of long words, else of short ones."""

    title: str
    kind: Literal["", "n", "w"] = ""


class Grid(NamedTuple):
    """A table."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]


class Drawing(NamedTuple):
    """A plot, with what its lines mean and its figures as a table."""

    title: str
    unit: str
    svg: Markup
    legend: Sequence[tuple[Markup, str]]
    note: str
    grid: Grid


class Section(NamedTuple):
    """A part of a page."""

    title: str
    text: str
    grids: Sequence[Grid] = ()
    drawings: Sequence[Drawing] = ()


class Tile(NamedTuple):
    """A figure that stands out."""

    title: str
    value: str


class Page(NamedTuple):
    """A whole page."""

    title: str
    when: str
    verdict: Standing
    warnings: Sequence[str]
    tiles: Sequence[Tile]
    sections: Sequence[Section]


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)


def html(page: Page) -> str:
    """The page as one HTML document."""
    return _TEMPLATES.get_template("report.html.j2").render(page=page)


def write_page(text: str, path: Path) -> None:
    """Write a page, whole or not at all; `InvalidArgument` if that is not possible."""
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise InvalidArgument(f"{path} can't be written: {error.strerror}.") from None


def n(title: str) -> Column:
    """A column of figures."""
    return Column(title, "n")


def drawing(plot: Plot) -> Drawing:
    """A plot over time with all that stands beside it."""
    told = [f"{line.label}: {_told(line, plot.unit)}" for line in plot.lines]
    svg = timeline(plot, f"{plot.title} over time. " + "; ".join(told) + ".")
    notes = []
    if plot.bucket_s:
        seconds = duration(plot.bucket_s)
        notes.append(f"A point is the mean of {seconds}; the band spans from least to greatest.")
    if plot.note:
        notes.append(plot.note)
    columns = [Column(""), *map(n, ("mean", "least", "greatest", "last", "samples", "gaps"))]
    rows = [_row(line) for line in (*plot.lines, *plot.more)][: limits.REPORT_ROWS_MAX]
    legend = [(swatch(line.colour, line.dash), line.label) for line in plot.lines]
    caption = f"{plot.title}, {plot.unit}" if plot.unit else plot.title
    return Drawing(
        plot.title, plot.unit, svg, legend, " ".join(notes), Grid(caption, columns, rows)
    )


def _told(line: Line, unit: str) -> str:
    stats = line.stats
    return f"mean {number(stats.mean)}, at most {number(stats.most)} {unit}".strip()


def _row(line: Line) -> list[str]:
    stats = line.stats
    figures = map(number, (stats.mean, stats.least, stats.most, stats.last))
    return [line.label, *figures, count(stats.samples), count(stats.gaps)]


_TOLD = (0.5, 0.9, 0.99, 0.999, 0.9999)


def percentile_drawing(key: str, title: str, curves: Sequence[Curve], note: str = "") -> Drawing:
    """A plot of percentiles of latencies in ms with all that stands beside it."""
    told = [f"{each.label}: p99 {number(each.at(0.99))} ms" for each in curves]
    svg = percentiles(key, title, curves, f"{title}. " + "; ".join(told) + ".")
    columns = [Column(""), *(n(percentile(q)) for q in _TOLD), n("max")]
    rows = [
        [each.label, *(number(each.at(q)) for q in _TOLD), number(each.points[-1][1])]
        for each in curves
    ]
    legend = [(swatch(each.colour, each.dash), each.label) for each in curves]
    return Drawing(title, "ms", svg, legend, note, Grid(f"{title}, ms", columns, rows))
