"""What an instance waits for: things with a time, and events by type.

In memory only, made anew at each replay; held by `replay.Execution`. Of things with the same time
the one that was put in first comes first; of waits for one type the oldest is served first. A
pause moves everything that has a time, each by its own share (`journal.Pause`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..runtime.limits import CHILDREN_NAMED_MAX
from .claims import Claim, Deadline
from .journal import CHILD_END, PENDING, Pause
from .loop import DurableTimer

_FIRST_MS = 1
"""The earliest time that anything has here: 0 means that nothing is timed."""
Item = Claim | DurableTimer | Deadline


class Agenda:
    """Things that fall due. What is over, or was cancelled, drops out by itself."""

    __slots__ = ("_ties", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Item]] = []
        self._ties = 0

    def put(self, due_ms: int, item: Item) -> None:
        """It falls due then; what was due before 1970, now."""
        self._ties += 1
        heapq.heappush(self.heap, (max(_FIRST_MS, due_ms), self._ties, item))

    def next_ms(self) -> int:
        """When something is due next; 0: nothing is timed."""
        heap = self.heap
        while heap and _is_void(heap[0][2]):
            heapq.heappop(heap)
        return heap[0][0] if heap else 0

    def pop(self) -> Item:
        """The thing that `next_ms` told of."""
        return heapq.heappop(self.heap)[2]

    def shift(self, pause: Pause, others: Iterable[object]) -> None:
        """Move the timers of asyncio, in here and among `others`, and put all in order again."""
        timers = {item for _, _, item in self.heap if isinstance(item, DurableTimer)}
        timers.update(item for item in others if isinstance(item, DurableTimer))
        for timer in timers:
            timer.due_ms += pause.shift_of(timer.set_ms)
        self.heap = [(max(_FIRST_MS, _due_of(item)), tie, item) for _, tie, item in self.heap]
        heapq.heapify(self.heap)

    def deadlines(self) -> list[Deadline]:
        """Those of steps that are not over, the earliest first."""
        return [
            item
            for _, _, item in sorted(self.heap, key=lambda entry: entry[:2])
            if isinstance(item, Deadline) and not _is_void(item)
        ]

    def __bool__(self) -> bool:
        return bool(self.heap)


def is_awaited(event_type: str, awaited: Collection[str]) -> bool:
    """Whether an event is waited for, by what `Inbox.awaited_types` told."""
    return event_type in awaited or (CHILD_END in awaited and event_type.startswith(CHILD_END))


def _due_of(item: Item) -> int:
    if isinstance(item, DurableTimer):
        return item.due_ms
    if isinstance(item, Deadline):
        return item.claim.record.deadline_ms
    return item.record.due_ms


def _is_void(item: Item) -> bool:
    if isinstance(item, DurableTimer):
        return item.is_cancelled
    if isinstance(item, Deadline):
        return item.claim.record.is_over
    return item.record.state != PENDING


class Match(NamedTuple):
    """An event and the wait that it goes to; `ready_ms` is when both were there."""

    ready_ms: int
    claim: Claim
    seq: int
    at_ms: int


class Inbox:
    """Events that nobody took, and waits that nothing came for, by type."""

    __slots__ = ("_waits", "events", "waiting")

    def __init__(self) -> None:
        self.events: dict[str, list[tuple[int, int]]] = {}
        self._waits: dict[str, list[Claim]] = {}
        self.waiting = 0

    def put(self, seq: int, event_type: str, at_ms: int) -> None:
        """An event has come."""
        self.events.setdefault(event_type, []).append((seq, at_ms))

    def wait(self, claim: Claim) -> None:
        """A wait has begun."""
        self._waits.setdefault(claim.record.event_type, []).append(claim)
        self.waiting += 1

    def give_up(self, claim: Claim) -> None:
        """A wait is over without an event."""
        event_type = claim.record.event_type
        self._waits[event_type].remove(claim)
        self.waiting -= 1
        self._tidy(event_type)

    def earliest(self) -> Match | None:
        """What is to be delivered first."""
        best = None
        for event_type, waits in self._waits.items():
            events = self.events.get(event_type)
            if events and waits:
                seq, at_ms = events[0]
                ready_ms = max(at_ms, waits[0].record.started_ms)
                if best is None or ready_ms < best.ready_ms:
                    best = Match(ready_ms, waits[0], seq, at_ms)
        return best

    def take(self, match: Match) -> None:
        """The event has gone to the wait."""
        event_type = match.claim.record.event_type
        self._waits[event_type].pop(0)
        self.waiting -= 1
        events = self.events[event_type]
        events.pop(0)
        if not events:
            del self.events[event_type]
        self._tidy(event_type)

    def _tidy(self, event_type: str) -> None:
        """A child ends once: nobody waits for that again."""
        if event_type.startswith(CHILD_END) and not self._waits[event_type]:
            del self._waits[event_type]

    def awaited_types(self) -> tuple[str, ...]:
        """Types of events that are waited for; of many children only that there are some.

        They stand in the instance's row, which is written often.
        """
        awaited = tuple(
            kind for kind, waits in self._waits.items() if any(not c.record.is_over for c in waits)
        )
        if len(awaited) <= CHILDREN_NAMED_MAX:
            return awaited
        others = [kind for kind in awaited if not kind.startswith(CHILD_END)]
        return (*others, CHILD_END) if len(others) < len(awaited) else awaited

    def __bool__(self) -> bool:
        return bool(self.events)
