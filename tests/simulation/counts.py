"""A SousChef's counters, held against its rows after every commit, and against what has ended.

The rows are the truth: whoever is queued, waits or is paused has one, and whoever may use a slot.
A counter that drifts from them is not noticed by anything that an instance does, so it is looked
at here each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from toque.runtime.ids import old_key

from .promises import Promises

Rows = Callable[[str, str], list[Any]]

_STATE = "SELECT entity, awakened, fresh, waiting, paused, live, partial FROM souschef_state"
_PARKED = "SELECT entity, state, lane, count(*) FROM souschef_parked GROUP BY 1, 2, 3"
_HELD = "SELECT entity, count(*) FROM souschef_held GROUP BY 1"
_LANES = "SELECT entity, lane, at_ms, key FROM souschef_order"
_IN_LANES = "SELECT entity, lane, at_ms, key FROM souschef_parked WHERE lane >= 0"
_TWICE = "SELECT entity, key FROM souschef_held INTERSECT SELECT entity, key FROM souschef_parked"
_ENDED = (
    "SELECT entity, (SELECT sum(value) FROM json_each(souschef_state.ended)) FROM souschef_state"
)
_STAND = (
    "SELECT entity, workflow_uuid, souschef, count(*) FROM instances"
    " WHERE status IN ('complete', 'errored', 'terminated') GROUP BY entity"
)
_QUEUED, _AWAKENED = "queued", 0


class Counts:
    """See the module.

    Args:
        rows: committed rows of a shard.
        promises: where checks are counted.
    """

    def __init__(self, rows: Rows, promises: Promises) -> None:
        self._rows = rows
        self._promises = promises

    def committed(self, shard: str) -> None:
        """Look at what a commit of a control shard has left."""
        state = self._rows(shard, _STATE)
        if not state:
            return
        parked: dict[str, Counter[str]] = {}
        for entity, kind, lane, count in self._rows(shard, _PARKED):
            if kind == _QUEUED:
                kind = "awakened" if lane == _AWAKENED else "fresh"
            parked.setdefault(entity, Counter())[kind] += count
        held = dict(self._rows(shard, _HELD))
        for entity, awakened, fresh, waiting, paused, live, partial in state:
            there = parked.get(entity, Counter())
            found = [there[kind] for kind in ("awakened", "fresh", "waiting", "paused")]
            found += [sum(found) + held.get(entity, 0), 0]
            counted = [awakened, fresh, waiting, paused, live, partial]
            self._promises.hold(
                "a SousChef's counts are its rows",
                counted == found,
                f"{entity}: awakened, fresh, waiting, paused, live, partial: {counted} are counted",
                f"and {found} are there",
            )
        lanes, in_lanes = set(self._rows(shard, _LANES)), set(self._rows(shard, _IN_LANES))
        self._promises.hold(
            "whoever is in a lane is there once",
            lanes == in_lanes and not self._rows(shard, _TWICE),
            f"{shard}: {sorted(lanes ^ in_lanes)} {self._rows(shard, _TWICE)}",
        )

    # --- what has ended ---------------------------------------------------------------------

    def check_ends(self, shards: list[str], more: int | None) -> None:
        """Each end that stands is counted by its SousChef.

        Args:
            shards: all.
            more: how many ends there may have been besides (a restart or a deletion follows an
                end); None: any number, since a SousChef that was activated anew does not know
                that it has counted an end that is told again.
        """
        counted: Counter[str] = Counter()
        stand: Counter[str] = Counter()
        for shard in shards:
            counted.update({entity: total or 0 for entity, total in self._rows(shard, _ENDED)})
            for key, uuid, souschef, count in self._rows(shard, _STAND):
                account = key.split("/", 1)[0]
                stand[old_key(account) if souschef < 0 else f"{account}/{uuid}/{souschef}"] += count
        short = [
            f"{souschef}: {counted[souschef]} of {count}"
            for souschef, count in sorted(stand.items())
            if counted[souschef] < count
        ]
        hold = self._promises.hold
        hold("a SousChef counts what has ended", not short, *short)
        if more is not None:
            total, most = counted.total(), stand.total() + more
            hold("a SousChef counts no end twice", total <= most, f"{total}, not {most}")
