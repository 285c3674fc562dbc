"""The page on simulation names what there is, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulation.bugs import CASES
from tests.simulation.checklist import PROMISES
from tests.simulation.covered import CORES
from tests.simulation.faults import FAULTS
from tests.simulation.work import ITEMS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")


def first_column(heading: str) -> list[str]:
    """The names in the first column of the table under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


def test_the_page_names_every_fault_work_bug_and_core() -> None:
    assert first_column("Faults") == list(FAULTS)
    assert first_column("Work") == list(ITEMS)
    assert sorted(first_column("Deliberate bugs")) == sorted(CASES)
    assert first_column("Coverage of the cores") == list(CORES)


def test_the_page_names_the_checks_of_each_promise() -> None:
    for number, promise in PROMISES.items():
        row = f"| {number}. {promise.title} | {'; '.join(promise.checks)} |"
        assert row in PAGE, row
