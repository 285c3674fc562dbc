"""The tests that docs/testing.md shows pass, as pytest runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    shown = [block for block in blocks if not block.startswith("# not run")]
    (tmp_path / "test_page.py").write_text("\n".join(shown), encoding="utf-8")
    tests = sum(len(re.findall(r"^def test_", block, flags=re.MULTILINE)) for block in shown)
    command = [sys.executable, "-m", "pytest", "-rP", "-p", "toque.testkit.plugin_pytest"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests - 1 + 20} passed" in done.stdout  # one is twenty
    told = re.findall(r"^```text\n(\d+ commits.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert [re.sub(r"\d+", "N", text) in re.sub(r"\d+", "N", done.stdout) for text in told] == [
        True
    ]
