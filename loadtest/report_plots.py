"""Plots as SVG to stand inside an HTML page. Needs the extra `loadtest`.

Only figures are drawn: names stand beside a plot as HTML, so no text from outside gets into it.
Colours are the page's CSS variables (`--ink`, `--grid`, `--mark`, `--c0` ...), so that a plot
follows its colour scheme. The same figures give the same text.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from .report_data import Curve, Line, Mark, Plot
from .report_format import percentile, tick

COLOURS = 8
DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
"""Lengths of strokes and gaps; the legend draws the same."""

_INK, _GRID, _MARK = "#010101", "#020202", "#030303"
_VARIABLES = {_INK: "ink", _GRID: "grid", _MARK: "mark"} | {
    f"#0400{n:02x}": f"c{n}" for n in range(COLOURS)
}
"""Colours that nothing else has, each put in place of a variable that SVG's writer can't write."""

_SIZE = (5.2, 2.3)  # inches of 72 points
_BOX = (0.105, 0.19, 0.88, 0.75)  # left, bottom, width, height, as shares
_DRAWN_MAX = 1e15
_STYLE = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.color": _GRID,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "lines.scale_dashes": False,
    "path.simplify": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "toque",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def timeline(plot: Plot, text: str) -> Markup:
    """A plot over time.

    Args:
        plot: what is drawn.
        text: says in words what it shows, for who does not see it.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _axes()
        last = max((line.times[-1] for line in plot.lines), default=0)
        per, unit = _time_unit(last)
        _draw_marks(axes, plot.marks, per)
        for line in plot.lines:
            _draw(axes, line, per)
        _fit_height(axes, plot.lines)
        axes.set_xlim(0, max(last / per, 1e-3) * 1.01)
        axes.set_xlabel(f"{unit} since the start", labelpad=2)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        return _inline(figure, plot.key, plot.title, text)


