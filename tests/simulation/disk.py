"""What is on disk, judged after every commit: who runs, and what the ledger allows.

Rows are read by connections of the simulation's own, so a broken, closed or lying owner hides
nothing. An instance *runs* while its committed status says so, whether or not the shard that
holds it is up: that is what holds a slot. (Bodies in flight are no measure: a terminated
instance's body may still run, and holds none.)
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

from toque.gatekeeper.messages import CycleRequest
from toque.runtime.ids import old_key

from .codecs import HEAD, SEALED_ACCOUNT
from .counts import Counts
from .kept import Changed, Kept, TableRows, touches
from .promises import Promises
from .queues import Queues


class Disk:
    """All shards' files.

    Args:
        folder: where `<shard>.db` files are.
        promises: where checks are counted.
        limit: every account's limit at first.
    """

    def __init__(self, folder: Path, promises: Promises, limit: int) -> None:
        self._folder = folder
        self._promises = promises
        self._first_limit = limit
        self._connections: dict[str, sqlite3.Connection] = {}
        self._running: dict[str, dict[str, str]] = {}
        self._leases: dict[str, dict[str, int]] = {}
        self._ledger_shards: dict[str, str] = {}
        self._caps: dict[str, int] = {}
        self._lowered_s: dict[str, float] = {}
        self._old_targets: dict[str, dict[str, tuple[str, int]]] = {}
        self._carried: Counter[str] = Counter()
        """What ran, or was about to, when a move was taken back. V1's limit may be lower; it starts
        no more."""
        self._workflow_limits: dict[str, int] = {}
        self._workflow_caps: dict[str, int] = {}
        self._calls: dict[str, tuple[int, int]] = {}
        self._told: dict[tuple[str, int, int], int] = {}
        self.limits: dict[str, int] = {}
        self.calm_since_s = math.inf
        self.running_max = 0
        self.counts = Counts(self.rows, promises)
        self.queues = Queues(promises)
        self._kept = Kept(self.rows)

    def rows(self, shard: str, sql: str) -> list[Any]:
        """Committed rows; none if the table is not there yet."""
        connection = self._connections.get(shard)
        if connection is None:
            path = self._folder / f"{shard}.db"
            if not path.exists():
                return []
            uri = f"{path.as_uri()}?mode=ro"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            self._connections[shard] = connection
        try:
            return connection.execute(sql).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise

    def forget(self, shard: str) -> None:
        """Close a file; it is opened again when it is looked at."""
        connection = self._connections.pop(shard, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the files."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- after each commit ------------------------------------------------------------------

    def committed(self, shard: str, now_s: float, changed: Changed = None) -> None:
        """Look at what a commit has changed, in which tables."""
        if shard.startswith("d"):
            if touches(changed, "instances"):
                self._engines(shard, now_s)
            return
        table = self._kept.changed(shard, changed)
        if touches(changed, "souschef_state", "account_old_planes"):
            self._targets_on_v1(shard, table)
        if touches(changed, "gatekeeper_limits", "gatekeeper_leases"):
            self._leases_of(shard, table, now_s)
        if touches(changed, *_SOUSCHEF):
            self.counts.committed(shard, table)
            self.queues.committed(shard, table)

    def told(self, request: CycleRequest) -> None:
        """A SousChef tells its Gatekeeper how many slots it holds."""
        call = (request.souschef, request.incarnation, request.seq)
        self._told[call] = request.holding

    def is_running(self, run: str) -> bool:
        """Whether the instance of a run (`account/workflow/id#create`) runs, by its row."""
        account, id = _whose(run)
        return any(
            key.startswith(account) and key.split("/", 2)[2] == id
            for running in self._running.values()
            for key in running
        )

    def key_of(self, shard: str, run: str) -> str | None:
        """The key of the instance of a run, whether or not it runs."""
        rows = self.rows(shard, "SELECT entity FROM instances ORDER BY entity")
        account, id = _whose(run)
        found = (key for (key,) in rows if key.startswith(account) and key.split("/", 2)[2] == id)
        return next(found, None)

    def _engines(self, shard: str, now_s: float) -> None:
        rows = self.rows(
            shard, "SELECT entity, workflow_uuid, souschef FROM instances WHERE active = 1"
        )
        before = self._running.get(shard, {})
        running = {key: souschef_of(key, uuid, number) for key, uuid, number in rows}
        if running == before:
            return
        self._running[shard] = running
        started = running.keys() - before.keys()
        for account in sorted({key.split("/", 1)[0] for key in started}):
            self._check_running(account, now_s)
        for workflow in sorted({running[key].rsplit("/", 1)[0] for key in started}):
            self._check_workflow(workflow)

    def running(self, account: str) -> int:
        """How many instances of an account run."""
        prefix = account + "/"
        return sum(key.startswith(prefix) for keys in self._running.values() for key in keys)

    def running_by_workflow(self, account: str) -> Counter[str]:
        """How many instances of each workflow (`account/uuid`) of an account run."""
        prefix = account + "/"
        souschefs = [s for keys in self._running.values() for s in keys.values()]
        return Counter(s.rsplit("/", 1)[0] for s in souschefs if s.startswith(prefix))

    def waiting(self, account: str) -> set[str]:
        """The workflows (`account/uuid`) of an account that have instances queued."""
        sql = "SELECT DISTINCT entity FROM souschef_parked WHERE state = 'queued'"
        shards = [path.stem for path in self._folder.glob("c*.db")]
        found = {row[0].rsplit("/", 1)[0] for shard in shards for row in self.rows(shard, sql)}
        return {workflow for workflow in found if workflow.startswith(account + "/")}

    def settings_of(self, workflow: str) -> tuple[int, int]:
        """Weight and limit of a workflow (`account/uuid`), as its Gatekeeper has them."""
        sql = "SELECT workflow, weight, running_max FROM gatekeeper_limits"
        for path in self._folder.glob("c*.db"):
            for known, weight, most in self.rows(path.stem, sql):
                if known == workflow:
                    return weight, most
        return 1, 0

    def cap(self, account: str) -> int:
        """The limit in force: a lowered one counts once the ledger is below it."""
        return self._caps.get(account, self._first_limit)

    def limit(self, account: str) -> int:
        """The limit as the Gatekeeper has it on disk."""
        return self.limits.get(account, self._first_limit)

    def _check_running(self, account: str, now_s: float) -> None:
        count, cap, limit = self.running(account), self.cap(account), self.limit(account)
        self.running_max = max(self.running_max, count)
        self._promises.hold(
            "running <= limit", count <= cap, f"{account}: {count} run, the limit is {cap}"
        )
        self._check_holders(account)
        lowered_s = self._lowered_s.get(account)
        settled_s = max(self.calm_since_s, lowered_s or 0.0) + 5.0
        if lowered_s is not None and now_s > settled_s:
            self._promises.hold(
                "a lowered limit lets nothing start above it",
                count <= limit,
                f"{account}: one more started, {count} run, the limit is {limit} since",
                f"{lowered_s:.1f}",
            )

    def _check_workflow(self, workflow: str) -> None:
        """A limit of a workflow's own, once the ledger has been below it (it is set once)."""
        cap = self._workflow_caps.get(workflow)
        if cap is None:
            return
        count = sum(
            souschef.startswith(f"{workflow}/")
            for keys in self._running.values()
            for souschef in keys.values()
        )
        self._promises.hold(
            "running <= the workflow's own limit",
            count <= cap,
            f"{workflow}: {count} run, the limit is {cap}",
        )

    def _targets_on_v1(self, shard: str, table: TableRows) -> None:
        """What accounts may hold that lease slots to themselves: on V1, until V2 adopts them."""
        planes = {entity: plane for entity, plane in table("account_old_planes") if plane != "v2"}
        state = table("souschef_state") if planes else []
        found = {row[0]: (planes[row[0]], row[1]) for row in state if row[0] in planes}
        before = self._old_targets.get(shard, {})
        if found != before:
            self._old_targets[shard] = found
            for entity, (plane, _) in found.items():
                if plane == "v1" and before.get(entity, ("", 0))[0] != "v1":
                    self._carried[entity] = self._held(shard, entity)
            for entity in sorted(found):
                self._check_holders(entity.split("/", 1)[0])

    def _leases_of(self, shard: str, table: TableRows, now_s: float) -> None:
        before = dict(self.limits)
        for account, workflow, limit in table("gatekeeper_limits"):
            if workflow:
                self._workflow_limits[workflow] = limit
                continue
            if limit < self.limit(account):
                self._lowered_s[account] = now_s
            elif limit > self.limit(account):
                self._lowered_s.pop(account, None)
            self.limits[account] = limit
            self._caps[account] = max(self.cap(account), limit)
        ledgers: dict[str, dict[str, int]] = {}
        for account, souschef, ledger, incarnation, seq in table("gatekeeper_leases"):
            ledgers.setdefault(account, {})[souschef] = ledger
            self._calls[souschef] = (incarnation, seq)
            self._ledger_shards[account] = shard
        known = [account for account, at in self._ledger_shards.items() if at == shard]
        for account in known:  # a move that is taken back leaves an account without any lease
            ledgers.setdefault(account, {})
        for account, entries in ledgers.items():
            self._check_ledger(account, entries, before.get(account, self._first_limit))

    def _check_ledger(self, account: str, entries: dict[str, int], limit_before: int) -> None:
        """`limit_before`: the limit may have been lowered later in the same commit.

        An entry may follow its holder's word beyond the limit: a late report makes a SousChef
        count an instance that has ended until its Engine is asked. What runs has its own checks.
        """
        before, limit = self._leases.get(account, {}), self.limit(account)
        if entries == before:
            return
        self._leases[account] = entries
        total, total_before = sum(entries.values()), sum(before.values())
        self._promises.hold(
            "the ledger keeps to the limit",
            total <= max(limit, limit_before, total_before) or self._follow(entries, before),
            f"{account}: {total} leased after {total_before}, the limit is {limit}",
        )
        if total <= limit:
            self._caps[account] = limit
        for workflow, most in self._workflow_limits.items():
            own = sum(n for key, n in entries.items() if key.rsplit("/", 1)[0] == workflow)
            if most and workflow.startswith(f"{account}/") and own <= most:
                self._workflow_caps[workflow] = most
        self._check_holders(account)

    def _follow(self, entries: dict[str, int], before: dict[str, int]) -> bool:
        """Whether no entry was raised further than to what its holder said that it holds."""
        return all(
            entry <= max(before.get(key, 0), self._told.get((key, *self._calls[key]), 0))
            for key, entry in entries.items()
        )

    def _check_holders(self, account: str) -> None:
        """No SousChef's instances run beyond what the ledger says that it may hold."""
        entries = dict(self._leases.get(account, {}))
        running, old = self._running_of(account), old_key(account)
        for shard, targets in self._old_targets.items():
            plane, target = targets.get(old, ("", 0))
            if plane == "v1" or (plane == "moving" and old not in entries):
                if self._carried[old]:
                    self._carried[old] = min(self._carried[old], self._held(shard, old))
                entries[old] = max(target, self._carried[old])
        over = [
            f"{souschef}: {count} run, {entries.get(souschef, 0)} are leased"
            for souschef, count in sorted(running.items())
            if count > entries.get(souschef, 0)
        ]
        self._promises.hold("running <= ledger", not over, *over)

    def _held(self, shard: str, souschef: str) -> int:
        """How many may use a slot by a SousChef's rows; grants may be on their way."""
        held = self.rows(shard, "SELECT entity FROM souschef_held")
        return sum(key == souschef for (key,) in held)

    def _running_of(self, account: str) -> Counter[str]:
        """How many of an account's instances run, by SousChef."""
        return Counter(
            souschef
            for keys in self._running.values()
            for key, souschef in keys.items()
            if key.startswith(f"{account}/")
        )

    # --- at the end -------------------------------------------------------------------------

    def left_overs(self, shards: list[str]) -> list[str]:
        """What is held, owed or due."""
        return [
            f"{shard}: {what}: {rows[:5]}"
            for shard in shards
            for what, sql in _LEFT_OVERS
            if (rows := self.rows(shard, sql))
        ]

    def check_sealed(self, shards: list[str]) -> None:
        """What one account keeps has gone through its codec."""
        for shard in shards:
            for table, column in _SEALED:
                rows = self.rows(shard, f"SELECT entity, {column} FROM {table}")
                bare = [
                    entity
                    for entity, kept in rows
                    if entity.startswith(f"{SEALED_ACCOUNT}/") and not kept.startswith(HEAD)
                ]
                if rows:
                    told = (shard, table, *bare[:5])
                    self._promises.hold("payloads go through the codec", not bare, *told)

    def check_quiet(self, shards: list[str]) -> None:
        """Everything has ended: nothing is held, owed or due any more."""
        if unseen := self._kept.unseen():
            raise RuntimeError(f"changed while nobody looked: {unseen}")
        left = self.left_overs(shards)
        self._promises.hold("nothing is left when all has ended", not left, *left)


