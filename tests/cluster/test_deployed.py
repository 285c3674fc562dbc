"""Deployed code on Ray: old instances end on the old, over the shard's end; accounts stay apart."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster]
ROOT = Path(__file__).parents[2]


def test_an_instance_ends_on_the_code_that_it_began_with() -> None:
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        told = subprocess.run(
            [sys.executable, "-m", "tests.cluster.deployed", str(Path(folder, "data"))],
            cwd=ROOT, capture_output=True, text=True, timeout=110,
        )  # fmt: skip
    assert told.returncode == 0, told.stderr[-4_000:]
    seen = json.loads(told.stdout.splitlines()[-1])
    assert seen["error"] is None
    version, before, after = seen["old"]
    assert version == "v1"
    assert before != after, "its worker ended with the shard that it belonged to"
    assert [seen[one][0] for one in ("new", "other", "after")] == ["v2"] * 3
    pids = {before, after, seen["new"][1], seen["other"][1], seen["shard"]}
    assert len(pids) == 5, "no two codes, and no two accounts, in one process"
