"""What the fixture `toque_sim` gives: makes simulations, and closes them after the test.

With a seed it makes them with that seed's mishaps.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..runtime.errors import InvalidArgument
from ..runtime.limits import TESTKIT_STORY_LINES_SHOWN
from .everywhere import Prepare, Script, crash_everywhere
from .mishaps import CALM, mishaps_of
from .simulation import START, Simulation
from .verdict import Survival
from .world import SimWorld


class SimFactory:
    """See the module. `toque_sim([Order])` gives a `Simulation`, to be used by `with` or as it is.

    Args:
        seed: of `@toque_seeds`: it decides all, mishaps too; None: nothing befalls.

    Attributes:
        made: the simulations so far.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.made: list[Simulation] = []

    def __call__(
        self, workflows: Any, *, seed: int | None = None, start: str | datetime = START
    ) -> Simulation:
        """A simulation of these workflows and entities.

        Args:
            workflows: a workflow class or function, or several; `DurableObject` classes too.
            seed: of ids and delays, in a test without `@toque_seeds`; 0 if not given.
            start: the wall clock at the beginning, an ISO text or a `datetime`.
        """
        if self.seed is not None and seed is not None:
            raise InvalidArgument(
                "the seed comes from @toque_seeds here; leave `seed=` out of toque_sim(...)."
            )
        mishaps = CALM
        if self.seed is not None:
            seed = self.seed
            mishaps = mishaps_of(seed, SimWorld.entropy_of(seed, "which mishaps"))
        sim = Simulation(workflows, seed=seed or 0, start=start, mishaps=mishaps)
        self.made.append(sim)
        return sim

    def crash_everywhere(
        self,
        workflow: Any,
        params: Any = None,
        script: Script | None = None,
        *,
        prepare: Prepare | None = None,
        workflows: Any = None,
        start: str | datetime = START,
    ) -> Survival:
        """Run a workflow once for each side of each of its commits, with a crash there.

        Args:
            workflow: a workflow class or function; an instance of it is made with `params`.
            params: of that.
            script: called as `script(sim, instance)` after the create, to send events and so on;
                what it gives is compared, too. None: waits for the end.
            prepare: called as `prepare(sim)` before the create, in each run: replaces bodies, and
                sets back what the test keeps outside of the simulation.
            workflows: the workflows and entities of the simulation; None: that one only.
            start: the wall clock at the beginning.

        Raises:
            OutcomeDiffers: an instance ended otherwise, or the script failed, in one of the runs.
        """
        if self.seed is not None:
            raise InvalidArgument("crash_everywhere has no seeds; leave @toque_seeds out.")
        if isinstance(workflow, (list, tuple)):
            raise InvalidArgument(
                "crash_everywhere makes an instance of one workflow. Right: "
                "crash_everywhere(Trip, params, workflows=[Trip, Leg])."
            )
        others = [workflow] if workflows is None else workflows

        def make() -> Simulation:
            return Simulation(others, start=start)

        return crash_everywhere(make, workflow, params, script, prepare)

    def told(self) -> str:
        """What happened in the simulations, for who reads of a failure."""
        parts = []
        for number, sim in enumerate(self.made, 1):
            of = f"simulation {number}, seed {sim.seed}, mishaps: {sim.mishaps.told()}"
            parts.append(f"{of}\n{sim.story(TESTKIT_STORY_LINES_SHOWN)}")
        return "\n".join(parts)

    def close(self) -> None:
        """Close all simulations."""
        for sim in self.made:
            sim.close()
