"""Writes the tables of docs/ that repeat what the code says: errors, limits, commands.

`python docs/tables.py` (or `make docs`) rewrites what stands between the markers
`<!-- begin: x -->` and `<!-- end: x -->`; a test fails when a page and the code disagree.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from toque.runtime import errors, limits

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
reference = import_module("reference")
BRANCHES = (errors.CallerError, errors.AuthorError, errors.SystemFault)


def first_line(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


def error_modules() -> list[ModuleType]:
    """The modules that define errors with a code."""
    packages = [path.parent for path in HERE.parent.glob("*/py.typed")]
    files = sorted(file for folder in packages for file in folder.glob("*.py"))
    found = [
        f"toque.{file.parent.name}.{file.stem}"
        for file in files
        if re.search(r'^    code(?:: \S+)? = "', file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    return [import_module(name) for name in found]


def error_rows(branch: type[errors.ToqueError]) -> list[str]:
    """A table of a branch's errors, ordered by number."""
    kinds = [
        kind
        for module in error_modules()
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__ and issubclass(kind, branch) and "code" in vars(kind)
    ]
    rows = ["| code | number | HTTP | class | meaning |", "| --- | --- | --- | --- | --- |"]
    for kind in sorted(kinds, key=lambda kind: kind.number):
        flags = "".join(f"; {flag}" for flag in ("retryable", "overloaded") if getattr(kind, flag))
        meaning = first_line(kind.__doc__).rstrip(".") + flags
        rows.append(
            f"| `{kind.code}` | {kind.number} | {kind.status} | `{kind.__name__}` | {meaning} |"
        )
    return rows


def readable(name: str, value: int | tuple[int, ...]) -> str:
    """A limit's value with its unit, in the largest that needs no fraction."""
    if isinstance(value, tuple):
        return ", ".join(f"{part:,}" for part in value)
    words = name.split("_")
    if words[-1] == "KIB":
        return _in_units(value * limits.KIB, _SIZES)
    if "BYTES" in words:
        return _in_units(value, _SIZES)
    if words[-1] == "MS":
        return _in_units(value, _TIMES)
    if "CHARS" in words:
        return f"{value:,} characters"
    if words[-1] == "PERCENT":
        return f"{value:,} %"
    if name.endswith("_PER_SECOND") or "_PER_SECOND_" in name:
        return f"{value:,} a second"
    return f"{value:,}"


_SIZES = ((1024 * limits.MIB, "GiB"), (limits.MIB, "MiB"), (limits.KIB, "KiB"), (1, "bytes"))
_TIMES = (
    (limits.DAY_MS, "d"),
    (limits.HOUR_MS, "h"),
    (limits.MINUTE_MS, "min"),
    (limits.SECOND_MS, "s"),
    (1, "ms"),
)


def _in_units(value: int, units: tuple[tuple[int, str], ...]) -> str:
    unit, word = next(each for each in units if value >= each[0] and value % each[0] == 0)
    return f"{value // unit:,} {word}"


def limit_rows() -> list[str]:
    """A table of every limit, grouped as in `runtime/limits.py`."""
    source = inspect.getsource(limits).splitlines()
    names = {
        node.lineno: node.targets[0].id
        for node in ast.parse("\n".join(source)).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    rows: list[str] = []
    group = ""
    for number, line in enumerate(source, 1):
        if line.startswith("# "):
            group = line[2:]
            rows += ["", f"**{group}**", "", "| limit | value | note |", "| --- | --- | --- |"]
        elif number in names and group:
            note = line.partition("  # ")[2]
            value = readable(names[number], getattr(limits, names[number]))
            rows.append(f"| `{names[number]}` | {value} | {note} |")
    return rows[1:]


def blocks() -> dict[str, list[str]]:
    """Every generated block by its name."""
    found = {f"errors {branch.__name__}": error_rows(branch) for branch in BRANCHES}
    return {
        **found,
        "limits": limit_rows(),
        "commands": reference.command_rows(),
        "shared options": reference.shared_rows(),
        "exit codes": reference.exit_rows(),
        "settings": reference.setting_rows(),
    }


def filled(text: str) -> str:
    """A page with its blocks as the code has them."""
    for name, rows in blocks().items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        before, found, rest = text.partition(begin)
        if found:
            text = "\n".join([before + begin, "", *rows, "", end + rest.partition(end)[2]])
    return text


def main() -> None:
    """Rewrite the pages that differ."""
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            page.write_text(filled(text), encoding="utf-8")
            print(f"{page.name}: rewritten")


if __name__ == "__main__":
    main()
