"""A move from V1 to V2 with a crash at its commits, one after the other: always the same end."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from tests.simulation.campaign import new_folder
from tests.simulation.matrix import Played
from tests.simulation.moving_matrix import MovingPlay
from tests.simulation.sabotage_moving import adopt_again

pytestmark = pytest.mark.timeout(600)
OUTCOMES = ("lost", "kept", "fails, lost", "fails, kept")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Crashes are loud."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def once(crash: tuple[str, int, str] | None = None) -> tuple[MovingPlay, Played]:
    """Play it in a folder of its own."""
    folder, play = new_folder(), MovingPlay()
    try:
        return play, play.play(folder, crash)
    finally:
        shutil.rmtree(folder)


def plays(outcomes_of: Callable[[int], tuple[str, ...]]) -> Iterator[tuple[str, Played]]:
    """Crash at every commit from the move's begin until the account has healed."""
    base, played = once()
    assert played.broken is None, "\n".join(played.tail)
    for shard in base.began:
        for commit in range(base.began[shard] + 1, base.healed[shard] + 1):
            for outcome in outcomes_of(commit):
                crash = (shard, commit, outcome)
                _, found = once(crash)
                yield f"{crash}: {found.broken}", found


def check(outcomes_of: Callable[[int], tuple[str, ...]]) -> None:
    _, base = once()
    assert [result[0] for result in base.results] == ["complete"] * len(base.results)
    number = 0
    for number, (told, found) in enumerate(plays(outcomes_of), 1):  # noqa: B007
        assert found.broken is None, "\n".join([*found.tail, told])
        assert found.results == base.results, told
        assert found.crashes == 1, told
    print(f"{number} crashes")
    assert number > 20


def test_a_crash_at_any_commit_of_a_move_changes_nothing() -> None:
    """Commits that are neighbours have another outcome each; the campaign plays all of them."""
    check(lambda commit: (OUTCOMES[commit % len(OUTCOMES)],))


@pytest.mark.campaign
@pytest.mark.timeout(0)
def test_a_crash_at_any_commit_of_a_move_changes_nothing_with_any_outcome() -> None:
    check(lambda commit: OUTCOMES)


def test_a_lease_that_is_taken_over_twice_is_noticed() -> None:
    with patch.object(*adopt_again()):
        for _, found in plays(lambda commit: ("lost",)):
            if found.broken is not None:
                assert found.broken.promise == "the ledger keeps to the limit"
                return
    pytest.fail("no crash showed it")
