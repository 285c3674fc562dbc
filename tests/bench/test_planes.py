"""The comparison of the control planes: what it draws and tells of given figures."""

from __future__ import annotations

from xml.etree import ElementTree

from bench.planes import plot, report


def row(rate: float, p99_ms: float) -> dict[str, float]:
    return {
        "rate": rate, "answered_per_s": rate, "ended_per_s": rate - 1, "p50_ms": 2.0,
        "p99_ms": p99_ms,
    }  # fmt: skip


ROWS = {"v1": [row(50, 9), row(100, 1_234)], "v2": [row(50, 8), row(100, 9), row(200, 11)]}


def test_a_plane_that_had_enough_has_no_figures_after_that() -> None:
    assert report(ROWS).splitlines()[2:] == [
        "| 50 | 2 | 9 | 49 | 2 | 8 | 49 |",
        "| 100 | 2 | 1,234 | 99 | 2 | 9 | 99 |",
        "| 200 | - | - | - | 2 | 11 | 199 |",
    ]


def test_the_plot_is_the_same_each_time_and_names_both() -> None:
    text = plot(ROWS)
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert text == plot(ROWS)
    for words in ("V1: one entity", "V2: Account", "creates a second", "p99"):
        assert words in text
