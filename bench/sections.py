"""docs/performance.md by sections: a measure writes its own and leaves the others alone.

A section says on which machine it was measured, and carries its main figures as JSON in a comment,
from which the table of targets at the top is made. When a measure writes, sections of other
machines go: figures of two machines don't belong on one page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from . import processes, progress, targets

REPORT = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
_HEAD = """# Performance

Written by `make bench`; `python -m bench` lists its parts, each of which can be run alone. Machines
differ and are noisy: read the ratios of one run, not the absolute figures.
"""
_SECTION = re.compile(
    r"<!-- begin: bench (\S+)(?: on (\w+))? -->\n(.*?)<!-- end: bench \1 -->\n", re.DOTALL
)
_FIGURES = re.compile(r"^<!-- figures: (\{.*\}) -->\n", re.MULTILINE)
_TARGETS = "targets"
ORDER = (
    "comparison",
    "throughput",
    "slow-fsync",
    "creates",
    "layers",
    "steps",
    "waiters",
    "running",
    "recovery",
)
"""Which sections come first; the others follow by name."""


def put(
    name: str,
    text: str,
    page: Path = REPORT,
    *,
    figures: Mapping[str, float] | None = None,
    machine: str | None = None,
) -> None:
    """Write a section in place of what it said before.

    Args:
        name: the section's.
        text: Markdown, with its heading.
        page: the page.
        figures: what the table of targets may show, as `section.figure`.
        machine: where it was measured; None: here.
    """
    machine = machine or processes.machine_id()
    sections = read(page, machine)
    shown = {key: float(f"{value:.4g}") for key, value in (figures or {}).items()}
    told = f"<!-- figures: {json.dumps(shown)} -->\n" if shown else ""
    sections[name] = told + text.strip() + "\n"
    write(sections, page, machine)
    progress.note(name, written=page.name, **shown)


def drop(names: Iterable[str], page: Path = REPORT) -> None:
    """Take sections out: what they said is to be measured again, or is not measured."""
    machine, gone = processes.machine_id(), set(names)
    left = {name: text for name, text in read(page, machine).items() if name not in gone}
    write(left, page, machine)


def read(page: Path, machine: str) -> dict[str, str]:
    """The sections that were measured on a machine, without the targets."""
    known = page.read_text(encoding="utf-8") if page.exists() else ""
    return {
        name: text
        for name, where, text in _SECTION.findall(known)
        if where == machine and name != _TARGETS
    }


def write(sections: Mapping[str, str], page: Path, machine: str) -> None:
    """Write the page: the targets, then all sections."""
    measured = {}
    for name, text in sections.items():
        for found in _FIGURES.findall(text):
            measured.update({f"{name}.{key}": value for key, value in json.loads(found).items()})
    known = [name for name in ORDER if name in sections]
    names = known + sorted(name for name in sections if name not in known)
    whole = [(_TARGETS, targets.render(measured)), *((name, sections[name]) for name in names)]
    parts = [
        f"<!-- begin: bench {name} on {machine} -->\n{text}<!-- end: bench {name} -->\n"
        for name, text in whole
    ]
    page.write_text("\n".join([_HEAD, *parts]), encoding="utf-8")
