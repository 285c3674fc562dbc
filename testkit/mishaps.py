"""What a seed decides: the mishaps of one simulation. Pure.

They befall commits and frames, not instants, so that a test that lets a year pass has no more of
them than one that takes a second. After so many crashes and pauses there are no more: fewer than a
step may have of interruptions, so that a long body that is idempotent comes to its end. Seeds
differ in which kinds they have and how many, since mishaps hide each other; seed 0 has none but the
order in which bodies end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..runtime.entropy import Entropy
from ..runtime.limits import TESTKIT_MISHAPS_MAX
from ..runtime.simnet import Weather

_OFTEN = (0, 0, 5, 12, 30)
"""After how many commits, on average, a shard has a crash or a pause; 0: never."""
_PAUSE_S_MAX = 0.4


@dataclass(frozen=True)
class Mishaps:
    """What one seed has.

    Attributes:
        crashes, pauses: of how many commits one has it, on average; 0: none.
        weather: of the network.
        order: whether bodies take a while, so that they end in another order.
    """

    crashes: int = 0
    pauses: int = 0
    weather: Weather = field(default_factory=lambda: Weather(delay_ms=0.2))
    order: bool = False

    def told(self) -> str:
        """What there is, in words."""
        weather = self.weather
        found = [
            ("crashes", self.crashes),
            ("pauses, with another owner meanwhile", self.pauses),
            ("lost messages", weather.loss),
            ("messages that come late", weather.tail),
            ("calls that come twice", weather.repeat),
            ("bodies that end in another order", self.order),
        ]
        return ", ".join(name for name, has in found if has) or "nothing"


CALM = Mishaps()


def mishaps_of(seed: int, chance: Entropy) -> Mishaps:
    """The mishaps of a seed."""
    if seed == 0:
        return Mishaps(order=True)
    draw = chance.randrange
    weather = Weather(
        delay_ms=(0.2, 1.0, 5.0)[draw(3)],
        loss=(0.0, 0.0, 0.01, 0.04)[draw(4)],
        tail=(0.0, 0.0, 0.02)[draw(3)],
        tail_ms=1_500.0,
        repeat=(0.0, 0.0, 0.1)[draw(3)],
        repeat_ms=20_000.0,
    )
    crashes, pauses = _OFTEN[draw(len(_OFTEN))], _OFTEN[draw(len(_OFTEN))]
    return Mishaps(crashes, pauses, weather, order=draw(4) > 0)


class Fates:
    """Decides, commit by commit.

    Args:
        mishaps: what there is.
        chance: for what befalls commits.
        order: for how long bodies take.
    """

    def __init__(self, mishaps: Mishaps, chance: Entropy, order: Entropy) -> None:
        self._mishaps = mishaps
        self._chance = chance
        self._order = order
        self._left = TESTKIT_MISHAPS_MAX

    def crash(self) -> tuple[str, float] | None:
        """Whether the owner dies at this commit: what becomes of it, and how long it is down."""
        if not self._strikes(self._mishaps.crashes):
            return None
        outcome = ("lost", "kept", "torn")[self._chance.randrange(3)]
        return outcome, 0.2 + self._chance.random() ** 2 * 5

    def pause(self) -> tuple[float, float, float] | None:
        """Whether the owner hangs at this commit: as `SimWorld.usurp` has it."""
        if not self._strikes(self._mishaps.pauses):
            return None
        draw = self._chance.random
        return draw() * 4, 0.01 + draw() * 4, draw() * 4

    def _strikes(self, of: int) -> bool:
        if not of or not self._left or self._chance.randrange(of):
            return False
        self._left -= 1
        return True

    def body_s(self) -> float:
        """How long a body is kept before it begins."""
        return self._order.random() * _PAUSE_S_MAX if self._mishaps.order else 0.0
