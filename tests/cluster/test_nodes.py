"""Three Ray nodes on one machine: one is killed, hangs, or loses Ray's directory service.

What was acknowledged is there, nothing took effect twice, and the entities of the lost node answer
elsewhere within ten seconds. The nodes have the settings of deploy/raycluster.yaml.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recovery import proof
from tests.recovery.ledger import effects

pytestmark = [pytest.mark.cluster, pytest.mark.campaign, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
BACK_MAX_S = 10.0
SLOTS = 50_000


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tq") as made:
        yield Path(made)


def played(folder: Path, story: str) -> dict[str, Any]:
    """What a story told, by kind."""
    with (folder / "noise").open("w") as noise:
        done = subprocess.run(
            [sys.executable, "-m", "tests.cluster.nodes", str(folder / "data"), story],
            stdout=subprocess.PIPE, stderr=noise, text=True, cwd=ROOT, timeout=500,
        )  # fmt: skip
    print(done.stdout)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert told, (folder / "noise").read_text()[-4000:]
    assert told[-1]["what"] == "done", (folder / "noise").read_text()[-4000:]
    return {line["what"]: line for line in told}


def check(folder: Path, told: dict[str, Any]) -> None:
    """Nothing acknowledged is lost, nothing took effect twice, all that was created has ended."""
    end = told["end"]
    for key, (acknowledged, total) in end["ledgers"].items():
        found = effects(total)
        assert len(acknowledged) > 50, key
        assert set(acknowledged) <= set(found), f"{key} lost what it had acknowledged"
        assert set(found.values()) == {1}, f"{key} added twice"
    ends: dict[str, Any] = end["instances"]
    assert len(end["created"]) > 20
    assert set(end["created"]) <= set(ends), "an instance is lost"
    assert {status for status, _ in ends.values()} == {"complete"}
    recorded = {name: output for name, (_, output) in ends.items()}
    shown = proof.prove(proof.read_log((folder / "log").read_bytes()), recorded, SLOTS)
    assert shown.violations == []


@pytest.mark.parametrize("story", ["kill", "hang"])
def test_what_a_lost_node_hosted_answers_elsewhere_and_nothing_is_lost(
    folder: Path, story: str
) -> None:
    told = played(folder, story)
    assert len(set(told["placed"]["nodes"].values())) == 2, "the shards were not spread"
    fault = told["fault"]
    assert "c0" in fault["shards"]
    assert fault["processes"] >= 3
    assert told["end"]["unknown"], "nobody noticed the fault"
    assert max(fault["pauses"].values()) < BACK_MAX_S, fault
    if story == "hang":
        assert told["continued"]["alive"], "nobody was left to go on"
        assert max(told["steady"]["pauses"].values()) < BACK_MAX_S
    check(folder, told)


def test_the_data_plane_goes_on_while_rays_directory_service_does_not_answer(folder: Path) -> None:
    told = played(folder, "gcs")
    assert told["fault"]["processes"] == 1
    assert max(told["fault"]["pauses"].values()) < 3
    assert max(told["steady"]["pauses"].values()) < 3
    check(folder, told)
