"""Figures as people read them: three significant digits, units by size. Pure.

What was not measured is a dash everywhere. Nothing here fails on odd figures: infinity and what is
no number are dashes too.
"""

from __future__ import annotations

import math

MISSING = "–"
_MINUS = "\N{MINUS SIGN}"


def is_known(value: float | None) -> bool:
    """Whether a figure was measured, and is one."""
    return value is not None and math.isfinite(value)


def number(value: float | None) -> str:
    """A figure with three significant digits; whole from 100 on."""
    if value is None or not math.isfinite(value):
        return MISSING
    size = abs(value)
    if size == 0 or size >= 99.95 or (size >= 1 and float(size).is_integer()):
        text = f"{value:,.0f}"
    elif size >= 9.995:
        text = f"{value:.1f}"
    elif size >= 0.9995:
        text = f"{value:.2f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", _MINUS, 1) if value < 0 else text


def count(value: float | None) -> str:
    """A whole number, its thousands apart."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.0f}"


def with_unit(value: float | None, unit: str) -> str:
    """A figure and its unit; a dash alone if there is none."""
    text = number(value)
    return text if text == MISSING or not unit else f"{text} {unit}"


def duration(seconds: float | None) -> str:
    """A time in the units that suit its size."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if abs(seconds) < 1:
        return f"{number(seconds * 1000)} ms"
    if abs(seconds) < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (0 if hours else rest, "s")]
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount)


def change(ratio: float | None) -> str:
    """How much more or less, from a ratio: `+25 %`, from twice as much on `×2.5`."""
    if ratio is None or not math.isfinite(ratio):
        return MISSING
    if ratio >= 2:
        return f"×{number(ratio)}"
    per_cent = (ratio - 1) * 100
    sign = "+" if per_cent >= 0 else _MINUS
    size = abs(per_cent)
    return f"{sign}{size:.0f} %" if size >= 9.95 else f"{sign}{size:.1f} %"


def tick(value: float) -> str:
    """A figure beside an axis: short."""
    size = abs(value)
    if size >= 1e12:
        return f"{value:.0e}"
    for least, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= least:
            return f"{value / (1e3 if letter == 'k' else least):.4g}{letter}"
    return f"{value:.4g}"


def percentile(quantile: float) -> str:
    """`p99`, `p99.9` of 0.99, 0.999."""
    return f"p{quantile * 100:.6g}"
