"""What `toque loadtest report` and `toque loadtest compare` do with results that were written.

Files are read whole and checked before anything is printed or written.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..api.cli_exits import FAILED
from ..api.cli_output import print_json
from .compare import compare
from .compare_page import comparison_html
from .report import write_report
from .report_hdr import check_histograms
from .report_page import write_page
from .result import Result, read_result
from .summary import print_comparison, print_summary


class Asked(NamedTuple):
    """What to do with what was read.

    Attributes:
        html: a file for the page; None: no page.
        as_json: print JSON, not a table.
    """

    html: Path | None
    as_json: bool


def report_on(path: Path, asked: Asked) -> int:
    """Tell of a result; gives the exit code."""
    result = _read(path)
    if asked.html is not None:
        write_report(result, asked.html)
    if asked.as_json:
        print_json(result)
    else:
        print_summary(result)
    return 0


def compare_both(first: Path, second: Path, noise: float, force: bool, asked: Asked) -> int:
    """Compare a second result with a first; gives the exit code: FAILED if a figure is worse."""
    a, b = _read(first), _read(second)
    found = compare(a, b, names=(str(first), str(second)), floor=noise, force=force)
    if asked.html is not None:
        write_page(comparison_html(found, a, b), asked.html)
    if asked.as_json:
        print_json(found)
    else:
        print_comparison(found)
    return FAILED if found.having("worse") else 0


def _read(path: Path) -> Result:
    result = read_result(path)
    check_histograms(result, str(path))
    return result
