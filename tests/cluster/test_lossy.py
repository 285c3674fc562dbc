"""Ray loses calls and answers: nothing takes effect twice, no shard is taken for hung."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.recovery.ledger import effects

pytestmark = [pytest.mark.cluster, pytest.mark.campaign, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


def test_what_ray_loses_changes_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.cluster.lossy", str(Path(folder, "data"))],
            capture_output=True, text=True, cwd=ROOT, timeout=250,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["failed"] > 10, "hardly a call of Ray's was lost"
    assert {event["what"] for event in told["events"]} <= {"down", "back"}
    found = effects(told["total"])
    assert set(found.values()) == {1}
    assert set(told["known"]) <= set(found)
    assert len(told["known"]) > 300