def _whose(run: str) -> tuple[str, str]:
    """How keys of a run's account begin, and the instance's id (`account/workflow/id#create`)."""
    account, _, rest = run.split("/", 2)
    return f"{account}/", rest.rsplit("#", 1)[0]


def souschef_of(key: str, uuid: str, number: int) -> str:
    """The key of the SousChef that an instance (`account/uuid/id`) reports to."""
    account = key.split("/", 1)[0]
    return old_key(account) if number < 0 else f"{account}/{uuid}/{number}"


_SOUSCHEF = ("souschef_state", "souschef_parked", "souschef_held", "souschef_order")
_SEALED = (("instances", "blob"), ("steps", "blob"), ("payloads", "body"), ("events", "payload"))
_LEFT_OVERS = (
    ("instances that run", "SELECT entity FROM instances WHERE active = 1"),
    ("tombstones", "SELECT entity FROM tombstones"),
    ("messages in the outbox", "SELECT * FROM outbox"),
    ("slots held", "SELECT entity, key FROM souschef_held"),
    ("instances parked at a SousChef", "SELECT entity, key, state FROM souschef_parked"),
    ("SousChefs that count live ones", "SELECT entity, live FROM souschef_state WHERE live > 0"),
    ("SousChefs in disorder", "SELECT entity FROM souschef_state WHERE partial"),
    ("leases", "SELECT souschef, target, ledger FROM gatekeeper_leases WHERE ledger > 0"),
    ("alarms of users' entities", "SELECT key, due_ms FROM alarms WHERE kind = 'Till'"),
    (
        "alarms of instances",  # that its retention ends in days is due to nobody yet
        "SELECT key, due_ms FROM alarms WHERE kind = 'Engine' AND due_ms < 1700050000000",
    ),
)
