"""Calls whose answer waits for news, so that news reaches a SousChef between two of its calls.

A SousChef calls once a period. If its answer has nothing new, it is held: until a review finds
something, or until most of the period is over. So who must give slots up for a newcomer hears of
it at once, has them free at its next call, and the newcomer, whose call is held as well, hears of
that at once: with not one call more.

A review looks at all that is held, some time after calls have come: those that come together, as
several newcomers do, are taken together. It comes the later the more is held, so that no more
than REVIEWS_PER_SECOND_MAX leases are looked at in a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..runtime import limits
from .messages import CycleReply

Answer = asyncio.Future[CycleReply]


class HeldCalls:
    """See the module.

    Args:
        loop: the shard's.
        review: looks at the leases of those SousChefs; told whether it is the last time before
            their answers leave. What it finds it gives to `answer`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, review: Callable[[list[str], bool], None]
    ) -> None:
        self._loop = loop
        self._review = review
        self._held: dict[str, tuple[Answer, asyncio.TimerHandle]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, souschef: str, period_ms: int) -> Answer:
        """Have the answer to its call wait."""
        most_ms = min(period_ms, limits.CONTROL_CALL_TIMEOUT_MS // 2)
        wait_s = most_ms * limits.CYCLE_HELD_PERCENT / 100 / 1000
        answer: Answer = self._loop.create_future()
        timer = self._loop.call_later(wait_s, self._review, [souschef], True)
        self._held[souschef] = answer, timer
        return answer

    def waiting(self, souschef: str) -> Answer | None:
        """The answer to it that waits, if one does."""
        held = self._held.get(souschef)
        return None if held is None else held[0]

    def answer(self, souschef: str, reply: CycleReply) -> None:
        """Let the answer to its call leave, if one waits."""
        held = self._held.pop(souschef, None)
        if held is not None:
            held[1].cancel()
            held[0].set_result(reply)

    def refuse(self, error: Exception) -> None:
        """Let all calls fail."""
        held, self._held = self._held, {}
        for answer, timer in held.values():
            timer.cancel()
            answer.set_exception(error)

    def look_soon(self) -> None:
        """Something has changed: have those that are held reviewed."""
        if self._held and self._timer is None:
            pause_ms = len(self._held) * 1000 // limits.REVIEWS_PER_SECOND_MAX
            delay_s = max(limits.REVIEW_AFTER_MS, pause_ms) / 1000
            self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._review(list(self._held), False)

    def close(self) -> None:
        """The activation ends."""
        if self._timer is not None:
            self._timer.cancel()
        for answer, timer in self._held.values():
            timer.cancel()
            answer.cancel()
        self._held.clear()
