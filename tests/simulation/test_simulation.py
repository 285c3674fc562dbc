"""Seeds keep their promises, runs reproduce, and deliberate bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.campaign import Summary, play

pytestmark = pytest.mark.timeout(600)  # virtual time is cheap, but not free

ROOT = Path(__file__).resolve().parent.parent.parent
FAST_SEEDS = 30
SEEDS_UNTIL_FOUND_MAX = 25

INSIDE = frozenset(
    {
        "a fenced owner does not commit",
        "running <= ledger",
        "the ledger keeps to the limit",
        "user code runs only in a slot",
        "no error is lost",
    }
)
"""Checks that look inside. Each deliberate bug must be found without them too."""


def test_thirty_seeds_keep_every_promise() -> None:
    summary = Summary()
    for seed in range(FAST_SEEDS):
        report = play(seed)
        assert report.broken is None, report.describe()
        summary.add(report)
    assert summary.instances > 10 * FAST_SEEDS
    assert summary.bodies > 20 * FAST_SEEDS
    assert summary.never() == []


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = play(5), play(5)
    assert first.broken is None, first.describe()
    assert first.events > 500
    assert (first.digest, first.events) == (second.digest, second.events)
    assert play(6).digest != first.digest


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


@pytest.mark.parametrize(
    ("sabotage", "expected", "ignored"),
    [
        ("no_output_gate", {"user code runs only in a slot"}, frozenset()),
        ("no_epoch_check", {"a fenced owner does not commit"}, frozenset()),
        ("no_announce_alarm", {"an acknowledged create ends"}, frozenset()),
        ("grant_outside_ledger", {"running <= ledger"}, frozenset()),
        ("grant_outside_ledger", {"running <= limit"}, INSIDE),
        ("unfenced_attempts", {"a late result of an older attempt is refused"}, INSIDE),
        (
            "no_output_gate",
            {
                "an acknowledged instance exists",
                "an end that was seen stays",
                "recorded result never changes",
                "recorded step never runs again",
                "attempts have numbers of their own",
                "at most once",
            },
            INSIDE,
        ),
        (
            "no_epoch_check",
            {
                "an acknowledged instance exists",
                "an end that was seen stays",
                "recorded result never changes",
                "recorded step never runs again",
                "attempts have numbers of their own",
                "at most once",
                "running <= limit",
            },
            INSIDE,
        ),
    ],
)
def test_a_deliberate_bug_is_found(
    sabotage: str, expected: set[str], ignored: frozenset[str]
) -> None:
    for seed in range(SEEDS_UNTIL_FOUND_MAX):
        report = play(seed, (sabotage,), ignored=ignored)
        if report.broken is not None and report.broken.promise in expected:
            return
    pytest.fail(f"{SEEDS_UNTIL_FOUND_MAX} seeds did not find {sabotage}")


@pytest.mark.parametrize(
    ("bug", "hint", "expected"),
    [
        ("undo_twice", 25, "recorded step never runs again"),
        ("undo_oldest_first", 1, "who fails undoes what it did"),
        ("events_lost_at_continue", 0, "events arrive once and in order"),
        ("no_shield", 2, "a cancelled run cleans up"),
        ("delete_untold", 0, "nothing is left when all has ended"),
        ("restart_keeps_first", 5, "a life has results of its own"),
        ("fork_drops_kept", 2, "a restart keeps what came before its step"),
        ("restart_twice", 13, "an end that was seen stays"),
        ("stream_unnamed", 0, "a program ends as it must"),
        ("no_codec", 0, "payloads go through the codec"),
        ("secret_shown", 0, "a sensitive output is shown to nobody"),
    ],
)
def test_a_bug_in_an_operation_is_found(bug: str, hint: int, expected: str) -> None:
    """`hint`: a seed that finds it, to be tried first; others do too."""
    found = []
    for seed in (hint, *range(SEEDS_UNTIL_FOUND_MAX)):
        report = play(seed, (bug,))
        if report.broken is not None:
            found.append(report.broken.promise)
            if report.broken.promise == expected:
                return
    pytest.fail(f"{SEEDS_UNTIL_FOUND_MAX} seeds did not find {bug}, but {found}")


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
