"""A virtual-time loop that skips time in which only housekeeping would happen.

A shard looks at its alarms every few seconds, at its memory twice a minute, and so on. While
nothing else is to happen, time jumps to the next alarm or timer of anyone else, by a day at most,
and what housekeeping fell due meanwhile is done late, once, as after a machine has slept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..runtime.alarms import AlarmDriver
from ..runtime.blobs import BlobCollector
from ..runtime.host import Host
from ..runtime.limits import TESTKIT_TURNS_MAX
from ..runtime.simloop import JUMP_S_MAX, VirtualTimeLoop
from ..runtime.sweeper import Sweeper
from .errors import WaitsForever

_HOUSEKEEPING = frozenset(
    {AlarmDriver._tick, Sweeper._sweep, Host._look_at_store, BlobCollector._look}
)


class SkippingLoop(VirtualTimeLoop):
    """See the module. It also notices user code that goes round for ever in no time.

    Attributes:
        next_alarm_s: tells at which of its times the next alarm of a shard is due.
    """

    turns_max = TESTKIT_TURNS_MAX
    next_alarm_s: Callable[[], float] = staticmethod(lambda: -math.inf)

    def jump(self, seconds: float) -> None:
        if _is_housekeeping(self.timers[0][1]):
            others = (
                when
                for when, timer in self.timers
                if not timer._cancelled and not _is_housekeeping(timer)
            )
            until_s = min(min(others, default=math.inf), self.next_alarm_s())
            seconds = max(seconds, min(until_s - self.time(), JUMP_S_MAX))
        super().jump(seconds)

    def goes_round(self) -> None:
        raise WaitsForever(
            f"the event loop turned {TESTKIT_TURNS_MAX} times and no virtual time passed. Does a "
            "body, or the test, wait in a loop of `await asyncio.sleep(0)`? Wait for what is meant."
        )


def _is_housekeeping(timer: Any) -> bool:
    return bool(getattr(timer._callback, "__func__", None) in _HOUSEKEEPING)
