"""What a process that sends load counts: by group, and by second for those who look on.

Bounded whatever the load: histograms, counters, and of each second a fair sample of latencies.
A `Part` is all of it as plain data, for the process that puts parts together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from ..runtime import limits
from ..runtime.entropy import Entropy
from .histograms import Latencies
from .result import Counts, Group


class Tick(msgspec.Struct):
    """What happened since the last one.

    Attributes:
        creates_ms: latencies of creates; a fair sample of them where there were more.
        creates: how many there were.
        in_flight: calls under way now.
        cpu_s, rss_mib: of the process so far, and now.
    """

    offered: int = 0
    accepted: int = 0
    failed: int = 0
    creates: int = 0
    creates_ms: list[float] = []
    in_flight: int = 0
    cpu_s: float = 0.0
    rss_mib: float = 0.0


def summed(ticks: Iterable[Tick]) -> Tick:
    """Ticks of several processes as one."""
    total = Tick(creates_ms=[])
    for tick in ticks:
        for name in Tick.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(tick, name))
    return total


class PackedGroup(msgspec.Struct, frozen=True):
    """A group as plain data."""

    counts: Counts
    latencies: dict[str, str]


class Part(msgspec.Struct, frozen=True):
    """What a process has counted, as plain data. `created`: instances that were acknowledged."""

    groups: dict[str, PackedGroup]
    refusals: dict[str, int]
    failures: dict[str, int]
    created: int


class Tally:
    """The counts and latencies of one group."""

    __slots__ = ("counts", "latencies")

    def __init__(self) -> None:
        self.counts = Counts()
        self.latencies = Latencies()


class Recorder:
    """Counts what becomes of operations.

    Args:
        entropy: chooses the sample of latencies of a second.

    Attributes:
        in_flight: calls under way.
        created: instances that were acknowledged.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self.groups: dict[str, Tally] = {}
        self.refusals: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.in_flight = 0
        self.created = 0
        self._tick = Tick(creates_ms=[])

    def group(self, name: str) -> Tally:
        """The tally of a group."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Tally()
        return found

    def offered(self, tally: Tally, count: int = 1) -> None:
        """Operations are due."""
        tally.counts.offered += count
        self._tick.offered += count

    def accepted(self, tally: Tally, count: int = 1) -> None:
        """They were answered well."""
        tally.counts.accepted += count
        self._tick.accepted += count

    def taken_back(self, tally: Tally) -> None:
        """One that was answered well is to count otherwise: what belonged to it was not."""
        tally.counts.accepted -= 1

    def create_took(self, tally: Tally, ms: float) -> None:
        """A create was answered, so long after it was due."""
        tally.latencies.add("create", ms)
        tick = self._tick
        tick.creates += 1
        if len(tick.creates_ms) < limits.LOADTEST_SAMPLE_MAX:
            tick.creates_ms.append(ms)
        elif (place := self._entropy.randrange(tick.creates)) < limits.LOADTEST_SAMPLE_MAX:
            tick.creates_ms[place] = ms

    def refused(self, tally: Tally, code: str, count: int = 1) -> None:
        """They were refused for now."""
        tally.counts.refused += count
        self.refusals[code] += count

    def failed(self, tally: Tally, code: str, count: int = 1, *, unknown: bool = False) -> None:
        """They failed, or nobody knows."""
        tally.counts.failed += count
        tally.counts.unknown += count if unknown else 0
        self.failures[code] += count
        self._tick.failed += count

    def take_tick(self) -> Tick:
        """What happened since the last call."""
        tick, self._tick = self._tick, Tick(creates_ms=[])
        tick.in_flight = self.in_flight
        return tick

    def part(self) -> Part:
        """All of it as plain data."""
        return Part(
            {
                name: PackedGroup(tally.counts, tally.latencies.packed())
                for name, tally in self.groups.items()
            },
            dict(self.refusals),
            dict(self.failures),
            self.created,
        )

    def merge(self, part: Part) -> None:
        """Add what another has counted."""
        for name, group in part.groups.items():
            tally = self.group(name)
            tally.counts.add(group.counts)
            tally.latencies.merge(Latencies.unpacked(group.latencies))
        self.refusals.update(part.refusals)
        self.failures.update(part.failures)
        self.created += part.created

    def total(self) -> Group:
        """All groups as one."""
        counts, latencies = Counts(), Latencies()
        for tally in self.groups.values():
            counts.add(tally.counts)
            latencies.merge(tally.latencies)
        return Group(counts, latencies.shown())

    def shown_groups(self) -> dict[str, Group]:
        """Each group, if they are told apart at all."""
        if len(self.groups) < 2:
            return {}
        return {
            name: Group(tally.counts, tally.latencies.shown())
            for name, tally in sorted(self.groups.items())
        }
