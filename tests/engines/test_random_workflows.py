"""Random workflows, random completion orders, a crash anywhere: the same values and branches.

TOQUE_RANDOM_WORKFLOWS=1000 plays a thousand of them instead of a few hundred.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tests.engines.wild import Walk, Wild, program
from toque.engines.journal import Journal, record_from_row

COUNT = int(os.environ.get("TOQUE_RANDOM_WORKFLOWS", "300"))
PARTS = 10
STEPS_MIN = 5
CRASHES = 3


def ends(seed: int, *, is_spoilt: bool = False) -> str:
    """Play a program, crash it, go on, and replay; gives how it ended."""
    with contextlib.ExitStack() as plays:
        return ends_of(seed, plays, is_spoilt=is_spoilt)


def ends_of(seed: int, plays: contextlib.ExitStack, *, is_spoilt: bool) -> str:
    """See `ends`."""
    rng = Random(seed)
    walk = Walk(program(rng), is_spoilt=is_spoilt)
    live = plays.enter_context(contextlib.closing(Wild(walk)))
    live.play(rng)
    turns = live.turns
    whole(live, seed, plays)
    for turn in rng.sample(turns, min(CRASHES, len(turns))):
        again = plays.enter_context(contextlib.closing(Wild(Walk(walk.root, is_spoilt=is_spoilt))))
        again.crash_after(turn)
        told = again.execution.outcome
        assert told is None or told.error is None or told.error.name != "NonDeterminism", (
            seed, told,
        )  # fmt: skip
        assert again.walk.trace == turn.trace, f"seed {seed}: another way at replay"
        again.play(rng)
        whole(again, seed, plays)
    outcome = live.execution.outcome
    if outcome is None:
        return "open"
    return "complete" if outcome.error is None else outcome.error.name


def whole(played: Wild, seed: int, plays: contextlib.ExitStack) -> None:
    """A replay of everything gives the same trace, records and outcome."""
    trace, outcome = list(played.walk.trace), played.execution.outcome
    again = plays.enter_context(
        contextlib.closing(Wild(Walk(played.walk.root, is_spoilt=played.walk.is_spoilt)))
    )
    again.execution.close()
    again.rows, again.events = dict(played.rows), dict(played.events)
    again.buffered, again.now_ms = list(played.buffered), played.now_ms
    again._begin(Journal.of(record_from_row(again.rows[n]) for n in sorted(again.rows)))
    assert again.walk.trace == trace, f"seed {seed}: a full replay takes another way"
    assert again.idents == played.idents, f"seed {seed}: other steps"
    told = again.execution.outcome
    assert told == outcome, f"seed {seed}: {told} instead of {outcome}"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Programs lose tasks all the time, and the loop would say so."""
    logger = logging.getLogger("toque.engines")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_random_workflow_takes_the_same_way_at_each_replay(part: int) -> None:
    how = Counter(ends(seed) for seed in range(part, COUNT, PARTS))
    assert how["complete"] >= COUNT // PARTS // 5, how
    assert not how["NonDeterminism"]


def test_the_programs_use_everything() -> None:
    kinds: Counter[str] = Counter()
    records = 0
    for seed in range(100):
        rng = Random(seed)
        with contextlib.closing(Wild(Walk(program(rng)))) as live:
            live.play(rng)
            kinds.update(kind for _, kind, *_ in live.walk.trace)
            records += len(live.records)
    made = {name[1:] for name in vars(Walk) if name[0] == "_" != name[1]}
    assert {kind for kind in made if kind not in ("tasks", "settle", "guarded")} <= set(kinds)
    assert records / 100 >= STEPS_MIN


def test_a_workflow_that_does_not_repeat_itself_is_caught() -> None:
    caught = 0
    for seed in range(60):
        try:
            caught += ends(seed, is_spoilt=True) == "NonDeterminism"
        except AssertionError:
            caught += 1
    assert caught > 3
