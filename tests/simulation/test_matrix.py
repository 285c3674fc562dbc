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


def even_or_odd(commit: int) -> str:
    """A disk that fails: every other commit has been made nevertheless."""
    return "fails, kept" if commit % 2 else "fails, lost"


@pytest.mark.parametrize(
    "outcome_of",
    [lambda commit: "lost", lambda commit: "kept", even_or_odd],
    ids=["lost", "kept", "failed"],
)
def test_a_crash_at_any_commit_changes_nothing(outcome_of: Callable[[int], str]) -> None:
    base = once()
    assert base.broken is None, "\n".join(base.tail)
    assert [result[0] for result in base.results] == ["complete"] * len(base.results)
    assert min(base.commits.values()) > 10, base.commits
    for shard, commits in base.commits.items():
        for commit in range(1, commits + 1):
            played = once((shard, commit, outcome_of(commit)))
            told = f"{shard}, commit {commit}, {outcome_of(commit)}: {played.broken}"
            assert played.broken is None, "\n".join([*played.tail, told])
            assert played.results == base.results, told
            assert played.crashes == 1, told
