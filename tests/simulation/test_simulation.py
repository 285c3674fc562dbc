"""Seeds keep their promises, runs reproduce, and deliberate bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.campaign import Summary, play
from tests.simulation.focus import CALM, CRASHES, OWNERS, Focus, on

pytestmark = pytest.mark.timeout(600)  # virtual time is cheap, but not free

ROOT = Path(__file__).resolve().parent.parent.parent
FAST_SEEDS = 12
SEEDS_UNTIL_FOUND_MAX = 10
"""Under its focus every other seed or more finds a bug: bad luck is one in a thousand."""
RUN_CPU_S_MAX = 30.0
"""Some thirty times what a run takes, for slow machines: a bug may not make runs endless."""

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


def test_some_seeds_keep_every_promise() -> None:
    summary = Summary()
    for seed in range(FAST_SEEDS):
        report = play(seed)
        assert report.broken is None, report.describe()
        summary.add(report)
    assert summary.instances > 10 * FAST_SEEDS
    assert summary.bodies > 20 * FAST_SEEDS
    assert len(summary.never()) <= 3, summary.never()  # a campaign misses none


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


SEEN_OUTSIDE = {
    "a deleted id is free at once",
    "a late result of an older attempt is refused",
    "a repeated delete gets the first answer",
    "an acknowledged instance exists",
    "an end that was seen stays",
    "at most once",
    "attempts have numbers of their own",
    "recorded result never changes",
    "recorded step never runs again",
    "running <= limit",
}
"""What clients and bodies see when something that was told is lost, or told twice."""


def find(bug: str, focus: Focus, expected: set[str], ignored: frozenset[str] = frozenset()) -> None:
    """Some of the first seeds finds the bug, by one of those promises."""
    found = []
    for seed in range(SEEDS_UNTIL_FOUND_MAX):
        report = play(seed, (bug,), ignored=ignored, focus=focus)
        assert report.cpu_s < RUN_CPU_S_MAX, f"seed {seed} took {report.cpu_s:.1f} s"
        if report.broken is not None:
            found.append(report.broken.promise)
            if report.broken.promise in expected:
                return
    pytest.fail(f"{SEEDS_UNTIL_FOUND_MAX} seeds did not find {bug}, but {found}")


@pytest.mark.parametrize(
    ("bug", "focus", "expected"),
    [
        ("no_output_gate", CRASHES, "user code runs only in a slot"),
        ("no_epoch_check", OWNERS, "a fenced owner does not commit"),
        ("no_announce_alarm", CRASHES, "an acknowledged create ends"),
        ("grant_outside_ledger", on("crash", limit=2), "running <= ledger"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_bug_is_found_by_looking_inside(bug: str, focus: Focus, expected: str) -> None:
    find(bug, focus, {expected})


@pytest.mark.parametrize(
    ("bug", "focus", "expected"),
    [
        ("no_output_gate", CRASHES, SEEN_OUTSIDE),
        ("no_epoch_check", OWNERS, SEEN_OUTSIDE),
        ("grant_outside_ledger", on("crash", limit=2, gap_s=3.0), {"running <= limit"}),
        (
            "unfenced_attempts",
            on("loss", modes=("late",)),
            {"a late result of an older attempt is refused"},
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_bug_is_found_from_outside(bug: str, focus: Focus, expected: set[str]) -> None:
    find(bug, focus, expected, INSIDE)


_UNDOING = ("undo", "doomed")


@pytest.mark.parametrize(
    ("bug", "focus", "expected"),
    [
        (
            "undo_twice",
            on("crash", gap_s=0.6, down_s=2.0, often=_UNDOING, modes=("undo",)),
            {"recorded step never runs again"},
        ),
        (
            "undo_oldest_first",
            on(often=_UNDOING, modes=("undo",)),
            {"who fails undoes what it did"},
        ),
        (
            "events_lost_at_continue",
            on(often=("parts",)),
            {"events arrive once and in order", "an event that is there is taken"},
        ),
        (
            "no_shield",
            on(often=("cancel",)),
            {
                "a cancelled run cleans up",
                "what is shielded is done though the run is cancelled",
            },
        ),
        ("delete_untold", CALM, {"nothing is left when all has ended"}),
        (
            "restart_keeps_first",  # seen until the next run's first step takes its place
            on(limit=1, instances=32, often=("parts", "look", "restart")),
            {"a life has results of its own"},
        ),
        (
            "fork_drops_kept",
            on(often=("restart",)),
            {"a restart keeps what came before its step"},
        ),
        (
            "restart_twice",
            on("repeat", "loss", weather=8.0, often=("restart",)),
            {"an end that was seen stays", "a restart takes effect once"},
        ),
        (
            "stream_unnamed",
            on("crash", "all", gap_s=2.0, down_s=3.0),
            {"a program ends as it must"},
        ),
        ("no_codec", CALM, {"payloads go through the codec", "a program ends as it must"}),
        ("secret_shown", on(modes=("secret",)), {"a sensitive output is shown to nobody"}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_bug_in_an_operation_is_found(bug: str, focus: Focus, expected: set[str]) -> None:
    find(bug, focus, expected)


@pytest.mark.parametrize("focus", [OWNERS, CRASHES], ids=["owners", "crashes"])
def test_without_a_bug_a_focus_finds_nothing(focus: Focus) -> None:
    report = play(1, focus=focus)
    assert report.broken is None, report.describe()


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
