"""What happened in a simulation, in order, for people.

Bounded: the newest lines are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from ..runtime.limits import TESTKIT_STORY_LINES_MAX


class Story:
    """Takes lines as things happen; the newest are kept.

    Args:
        now_ms: the wall clock of the simulation.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lines: deque[tuple[int, str]] = deque(maxlen=TESTKIT_STORY_LINES_MAX)
        self.told = 0

    def tell(self, *words: object) -> None:
        """Something happened now."""
        self.told += 1
        self._lines.append((self._now_ms(), " ".join(map(str, words))))

    def lines(self, last: int | None = None) -> list[str]:
        """The newest lines, oldest first, each with its time."""
        lines = list(self._lines)
        lines = lines if last is None else lines[-last:]
        return [f"{at_text(at_ms)}  {text}" for at_ms, text in lines]


def at_text(ms: int) -> str:
    """An instant of a simulation, to be read."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:23]
