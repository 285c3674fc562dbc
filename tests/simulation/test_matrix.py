"""A crash at every commit of every shard, one after the other: always the same end."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulation.campaign import new_folder
from tests.simulation.matrix import Played, play

pytestmark = pytest.mark.timeout(600)


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


OUTCOMES = ("lost", "kept", "fails, lost", "fails, kept")


def check(outcomes_of: Callable[[int], tuple[str, ...]]) -> None:
    """Crash at every commit of every shard, with those outcomes."""
    base = once()
    assert base.broken is None, "\n".join(base.tail)
    assert [result[0] for result in base.results] == ["complete"] * len(base.results)
    assert min(base.commits.values()) > 10, base.commits
    for shard, commits in base.commits.items():
        for commit in range(1, commits + 1):
            for outcome in outcomes_of(commit):
                played = once((shard, commit, outcome))
                told = f"{shard}, commit {commit}, {outcome}: {played.broken}"
                assert played.broken is None, "\n".join([*played.tail, told])
                assert played.results == base.results, told
                assert played.crashes == 1, told


def test_a_crash_at_any_commit_changes_nothing() -> None:
    """Commits that are neighbours have another outcome each; the campaign plays all of them."""
    check(lambda commit: (OUTCOMES[commit % len(OUTCOMES)],))


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_a_crash_at_any_commit_changes_nothing_with_any_outcome() -> None:
    check(lambda commit: OUTCOMES)
