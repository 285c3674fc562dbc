"""Seeds keep their promises, runs reproduce, and deliberate bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tests.simulation.bugs import CASES, OUTSIDE, Case, look_for
from tests.simulation.campaign import Summary, play, shrink
from tests.simulation.checklist import CHECKS, PROMISES
from tests.simulation.focus import CRASHES, OWNERS, Focus
from tests.simulation.kept import COLUMNS, Kept
from tests.simulation.parts import Sabotage
from tests.simulation.sabotage import BUGS
from tests.simulation.shrink import shrunk
from toque.runtime.blobs import BlobStore

pytestmark = pytest.mark.timeout(600)  # virtual time is cheap, but not free

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = 4
PART_SEEDS = 25
SMALL = Focus(instances=8)
"""Runs of which a hundred are quick; larger ones are for the campaign."""
SEEDS_UNTIL_FOUND_MAX = 10
"""Under its focus every other seed or more finds a bug: bad luck is one in a thousand."""
RUN_CPU_S_MAX = 30.0
"""Some thirty times what a run takes, for slow machines: a bug may not make runs endless."""


@pytest.mark.parametrize("part", range(PARTS))
def test_some_seeds_keep_every_promise(part: int) -> None:
    summary = Summary()
    for seed in range(part * PART_SEEDS, (part + 1) * PART_SEEDS):
        report = play(seed, focus=SMALL)
        assert report.broken is None, report.describe()
        summary.add(report)
    print(f"{summary.cpu_s / summary.seeds:.2f} s of CPU a seed, {summary.cpu_s_max:.2f} at most")
    assert summary.instances > 5 * PART_SEEDS
    assert summary.bodies > 10 * PART_SEEDS
    assert len(summary.never()) <= 12, summary.never()  # a campaign misses none


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = play(5), play(5)
    assert first.broken is None, first.describe()
    assert first.events > 500
    assert (first.digest, first.events) == (second.digest, second.events)
    assert play(6).digest != first.digest


def test_a_run_does_not_hang_on_how_fast_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have times of their own, by the machine's clock: those of streams may not matter."""
    first = play(5)
    write = BlobStore.age_ms
    monkeypatch.setattr(BlobStore, "age_ms", lambda self, name: write(self, name) + 7)
    assert play(5).digest == first.digest


def test_a_seed_is_the_same_run_in_another_process() -> None:
    here = play(7)
    command = [sys.executable, "-m", "tests.simulation", "--seed", "7"]
    for hash_seed in ("1", "4242"):
        told = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"hash {here.digest}, {here.events} events" in told.stdout, told.stdout + told.stderr


def find(bug: str, case: Case) -> None:
    """Some of the first seeds finds the bug, by one of the promises that are to."""
    found = look_for(bug, case, SEEDS_UNTIL_FOUND_MAX)
    assert found.cpu_s_max < RUN_CPU_S_MAX, f"a seed took {found.cpu_s_max:.1f} s"
    assert found.by, f"{SEEDS_UNTIL_FOUND_MAX} seeds did not find {bug}, but {found.broken}"


@pytest.mark.parametrize("bug", [bug for bug, case in CASES.items() if not case.is_slow])
def test_a_deliberate_bug_is_found(bug: str) -> None:
    find(bug, CASES[bug])


@pytest.mark.campaign
@pytest.mark.parametrize("bug", [bug for bug, case in CASES.items() if case.is_slow])
def test_a_deliberate_bug_is_found_in_time(bug: str) -> None:
    find(bug, CASES[bug])


@pytest.mark.parametrize("bug", list(OUTSIDE))
def test_the_worst_are_found_without_looking_inside(bug: str) -> None:
    find(bug, OUTSIDE[bug])


def test_every_promise_has_checks_and_every_deliberate_bug_a_case() -> None:
    assert sorted(PROMISES) == list(range(1, 13))
    assert len(set(CHECKS)) == len(CHECKS)
    switches = {field.name for field in fields(Sabotage)}
    assert set(CASES) == set(BUGS) | switches
    for bug, case in CASES.items():
        assert case.expected <= {*CHECKS, "no error is lost"}, bug


