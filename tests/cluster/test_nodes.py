"""Three Ray nodes on one machine: one is killed or hangs, or Ray's directory service is lost.

What was acknowledged is there, no answer hides it, nothing took effect twice, and the entities of
the lost node answer elsewhere as soon as Ray has noticed and processes can be started, which takes
ten seconds at most if the machine has nothing else to do. The nodes have the settings of
deploy/raycluster.yaml.
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
NOTICED_S = 5.0
"""What Ray takes to notice that a node hangs, with the settings of deploy/: three checks of a
second each that fail, half a second apart."""
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


def back_max_s(told: dict[str, Any]) -> float:
    """How long entities of a lost node may give no answer."""
    return NOTICED_S + 3 * float(told["pace"]["start_s"])


def pause_max_s(told: dict[str, Any]) -> float:
    """How long those that nothing happened to may give none."""
    return 1 + 2 * float(told["pace"]["start_s"])


def check(folder: Path, told: dict[str, Any]) -> None:
    """Nothing acknowledged is lost, nothing took effect twice, all that was created has ended."""
    end = told["end"]
    assert end["stale"] == 0, "an answer did not show what was acknowledged"
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
    lines = proof.read_log((folder / "log").read_bytes())
    shown = proof.prove(lines, recorded, SLOTS)
    wrong = {violation.partition(":")[0] for violation in shown.violations}
    assert shown.violations == [], [line for line in lines if line.instance in wrong]


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
    assert max(fault["pauses"].values()) < back_max_s(told), fault
    if story == "hang":
        assert told["continued"]["alive"], "nobody was left to go on"
        assert max(told["steady"]["pauses"].values()) < back_max_s(told)
    check(folder, told)


def test_owners_that_go_on_beside_their_successors_show_and_change_nothing(folder: Path) -> None:
    told = played(folder, "owners")
    former = told["former"]
    assert former["actors"] == len(told["fault"]["shards"])
    assert former["errors"], "they were not asked"
    assert former["answers"] == []
    assert all("has a newer owner" in line for line in former["last"]), former["last"]
    assert max(told["fault"]["pauses"].values()) < back_max_s(told)
    assert max(told["steady"]["pauses"].values()) < pause_max_s(told)
    check(folder, told)


def test_the_data_plane_goes_on_while_rays_directory_service_does_not_answer(folder: Path) -> None:
    told = played(folder, "gcs")
    assert told["fault"]["processes"] == 1
    assert max(told["fault"]["pauses"].values()) < pause_max_s(told)
    assert max(told["steady"]["pauses"].values()) < pause_max_s(told)
    check(folder, told)


def test_shards_go_on_without_the_directory_service_and_it_comes_back(folder: Path) -> None:
    told = played(folder, "kept")
    assert told["fault"]["processes"] == 2
    assert max(told["fault"]["pauses"].values()) < pause_max_s(told)
    assert told["away"]["acknowledged"] < 5, "the shard was not down"
    assert told["away"]["unknown"]
    assert max(told["steady"]["pauses"].values()) < pause_max_s(told)
    assert [one["shard"] for one in told["events"]["events"] if one["what"] == "back"] == (
        told["fault"]["shards"]
    ), "others were started anew too"
    check(folder, told)


def test_another_cluster_at_the_address_of_a_lost_one_is_used(folder: Path) -> None:
    told = played(folder, "lost")
    assert max(told["fault"]["pauses"].values()) < pause_max_s(told)
    assert max(told["steady"]["pauses"].values()) < pause_max_s(told)
    of_ray = [one["what"] for one in told["events"]["events"] if one["shard"] == "ray"]
    assert of_ray[0] == "lost"
    assert of_ray[-1] == "back"
    check(folder, told)
