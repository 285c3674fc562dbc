"""docs/performance.md by sections: each benchmark writes its own and leaves the others alone."""

from __future__ import annotations

import re
from pathlib import Path

REPORT = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
_HEAD = """# Performance

Written by `make bench`. Machines differ and are noisy: read the ratios of one run, not the
absolute figures.
"""
_SECTION = re.compile(r"<!-- begin: bench (\S+) -->\n(.*?)<!-- end: bench \1 -->\n", re.DOTALL)


def put(name: str, text: str, page: Path = REPORT) -> None:
    """Write a section (Markdown with its heading), in place of what it said before."""
    known = page.read_text(encoding="utf-8") if page.exists() else _HEAD
    sections = dict(_SECTION.findall(known))
    sections[name] = text.strip() + "\n"
    parts = [
        f"<!-- begin: bench {key} -->\n{sections[key]}<!-- end: bench {key} -->\n"
        for key in sorted(sections)
    ]
    page.write_text("\n".join([_HEAD, *parts]), encoding="utf-8")