@pytest.mark.parametrize("focus", [OWNERS, CRASHES], ids=["owners", "crashes"])
def test_without_a_bug_a_focus_finds_nothing(focus: Focus) -> None:
    report = play(1, focus=focus)
    assert report.broken is None, report.describe()


def test_a_failure_is_shrunk_and_is_the_same_run_again() -> None:
    report = play(0, ("grant_outside_ledger",), focus=SMALL)
    assert report.broken is not None
    told = shrink(report, ("grant_outside_ledger",), SMALL)
    only = told.rsplit("--only '", 1)[1].removesuffix("'").split("; ")
    print(f"{len(report.parts)} parts, of which are needed: {only}")
    assert len(only) < len(report.parts) / 2
    again = play(0, ("grant_outside_ledger",), focus=SMALL, only=only)
    assert again.broken is not None
    assert again.broken.promise == report.broken.promise
    assert f"hash {again.digest}" in told


def test_a_part_that_is_left_out_does_not_take_place() -> None:
    whole = play(3, focus=SMALL)
    jobs = [part for part in whole.parts if part.startswith("job ")]
    some = play(3, focus=SMALL, only=[part for part in whole.parts if part not in jobs])
    assert some.broken is None, some.describe()
    assert some.instances < whole.instances
    assert not set(some.parts) & set(jobs)


def test_what_steps_do_by_a_fault_needs_what_the_fault_begins_also_when_it_is_left_out() -> None:
    exits = Focus(frozenset({"worker"}), instances=8, modes=("exit",))
    whole = play(3, focus=exits)
    calm = play(3, focus=exits, only=[p for p in whole.parts if not p.startswith("fault ")])
    assert calm.broken is None, calm.describe()
    assert calm.faults["user code exits"]


def test_shrinking_finds_what_is_needed() -> None:
    parts = [f"part {number}" for number in range(40)]
    needed = {"part 3", "part 17", "part 18"}
    left, runs = shrunk(parts, lambda tried: needed <= set(tried))
    assert left == sorted(needed, key=parts.index)
    assert runs < len(parts)
    assert shrunk(parts, lambda tried: False)[0] == parts
    assert shrunk(parts, lambda tried: len(tried) > 30, runs_max=5)[1] == 5


def test_what_checkers_keep_is_read_again_if_a_commit_names_it_and_missed_if_it_does_not() -> None:
    shard = {table: [(table, 0)] for table in COLUMNS}
    asked: list[str] = []

    def rows(name: str, sql: str) -> list[tuple[str, int]]:
        asked.append(sql.rsplit(" ", 1)[1])
        return list(shard[asked[-1]])

    kept = Kept(rows)
    table = kept.changed("c0", None)
    assert [table(name) for name in COLUMNS] == list(shard.values())
    shard["souschef_held"] = [("souschef_held", 1)]
    assert kept.unseen() == ["c0: souschef_held"]
    asked.clear()
    table = kept.changed("c0", {"souschef_held", "alarms"})
    assert [table(name) for name in COLUMNS] == list(shard.values())
    assert asked == ["souschef_held"]
    assert kept.unseen() == []


def test_a_failure_tells_seed_promise_and_trace() -> None:
    report = play(0, ("grant_outside_ledger",))
    assert report.broken is not None
    told = report.describe()
    assert "seed 0 broke a promise: running <= ledger" in told
    assert "BROKEN" in told
    assert 20 < len(report.tail) <= 60


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_many_seeds_keep_every_promise() -> None:
    first = int(os.environ.get("TOQUE_FIRST", "0"))
    for seed in range(first, first + int(os.environ.get("TOQUE_SEEDS", "200"))):
        report = play(seed)
        assert report.broken is None, report.describe()
