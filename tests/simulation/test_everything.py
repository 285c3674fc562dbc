"""A crash at every commit of a piece of work that uses every feature: always the same history."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.campaign import new_folder
from tests.simulation.everything import Played, play
from tests.simulation.sabotage import bugs

pytestmark = pytest.mark.timeout(600)

OUTCOMES = ("kept", "lost", "fails, kept", "fails, lost")
"""Kept: the commit is made, and the process dies before anybody hears of it."""
SPREAD = 16
"""How many crashes are played here; the campaign plays all."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Crashes are loud."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def once(crash: tuple[str, int, str] | None = None) -> Played:
    """Play it in a folder of its own."""
    folder: Path = new_folder()
    try:
        return play(folder, crash)
    finally:
        shutil.rmtree(folder)


def without_a_crash() -> Played:
    """What it is like when nothing befalls it."""
    base = once()
    assert base.broken is None, "\n".join([*base.tail, str(base.broken)])
    assert len(base.told) == 8
    assert min(base.commits.values()) > 50, base.commits
    return base


def all_crashes(base: Played, outcomes: tuple[str, ...]) -> list[tuple[str, int, str]]:
    """A crash at each commit of each shard, with each outcome."""
    return [
        (shard, commit, outcome)
        for shard, commits in base.commits.items()
        for commit in range(1, commits + 1)
        for outcome in outcomes
    ]


def check(base: Played, crash: tuple[str, int, str]) -> None:
    """A crash changes nothing that is told."""
    played = once(crash)
    told = f"crash at {crash}: {played.broken}"
    assert played.broken is None, "\n".join([*played.tail, told])
    assert played.told == base.told, told
    assert played.crashes == 1, told


def test_a_crash_changes_nothing_whatever_is_used() -> None:
    base = without_a_crash()
    crashes = all_crashes(base, OUTCOMES)
    step = len(crashes) // SPREAD | 1  # odd, so that all outcomes come up
    chosen = crashes[::step]
    assert {outcome for _, _, outcome in chosen} == set(OUTCOMES)
    print(f"{sum(base.commits.values())} commits {base.commits}; {len(chosen)} crashes of", end=" ")
    print(f"{len(crashes)} are played here, all of them in the campaign")
    for crash in chosen:
        check(base, crash)


@pytest.mark.parametrize(
    "bug",
    [
        "undo_oldest_first",
        "events_lost_at_continue",
        "no_shield",
        "delete_untold",
        "restart_keeps_first",
        "fork_drops_kept",
        "no_codec",
        "secret_shown",
    ],
)
def test_a_deliberate_bug_is_found(bug: str) -> None:
    with bugs((bug,)):
        assert once().broken is not None


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_a_crash_at_any_commit_changes_nothing_whatever_is_used() -> None:
    base = without_a_crash()
    crashes = all_crashes(base, OUTCOMES)
    print(f"{sum(base.commits.values())} commits {base.commits}, {len(crashes)} crashes")
    for crash in crashes:
        check(base, crash)
