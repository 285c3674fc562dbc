"""What runs may be full of, instead of a bit of everything.

A seed draws a bit of everything: good at finding what nobody thought of, slow at finding one
given kind of fault. A run with a focus has many of a few things. Each deliberate bug has one, under
which most seeds find it, so that no test hangs on a lucky seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toque.runtime.entropy import Entropy


@dataclass(frozen=True)
class Focus:
    """See the module. As it stands here, a run has a bit of everything.

    Attributes:
        faults: these (of `faults`), and no others.
        work: these (of `work`), beside those that a seed draws.
        gap_s: how long it is at most until the next sudden fault.
        down_s: how long a crashed shard is away at most.
        weather: how much worse the network is than usual.
        instances: how many there are at most.
        commit_ms: how long a commit takes.
        limit: of how many instances run.
        souschefs: how many a workflow has at first.
        calls: C, the bound of calls to a Gatekeeper in a second.
        often: what befalls every other instance: `restart`, `cancel`, `look` (it is read now and
            then), `undo` (terminated with rollback), `doomed` (it ends by an error), `parts` (it
            continues as new), `mistakes` (there are many with an author's mistake), `family` (there
            are many with children), `fork` (which are restarted from a step).
        modes: of steps: half of them have one of these.
    """

    faults: frozenset[str] | None = None
    work: frozenset[str] = frozenset()
    gap_s: float = 8.0
    down_s: float = 15.0
    weather: float = 1.0
    instances: int = 0
    commit_ms: float = 0.0
    limit: int = 0
    souschefs: int = 0
    calls: int = 0
    often: frozenset[str] = frozenset()
    modes: tuple[str, ...] = ()

    def meets(self, what: str, one_in: int, entropy: Entropy) -> bool:
        """Whether an instance meets something that usually one in so many does."""
        return entropy.randrange(2 if what in self.often else one_in) == 0


EVERYTHING = Focus()


def on(
    *faults: str,
    often: tuple[str, ...] = (),
    modes: tuple[str, ...] = (),
    work: tuple[str, ...] = (),
    **rest: float,
) -> Focus:
    """A focus on those faults, with few instances."""
    whole: dict[str, Any] = {"instances": 16, **rest}
    return Focus(frozenset(faults), frozenset(work), often=frozenset(often), modes=modes, **whole)


OWNERS = on("zombie", "pause", gap_s=3.0)
"""Two owners at once."""
CRASHES = on("crash", "all", gap_s=2.0, down_s=3.0, commit_ms=8.0)
"""Commits that are lost, and what hangs on them."""
CALM = on()
"""No fault at all."""