def percentiles(key: str, title: str, curves: Sequence[Curve], text: str) -> Markup:
    """A plot of percentiles: to the right ever rarer ones, each mark ten times rarer.

    Args:
        key: a name for ids.
        title, text: for who does not see it.
        curves: each with a point at least.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _axes()
        for curve in curves:
            x = [_rarity(q) for q, _ in curve.points]
            y = [_bounded(value) for _, value in curve.points]
            _plot_line(axes, x, y, curve.colour, curve.dash)
        values = [value for curve in curves for _, value in curve.points if value > 0]
        if values and max(values) > 20 * min(values):
            axes.set_yscale("log")
            decades = math.log10(max(values) / min(values))
            axes.set_ylim(min(values) / 1.3, min(max(values), _DRAWN_MAX) * 1.3)
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3 else (1,)))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(0, min(max(values, default=1), _DRAWN_MAX) * 1.08)
            axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        most = max(_rarity(curve.points[-1][0]) for curve in curves)
        marks = [0.0, 0.5, *(1 - 10.0**-n for n in range(1, math.ceil(most) + 1))]
        axes.set_xticks([_rarity(q) for q in marks], [percentile(q) for q in marks])
        axes.set_xlim(0, max(most, 1) * 1.01)
        axes.set_xlabel("percentile; each mark to the right is ten times rarer")
        return _inline(figure, key, title, text)


def swatch(colour: int, dash: int) -> Markup:
    """A piece of a line, for a legend."""
    dashes = " ".join(f"{n:g}" for n in DASHES[dash % len(DASHES)])
    return Markup(
        '<svg class="swatch" viewBox="0 0 26 8" aria-hidden="true"><line x1="1" y1="4" x2="25" '
        'y2="4" style="stroke:var(--c{})" stroke-dasharray="{}"/></svg>'
    ).format(colour % COLOURS, dashes)


# --- drawing ---


def _axes() -> tuple[Figure, Any]:
    figure = Figure(figsize=_SIZE, dpi=72)
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    axes = figure.add_axes(_BOX)
    axes.patch.set_visible(False)
    axes.grid(axis="y")
    axes.tick_params(length=3, width=0.6)
    return figure, axes


def _colour(index: int) -> str:
    return f"#0400{index % COLOURS:02x}"


def _bounded(value: float | None) -> float:
    return math.nan if value is None else min(max(value, -_DRAWN_MAX), _DRAWN_MAX)


def _plot_line(axes: Any, x: Sequence[float], y: Sequence[float], colour: int, dash: int) -> None:
    style = DASHES[dash % len(DASHES)]
    more = {"dashes": style} if style else {}
    axes.plot(x, y, color=_colour(colour), **more)
    alone = [
        (at, value)
        for place, (at, value) in enumerate(zip(x, y, strict=True))
        if not math.isnan(value) and _alone(y, place)
    ]
    if alone:
        axes.plot(*zip(*alone, strict=True), "o", color=_colour(colour), markersize=3)


def _alone(values: Sequence[float], place: int) -> bool:
    """Whether no neighbour is there to draw a line to."""
    beside = (values[max(place - 1, 0) : place], values[place + 1 : place + 2])
    return all(math.isnan(value) for each in beside for value in each)


def _draw_marks(axes: Any, marks: Sequence[Mark], per: float) -> None:
    """An upright line each, and a bar at the top until it was got over; two paths in all."""
    if not marks:
        return
    across = axes.get_xaxis_transform()
    x = [at for mark in marks for at in (mark.at / per, mark.at / per, math.nan)]
    y = [0, 1, math.nan] * len(marks)
    axes.plot(x, y, color=_MARK, linewidth=0.8, dashes=(2, 2), transform=across)
    ends = [(mark.at, mark.until) for mark in marks if mark.until is not None]
    x = [at for begin, end in ends for at in (begin / per, end / per, math.nan)]
    axes.plot(x, [1] * len(x), color=_MARK, linewidth=4, transform=across, solid_capstyle="butt")


def _draw(axes: Any, line: Line, per: float) -> None:
    x = [at / per for at in line.times]
    if line.bucket_s:
        low, high = ([_bounded(value) for value in found] for found in (line.least, line.most))
        axes.fill_between(x, low, high, color=_colour(line.colour), alpha=0.2, linewidth=0)
    _plot_line(axes, x, [_bounded(value) for value in line.mean], line.colour, line.dash)


def _fit_height(axes: Any, lines: Sequence[Line]) -> None:
    """From 0 to a little over the greatest; never flat."""
    low = min(_bounded(line.stats.least) for line in lines)
    high = max(_bounded(line.stats.most) for line in lines)
    bottom, top = min(low, 0), max(high, 0)
    axes.set_ylim(bottom, top + (top - bottom) * 0.08 if top > bottom else bottom + 1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))


def _time_unit(last: float) -> tuple[float, str]:
    if last <= 180:
        return 1, "seconds"
    return (60, "minutes") if last <= 3 * 3600 else (3600, "hours")


def _rarity(q: float) -> float:
    return -math.log10(max(1 - q, 1e-12))


# --- from a drawing to text ---

_DROPPED = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_HEAD = re.compile(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>")
_IDS = re.compile(r'( id="|url\(#|xlink:href="#)')
_QUOTED = re.compile(r'"[^"]*"')
_LONG = re.compile(r"(\d+\.\d)\d+")
_FONT = re.compile(r"font: ([\d.]+px) [^;\"]*")
_SENTINEL = re.compile("|".join(_VARIABLES))


def _inline(figure: Figure, key: str, title: str, text: str) -> Markup:
    """The figure's SVG without what a page has itself, its ids under `key`."""
    out = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(out, format="svg", metadata=no_metadata)
    svg = _DROPPED.sub("", out.getvalue())
    svg = _QUOTED.sub(lambda found: _LONG.sub(r"\1", found[0]), svg)
    svg = _FONT.sub(r"font-size: \1", svg)
    svg = _SENTINEL.sub(lambda found: f"var(--{_VARIABLES[found[0]]})", svg)
    svg = _IDS.sub(rf"\g<1>{key}-", svg).replace("xlink:href", "href")
    named = (
        f'<svg \\1 role="img" aria-labelledby="{key}-title {key}-text">'
        f'<title id="{key}-title">{_literal(title)}</title>'
        f'<desc id="{key}-text">{_literal(text)}</desc>'
    )
    svg = re.sub(r"\s*\n\s*", " ", svg).strip()
    return Markup(_HEAD.sub(named, svg, count=1))


def _literal(text: str) -> str:
    """As text of an element, in a pattern's replacement."""
    return str(escape(text)).replace("\\", r"\\")
