"""Each micro-benchmark runs, with tiny counts, so that none rots."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from bench.layers import Row
from bench.layers import all as layers


@pytest.mark.parametrize("name", layers.LAYERS)
async def test_each_layer_is_measured(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="tq") as folder:  # a socket's path must be short
        rows = await layers.LAYERS[name](Path(folder), 0.002)
    assert rows
    for row in rows:
        assert row.us > 0, row
        assert row.bare_us > 0, row


def test_the_section_shows_each_row_and_its_ratio() -> None:
    rows = [Row("store", "commit of 1 row", 300.0, "SQLite", 100.0)]
    assert "| store | commit of 1 row | 300 | SQLite | 100 | 3 |" in layers.report(rows)
    assert layers.figures(rows) == {
        "store_commit_of_1_row_us": 300.0,
        "store_commit_of_1_row_ratio": 3.0,
    }
