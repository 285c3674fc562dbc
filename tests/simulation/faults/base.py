"""What a fault is, and what it gets when it strikes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toque.runtime.entropy import Entropy
from toque.runtime.simnet import Weather

if TYPE_CHECKING:
    from toque.testkit.parts import Site

    from ..focus import Focus
    from ..world import World


@dataclass(frozen=True)
class Strike:
    """One fault at its instant: the world, and chance of its own."""

    world: World
    chance: Entropy
    focus: Focus

    def shard(self) -> str:
        """Any shard."""
        names = list(self.world.sites)
        return names[self.chance.randrange(len(names))]

    def site(self) -> Site:
        """Any shard's site."""
        return self.world.sites[self.shard()]

    def down_s(self) -> float:
        """How long what dies is away."""
        return 1.0 + self.chance.random() ** 2 * self.focus.down_s

    def at_a_commit(self, *outcomes: str) -> None:
        """One of the next commits of some shard has one of those outcomes."""
        site = self.site()
        outcome = outcomes[self.chance.randrange(len(outcomes))]
        at = site.commits + 1 + self.chance.randrange(30)
        site.crash_at[at] = (outcome, self.down_s())


@dataclass(frozen=True)
class Fault:
    """A kind of fault; each has a file.

    Attributes:
        name: as in `Focus.faults`.
        counts: under which names it is counted; each must come up in a campaign.
        befalls: what it does at an instant, if it has one.
        weather: what it does to the network while it lasts.
        begins: what it does to a world before anything is in it.
        modes: modes of steps (see `program`) that there are only with this fault.
        is_calm: a run with nothing but such faults is calm.
        part_of: in how many of a hundred seeds it is.
    """

    name: str
    counts: tuple[str, ...]
    befalls: Callable[[Strike], None] | None = None
    weather: Callable[[Weather, float], None] | None = None
    begins: Callable[[World, Entropy], None] | None = None
    modes: tuple[str, ...] = ()
    is_calm: bool = False
    part_of: int = 35
