"""Medians, and how figures are shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def median_of(rows: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """The median of a figure over rounds; None if no round has it."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def shown(value: float | None, unit: str = "") -> str:
    """Three significant digits; a dash for what there is not."""
    if value is None:
        return "-"
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}".rstrip()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
