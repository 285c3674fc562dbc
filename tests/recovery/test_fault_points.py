"""A process is killed at each named point of a commit, a reply, a message and an alarm.

What it acknowledged before is there afterwards and took effect once; what it did not took effect
once or not at all. Each point is reached, or the test fails: the process must die of SIGKILL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.recovery import proof
from tests.recovery.ledger import KEYS, effects
from toque.runtime import fault_points
from toque.runtime.errors import InvalidArgument

ROOT = Path(__file__).parents[2]
COUNT = 60
SLOTS = 50_000


class Life:
    """One process on the directory, from its start to its end."""

    def __init__(self, folder: Path, first: int, count: int, fault: str = "") -> None:
        variables = {k: v for k, v in os.environ.items() if k != fault_points.VARIABLE}
        if fault:
            variables[fault_points.VARIABLE] = fault
        command = [sys.executable, "-m", "tests.recovery.depositor"]
        done = subprocess.run(
            [*command, str(folder / "data"), str(folder / "log"), str(first), str(count)],
            env=variables, cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        self.returncode = done.returncode
        self.stderr = done.stderr
        whole = done.stdout[: done.stdout.rfind("\n") + 1]
        self.told: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]

    def of(self, what: str) -> list[dict[str, Any]]:
        """What it told of a kind."""
        return [line for line in self.told if line["what"] == what]


class Oracle:
    """What was acknowledged and what was shown, over all lives."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, set[int]] = {key: set() for key in KEYS}
        self.shown: dict[str, set[int]] = {key: set() for key in KEYS}
        self.created: set[str] = set()

    def hear(self, life: Life) -> None:
        """Take what a life was told; what the next one finds is held against all before."""
        for line in life.of("read"):
            for key, (total, _rung, copy) in line["ledgers"].items():
                self.check(key, total)
                self.shown[key] |= set(effects(total))
                assert all(times == 1 for times in effects(copy).values()), (key, copy)
                assert set(effects(copy)) <= set(effects(total)), "a copy ran ahead"
        for line in life.of("deposited"):
            self.acknowledged[line["key"]].add(line["number"])
        self.created |= {line["id"] for line in life.of("created")}

    def check(self, key: str, total: str) -> None:
        """A ledger's sum holds all that anybody was told, and nothing twice."""
        found = effects(total)
        assert all(times == 1 for times in found.values()), (key, found)
        assert self.acknowledged[key] <= set(found), f"{key} lost what it had acknowledged"
        assert self.shown[key] <= set(found), f"{key} lost what it had shown"


def killed_at(folder: Path, faults: list[str]) -> Oracle:
    """A life for each fault, each on what the one before left; all is checked at the end."""
    oracle = Oracle()
    for number, fault in enumerate(faults):
        life = Life(folder, number * COUNT, COUNT, fault)
        assert life.returncode == -9, f"{fault} was not reached: {life.stderr[-2000:]}"
        oracle.hear(life)
    life = Life(folder, 0, 0)
    assert life.returncode == 0, life.stderr[-2000:]
    oracle.hear(life)
    (end,) = life.of("settled")
    for key, (total, rung, copy) in end["ledgers"].items():
        oracle.check(key, total)
        assert total == rung == copy  # each message once, and the last alarm rang
    ends: dict[str, Any] = end["instances"]
    assert oracle.created <= set(ends)
    assert {status for status, _ in ends.values()} <= {"complete"}
    recorded = {name: output for name, (_, output) in ends.items()}
    shown = proof.prove(proof.read_log((folder / "log").read_bytes()), recorded, SLOTS)
    assert shown.violations == []
    assert shown.bodies >= 3 * len(oracle.created)
    return oracle


def test_each_point_of_a_commit_a_reply_a_message_and_an_alarm(tmp_path: Path) -> None:
    oracle = killed_at(tmp_path, [f"{point}:20" for point in fault_points.POINTS])
    assert all(oracle.acknowledged.values())
    assert oracle.created


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", fault_points.POINTS)
def test_each_of_the_first_times_that_a_point_is_reached(tmp_path: Path, point: str) -> None:
    oracle = killed_at(tmp_path, [f"{point}:{count}" for count in range(1, 31)])
    assert sum(Counter(map(len, oracle.acknowledged.values())).elements()) > 0


@pytest.mark.parametrize(
    "text", ["", "commit", "no.such:1", "commit.done:x", "commit.done:1:burn", "commit.done:"]
)
def test_a_wrong_point_is_refused_and_told(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"Right: commit\.written:3:kill"):
        fault_points.FaultPoint(text)


def test_nothing_is_armed_in_earnest() -> None:
    assert fault_points.armed({}) is fault_points._pass
    assert fault_points.reach is fault_points._pass
