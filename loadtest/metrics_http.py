"""Reads a page of metrics, as the server writes it for Prometheus.

Only the families that a test shows are kept; a page that is none gives nothing.
"""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from .samples import WANTED, Reading


def read_page(page: bytes) -> list[Reading]:
    """The readings of a page."""
    lines = [
        line
        for line in page.decode("utf-8", "replace").splitlines(keepends=True)
        if line.startswith((*WANTED, "# TYPE toque_"))
    ]
    try:
        return [
            Reading(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families("".join(lines))
            for sample in family.samples
        ]
    except ValueError:
        return []
