"""What a SousChef keeps in memory of instances. Pure.

Who may use a slot, who has just ended, and of whom there is doubt which run is the newest.
All are bounded: the first by the lease, the others by a constant.
"""

from __future__ import annotations

ASK_AT_ONCE = -1
"""In place of `heard_ms`: never heard of, to be asked at the next look."""


class Held:
    """An instance that may use a slot.

    Attributes:
        run_id, seq, turn, shard: as last reported, or granted.
        granted: the grant has not been answered yet.
        flying: a message with the grant is on its way.
        heard_ms: when it last gave a sign of life; -1: ask it soon.
    """

    __slots__ = ("flying", "granted", "heard_ms", "run_id", "seq", "shard", "since_ms", "turn")

    def __init__(
        self, run_id: str, seq: int, turn: int, shard: str, since_ms: int, heard_ms: int
    ) -> None:
        self.run_id = run_id
        self.seq = seq
        self.turn = turn
        self.shard = shard
        self.since_ms = since_ms
        self.heard_ms = heard_ms
        self.granted = self.flying = False


class Doubt:
    """Another run of an instance was reported, and it looks older than the one on the roster.

    Attributes:
        run_id, other_run_id: on the roster, and as reported.
        shard: where the Engine lives.
        asked: the Engine has been asked; what it says from then on is believed.
    """

    __slots__ = ("asked", "other_run_id", "run_id", "shard")

    def __init__(self, run_id: str, other_run_id: str, shard: str) -> None:
        self.run_id = run_id
        self.other_run_id = other_run_id
        self.shard = shard
        self.asked = False


class Doubts:
    """The doubts that are open, by instance.

    Args:
        kept_max: with so many, all are dropped: the next such report opens them again.
    """

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._open: dict[str, Doubt] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def settle(self, key: str) -> None:
        """What is true is known."""
        self._open.pop(key, None)

    def is_resolved_by(self, key: str, run_id: str, other_run_id: str, shard: str) -> bool:
        """Whether a report of another run is the Engine's answer, to be believed. Else the doubt
        is open from now on.

        Args:
            key: the instance.
            run_id, other_run_id, shard: see `Doubt`.
        """
        doubt = self._open.get(key)
        if doubt is not None and doubt.other_run_id == other_run_id:
            if doubt.asked:
                del self._open[key]
            return doubt.asked
        if len(self._open) >= self._kept_max:
            self._open.clear()
        self._open[key] = Doubt(run_id, other_run_id, shard)
        return False

    def take_unasked(self, most: int) -> list[tuple[str, str, str]]:
        """`(key, shard, run id)` of at most so many whose Engine is to be asked; it counts as
        asked from now on."""
        found: list[tuple[str, str, str]] = []
        for key, doubt in self._open.items():
            if not doubt.asked and len(found) < most:
                doubt.asked = True
                found.append((key, doubt.shard, doubt.run_id))
        return found


class Ends:
    """The runs that ended last, so that their late reports are known as such."""

    def __init__(self, remembered_max: int) -> None:
        self._half = remembered_max // 2
        self._young: dict[str, str] = {}
        self._old: dict[str, str] = {}

    def add(self, key: str, run_id: str) -> None:
        """Remember that a run has ended."""
        self._young[key] = run_id
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}

    def has(self, key: str, run_id: str) -> bool:
        """Whether that run is known to have ended."""
        return self._young.get(key) == run_id or self._old.get(key) == run_id
