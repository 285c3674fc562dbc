"""Which modules are code of apps, and travel with a body that runs as a Ray task."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from toque.actors import app_code


def held(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of that name, as if imported from that file."""
    module = ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_what_stands_beside_an_app_is_its_code_and_what_is_installed_below_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_code, "_beside", set())
    app_code.note_beside(str(tmp_path))
    own = [
        held("helpers_x", tmp_path / "helpers_x.py", monkeypatch),
        held("parts_x", tmp_path / "parts_x" / "__init__.py", monkeypatch),
        held("parts_x.one", tmp_path / "parts_x" / "one.py", monkeypatch),
    ]
    others = [
        held("lib_x", tmp_path / ".venv" / "lib" / "python" / "lib_x.py", monkeypatch),
        held("tool_x", tmp_path / "src" / "tool_x" / "__init__.py", monkeypatch),
        held("toque.x", tmp_path / "toque" / "x.py", monkeypatch),
        held("away_x", tmp_path.with_name("away") / "away_x.py", monkeypatch),
    ]
    found = app_code.app_modules()
    assert [module in found for module in own] == [True] * 3
    assert [module in found for module in others] == [False] * 4
