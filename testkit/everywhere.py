"""The same script with a crash at each commit, before it and after it: does it end the same?

One run without a crash counts the commits. Then there is a run for each side of each: the process
of the shard that makes the commit dies there, and comes back a second later. So every state that
can be on disk is one from which the workflow has to go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ..runtime.errors import InvalidArgument
from ..runtime.guarded import kind_of, text_of
from ..runtime.limits import TESTKIT_BOUNDARIES_MAX, TESTKIT_STORY_LINES_SHOWN
from .errors import OutcomeDiffers
from .handles import SimInstance
from .simulation import Simulation
from .verdict import Boundary, Outcome, Survival, differences, ends_of, ran_more

Script = Callable[[Simulation, SimInstance], Any]
Prepare = Callable[[Simulation], object]
_Counts = Counter[tuple[str, str, str]]


def crash_everywhere(
    make: Callable[[], Simulation],
    workflow: Any,
    params: Any,
    script: Script | None,
    prepare: Prepare | None,
) -> Survival:
    """See `SimFactory.crash_everywhere`.

    Args:
        make: a new simulation; the same each time.
    """
    sim = make()
    try:
        usual, first, last, counts = _played(sim, workflow, params, script, prepare)
    finally:
        sim.close()
    survival = Survival(last - first)
    if survival.commits > TESTKIT_BOUNDARIES_MAX:
        raise InvalidArgument(
            f"the script makes {survival.commits} commits, and would be played twice for each; at "
            f"most are {TESTKIT_BOUNDARIES_MAX}. Test a shorter one, or use @toque_seeds(50)."
        )
    for commit in range(first + 1, last + 1):
        for kept in (False, True):
            boundary = Boundary(commit, kept)
            for step in _crashed(
                make(), boundary, workflow, params, script, prepare, usual, counts
            ):
                survival.reran.setdefault(step, []).append(boundary)
            survival.runs += 1
    return survival


def _played(
    sim: Simulation, workflow: Any, params: Any, script: Script | None, prepare: Prepare | None
) -> tuple[Outcome, int, int, _Counts]:
    """What a run comes to, the commits before and after it, and which bodies ran how often."""
    if prepare is not None:
        prepare(sim)
    first = sim.commits
    instance = sim.create(workflow, params, id="crashed")
    value = None
    if script is None:
        instance.wait()
    else:
        value = script(sim, instance)
    sim.settle()
    last = sim.commits
    return Outcome(ends_of(sim.ends()), value), first, last, sim.counts()


def _crashed(
    sim: Simulation,
    boundary: Boundary,
    workflow: Any,
    params: Any,
    script: Script | None,
    prepare: Prepare | None,
    usual: Outcome,
    counts: _Counts,
) -> list[str]:
    """Which bodies ran more often in the run with that crash; raises if it ends otherwise."""
    sim.crash_at_commit(boundary.commit, kept=boundary.kept)
    try:
        try:
            outcome, _, _, with_crash = _played(sim, workflow, params, script, prepare)
        except Exception as error:
            raise _differs(sim, boundary, [f"{kind_of(error)}: {text_of(error)}"]) from error
        found = differences(usual, outcome)
        if found:
            raise _differs(sim, boundary, found)
        return ran_more(counts, with_crash)
    finally:
        sim.close()


def _differs(sim: Simulation, boundary: Boundary, found: list[str]) -> OutcomeDiffers:
    told = "\n  ".join(found)
    story = sim.story(TESTKIT_STORY_LINES_SHOWN)
    return OutcomeDiffers(
        f"a crash {boundary} changes the outcome:\n  {told}\nWhat happened:\n{story}",
        {"commit": boundary.commit, "kept": boundary.kept},
    )
