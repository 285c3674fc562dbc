"""Figures of shards, put together by workflow and by account. Pure.

Which SousChef belongs to which workflow follows from its key; names come from the accounts' rows,
which may lie on another shard. A workflow that is not known by name any more is shown by its uuid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

OTHERS = "(others)"
V1 = "(v1)"
"""In place of a workflow's name: all that an account has, or had, on control plane V1."""

Figures = Mapping[str, Mapping[str, Any]]
_LIVE = ("queued", "running", "waiting", "paused")


class Workflow:
    """Figures of one workflow, or of all that have no series of their own.

    Attributes:
        labels: account and name.
        ended: how many ended, by status.
        queue_age_ms: for how long the oldest that queues has done so.
        target: slots that it may use; `souschefs`: of how many SousChefs this was put together.
    """

    def __init__(self, account: str, name: str) -> None:
        self.labels = (account, name)
        self.target = self.souschefs = 0
        self._live = dict.fromkeys(_LIVE, 0)
        self.ended: dict[str, int] = {}
        self.queue_age_ms = 0

    def add(self, told: Mapping[str, Any]) -> None:
        """Add what a SousChef told."""
        for status in _LIVE:
            self._live[status] += told[status]
        for status, count in told["ended"].items():
            self.ended[status] = self.ended.get(status, 0) + count
        self.queue_age_ms = max(self.queue_age_ms, told["queue_age_ms"])
        self.target += told["target"]
        self.souschefs += 1

    def live(self) -> Iterator[tuple[str, int]]:
        """How many have not ended, by status."""
        yield from self._live.items()


def figures_of(figures: Figures, account: str) -> Figures:
    """What shards tell of one account, and nothing of any other."""

    def told(shard: Mapping[str, Any], key: str) -> list[Any]:
        return [row for row in shard.get(key, ()) if row[0] == account]

    return {
        name: {
            "names": told(shard, "names"),
            "accounts": told(shard, "accounts"),
            "souschefs": [
                one
                for one in shard.get("souschefs", ())
                if one["souschef"].split("/", 1)[0] == account
            ],
        }
        for name, shard in figures.items()
    }


def workflows_of(figures: Figures, most: int) -> list[Workflow]:
    """By workflow: the oldest `most` each alone, the others together."""
    known: dict[tuple[str, str], tuple[str, int]] = {}
    told: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for found in figures.values():
        for account, uuid, name, created_ms in found.get("names", ()):
            known[account, uuid] = name, created_ms
            told.setdefault((account, uuid), [])
        for one in found.get("souschefs", ()):
            account, uuid, _ = one["souschef"].split("/", 2)
            told.setdefault((account, uuid), []).append(one)

    def age(key: tuple[str, str]) -> tuple[bool, int, tuple[str, str]]:
        return key not in known, known[key][1] if key in known else 0, key

    rest = Workflow(OTHERS, OTHERS)
    result = []
    for place, key in enumerate(sorted(told, key=age)):
        workflow = rest
        if place < most:
            name = known[key][0] if key in known else V1 if key[1] == "-" else key[1]
            workflow = Workflow(key[0], name)
            result.append(workflow)
        for one in told[key]:
            workflow.add(one)
    return result if len(told) <= most else [*result, rest]


def accounts_of(figures: Figures, most: int) -> dict[str, dict[str, int]]:
    """Slots by account: the first `most` each alone, the others together."""
    used: dict[str, int] = {}
    for found in figures.values():
        for one in found.get("souschefs", ()):
            account = one["souschef"].split("/", 1)[0]
            used[account] = used.get(account, 0) + one["running"]
    result: dict[str, dict[str, int]] = {}
    rows = sorted(row for found in figures.values() for row in found.get("accounts", ()))
    for place, (account, limit, leases, leased, wanted, _) in enumerate(rows):
        told = result.setdefault(
            account if place < most else OTHERS,
            dict.fromkeys(("limit", "leased", "used", "wanted", "leases"), 0),
        )
        told["limit"] += limit
        told["leased"] += leased
        told["used"] += used.get(account, 0)
        told["wanted"] += wanted
        told["leases"] += leases
    return result
