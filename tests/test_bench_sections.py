"""A benchmark rewrites its own section of the report and no other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def sections() -> Any:
    """bench/sections.py."""
    spec = importlib.util.spec_from_file_location("sections", ROOT / "bench" / "sections.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_section_is_put_in_place_of_what_it_said(tmp_path: Path) -> None:
    put, page = sections().put, tmp_path / "performance.md"
    put("b", "## B\n\nold\n", page)
    put("a", "## A\n\nstays", page)
    put("b", "## B\n\nnew", page)
    text = page.read_text()
    assert text.index("## A\n\nstays") < text.index("## B\n\nnew")
    assert "old" not in text
    assert text.startswith("# Performance\n")
    put("b", "## B\n\nnew", page)
    assert page.read_text() == text
