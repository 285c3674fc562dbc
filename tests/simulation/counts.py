"""A SousChef's counters, held against its rows after every commit, and against what has ended.

The rows are the truth: whoever is queued, waits or is paused has one, and whoever may use a slot.
A counter that drifts from them is not noticed by anything that an instance does, so it is looked
at here each time; unless the SousChef has noted that an event of its own was cut short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from toque.runtime.ids import old_key

from .kept import TableRows
from .promises import Promises

Rows = Callable[[str, str], list[Any]]

_ENDED = (
    "SELECT entity, (SELECT sum(value) FROM json_each(souschef_state.ended)) FROM souschef_state"
)
_STAND = (
    "SELECT entity, workflow_uuid, souschef, count(*) FROM instances"
    " WHERE status IN ('complete', 'errored', 'terminated') GROUP BY entity"
)
_KINDS = {"fresh": 1, "waiting": 2, "paused": 3}
_QUEUED, _AWAKENED, _FRESH = "queued", 0, 1


class Counts:
    """See the module.

    Args:
        rows: committed rows of a shard.
        promises: where checks are counted.
    """

    def __init__(self, rows: Rows, promises: Promises) -> None:
        self._rows = rows
        self._promises = promises

    def committed(self, shard: str, table: TableRows) -> None:
        """Look at what a commit of a control shard has left.

        Args:
            shard: whose commit.
            table: gives the rows of `kept.COLUMNS`.
        """
        state = table("souschef_state")
        if not state:
            return
        parked, held = table("souschef_parked"), table("souschef_held")
        there: dict[str, list[int]] = {entity: [0, 0, 0, 0, 0] for entity, *_ in state}
        for entity, kind, lane, *_ in parked:
            if kind == _QUEUED:
                place = _AWAKENED if lane == _AWAKENED else _FRESH
            else:
                place = _KINDS.get(kind, -1)
            if place >= 0 and entity in there:
                there[entity][place] += 1
        holders = Counter([row[0] for row in held])
        cut_short = {row[0] for row in state if row[-1]}  # put in order before they are used again
        for entity, _, *counted in state:
            if entity in cut_short:
                continue
            found = there[entity][:4]
            found += [sum(found) + holders[entity], 0]
            self._promises.hold(
                "a SousChef's counts are its rows",
                counted == found,
                *(entity, "awakened, fresh, waiting, paused, live, partial:"),
                *(counted, "are counted and", found, "are there"),
            )
        lanes = set(table("souschef_order"))
        in_lanes = {(row[0], *row[2:5]) for row in parked if row[2] >= 0}
        twice = {row[:2] for row in held} & {(row[0], row[4]) for row in parked}
        found_wrong = [*sorted(lanes ^ in_lanes), *sorted(twice)]
        wrong = [row for row in found_wrong if row[0] not in cut_short]
        self._promises.hold("whoever is in a lane is there once", not wrong, shard, *wrong)

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
