"""Looks at the stores and files of a stopped data directory, and mends them.

Looking opens stores read-only. Mending is one transaction for each store, which also raises its
epoch, then files; it may be killed at any point and begun again. The caller holds the directory's
lock all the while.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..engines.archive import is_code_hash
from ..engines.bundle_store import BUNDLES_FOLDER, remove_files
from ..engines.ports import ENGINE_KIND, SOUSCHEF_KIND, souschef_key
from ..gatekeeper.messages import CLEARING_KIND, GATEKEEPER_KIND
from ..runtime import limits
from ..runtime.chain_sqlite import look
from ..runtime.datadir import BLOBS_FOLDER, SHARDS_FOLDER, store_path
from ..runtime.ids import EntityRef, Placement, split_engine_key
from ..runtime.pages_sqlite import changing
from ..runtime.schema_sqlite import APPLICATION_ID, STORE_FORMAT, connect_reader
from .doctor import Change, Finding
from .first_token import MARK
from .shapes import iso

_EPOCH_SHIFT = 40  # an outbox sequence is (epoch, counter)
_OPENINGS_MAX = 3
_OVERDUE_MS = 60_000
_FAILURES_MAX = 3
_FINISHED = frozenset({"complete", "errored", "terminated"})
_SET_ALARM = (
    "INSERT INTO alarms (kind, key, due_ms, retries) VALUES (?, ?, ?, 0) "
    "ON CONFLICT (kind, key) DO UPDATE SET due_ms = min(due_ms, excluded.due_ms)"
)
_PARTS = ("steps", "payloads", "events", "status_notes", "blobs", "requests", "children")
"""Tables whose rows belong to an instance."""


class Survey:
    """Everything there is to see of a directory.

    Args:
        folder: the directory.
        placement: which shards it has.
        now_ms: the time of day.
    """

    def __init__(self, folder: Path, placement: Placement, now_ms: int) -> None:
        self._folder = folder
        self._placement = placement
        self._now_ms = now_ms
        self._stores: dict[str, sqlite3.Connection] = {}

    def findings(self) -> list[Finding]:
        """All faults. If a store can't be read, only those of stores."""
        try:
            found = [*self._open()]
            if not found:
                for shard in self._placement.data_names():
                    found += self._data(shard)
                for shard in self._control():
                    found += self._souschefs(shard)
                    found += self._clearings(shard)
                    found += self._leases(shard)
                    found += self._unborn(shard)
                    found += self._tokens(shard)
                for shard in self._placement.names():
                    found += self._losses(shard)
                    found += self._alarms(shard)
                    found += self._outbox(shard)
                found += self._epochs()
                found += self._bundles()
            return [*found, *self._files()]
        finally:
            for store in self._stores.values():
                store.close()
            self._stores.clear()

    # --- stores -----------------------------------------------------------------------------

    def _control(self) -> list[str]:
        data = set(self._placement.data_names())
        return [name for name in self._placement.names() if name not in data]

    def _open(self) -> Iterator[Finding]:
        for shard in self._placement.names():
            path = store_path(self._folder, shard)
            if not path.exists() or path.stat().st_size == 0:
                yield Finding("store.missing", str(path))
                continue
            try:
                store = connect_reader(path)
                self._stores[shard] = store
                yield from self._check_store(shard, path, store)
            except sqlite3.DatabaseError as error:
                yield Finding("store.damaged", str(path), str(error))

    def _check_store(self, shard: str, path: Path, store: sqlite3.Connection) -> Iterator[Finding]:
        if store.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            yield Finding("store.foreign", str(path), "it is no toque store")
            return
        number, name = store.execute("SELECT format, name FROM shard").fetchone()
        if 0 < number < STORE_FORMAT and name == shard:
            yield Finding("format.older", str(path), f"format {number}")
            return
        if (number, name) != (STORE_FORMAT, shard):
            yield Finding("store.foreign", str(path), f"format {number}, shard {name!r}")
            return
        told = [row[0] for row in store.execute("PRAGMA integrity_check(5)")]
        if told != ["ok"]:
            yield Finding("store.damaged", str(path), "; ".join(map(str, told))[:500])
            return
        fault = look(path)
        if fault is not None:
            yield Finding(
                "store.damaged" if fault.is_damage else "store.stale", str(path), fault.why
            )

    def _rows(self, shard: str, sql: str, params: tuple[Any, ...] = ()) -> list[Any]:
        return self._stores[shard].execute(sql, params).fetchall()

    def _has(self, shard: str, table: str) -> bool:
        """Whether the shard has been opened since there is that table."""
        sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self._one(shard, sql, (table,)) is not None

    def _one(self, shard: str, sql: str, params: tuple[Any, ...]) -> Any:
        return self._stores[shard].execute(sql, params).fetchone()

    # --- instances --------------------------------------------------------------------------

    def _data(self, shard: str) -> Iterator[Finding]:
        no_alarm = (
            f"NOT EXISTS (SELECT 1 FROM alarms a WHERE a.kind = '{ENGINE_KIND}' "
            "AND a.key = i.entity)"
        )
        for key, status, number in self._rows(
            shard, f"SELECT entity, status, souschef FROM instances i WHERE {no_alarm}"
        ):
            yield from self._without_alarm(shard, key, status, number)
        undone = (
            f"SELECT entity FROM tombstones i WHERE {no_alarm} AND NOT EXISTS "
            "(SELECT 1 FROM instances j WHERE j.entity = i.entity)"
        )
        for (key,) in self._rows(shard, undone):
            change = Change(shard, _SET_ALARM, (ENGINE_KIND, key, self._now_ms))
            yield Finding("alarm.missing", f"{shard} {key}", "it is being deleted", (change,))
        there = (
            "NOT EXISTS (SELECT 1 FROM instances i WHERE i.entity = t.{0}) "
            "AND NOT EXISTS (SELECT 1 FROM tombstones d WHERE d.entity = t.{0})"
        )
        for table in _PARTS:
            if not self._has(shard, table):
                continue
            gone = there.format("entity")
            for key, count in self._rows(
                shard, f"SELECT entity, count(*) FROM {table} t WHERE {gone} GROUP BY entity"
            ):
                change = Change(shard, f"DELETE FROM {table} WHERE entity = ?", (key,))
                yield Finding("rows.orphan", f"{shard} {table} {key}", f"{count} rows", (change,))
        gone = there.format("key")
        for (key,) in self._rows(
            shard, f"SELECT key FROM alarms t WHERE kind = '{ENGINE_KIND}' AND {gone}"
        ):
            change = Change(shard, "DELETE FROM alarms WHERE kind = ? AND key = ?",
                            (ENGINE_KIND, key))  # fmt: skip
            yield Finding("alarm.orphan", f"{shard} {key}", "", (change,))
        yield from self._blobs(shard)

    def _without_alarm(self, shard: str, key: str, status: str, number: int) -> Iterator[Finding]:
        """An instance that no alarm will wake: fine if its SousChef knows it, or no time is due."""
        again = (Change(shard, _SET_ALARM, (ENGINE_KIND, key, self._now_ms)),)
        chef = souschef_key(key, split_engine_key(key)[2], number)
        place = f"{shard} {key}"
        control = self._placement.shard_of(EntityRef(SOUSCHEF_KIND, chef))
        if status == "queued":
            for table in ("souschef_held", "souschef_parked"):
                sql = f"SELECT 1 FROM {table} WHERE entity = ? AND key = ?"
                if self._one(control, sql, (chef, key)):
                    return
            yield Finding("queue.unknown", place, f"SousChef {chef}", again)
        elif status == "waiting":
            sql = "SELECT wake_ms FROM souschef_parked WHERE entity = ? AND key = ?"
            row = self._one(control, sql, (chef, key))
            if row is None:
                yield Finding("alarm.missing", place, "its SousChef does not know it", again)
            elif row[0]:
                change = Change(shard, _SET_ALARM, (ENGINE_KIND, key, row[0]))
                yield Finding("alarm.missing", place, f"due at {row[0]} ms", (change,))
        elif status in _FINISHED:
            yield Finding("alarm.missing", place, f"{status}; it would be kept for ever", again)

    def _blobs(self, shard: str) -> Iterator[Finding]:
        folder = self._folder / BLOBS_FOLDER / shard
        named = {row[0] for row in self._rows(shard, "SELECT DISTINCT sha256 FROM blobs")}
        there = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
        for name in sorted(named - set(there)):
            yield Finding("blob.missing", str(folder / name))
        for name in sorted(set(there) - named):
            if not name.endswith(".tmp"):
                yield Finding("blob.orphan", str(there[name]), "", (Change(str(there[name])),))

    # --- control ----------------------------------------------------------------------------

    def _souschefs(self, shard: str) -> Iterator[Finding]:
        for table in ("souschef_held", "souschef_parked"):
            sql = f"SELECT entity, key, shard FROM {table}"
            for chef, key, home in self._stores[shard].execute(sql):  # millions may be parked
                row = self._engine(home, key)
                if row is not None and (row[0] not in _FINISHED or row[1]):
                    continue
                changes = [
                    Change(shard, f"DELETE FROM {each} WHERE entity = ? AND key = ?", (chef, key))
                    for each in (table, "souschef_order")
                ]
                count = "UPDATE souschef_state SET partial = 1 WHERE entity = ?"
                changes.append(Change(shard, count, (chef,)))
                what = "not there" if row is None else row[0]
                where = table.removeprefix("souschef_")
                yield Finding("queue.gone", f"{shard} {chef} {key}", f"{where}; it is {what}",
                              tuple(changes))  # fmt: skip

    def _clearings(self, shard: str) -> Iterator[Finding]:
        """A clearing is nothing but its row and its alarm."""
        for key, how in self._rows(
            shard,
            "SELECT entity, how FROM clearings c WHERE NOT EXISTS (SELECT 1 FROM alarms a WHERE "
            f"a.kind = '{CLEARING_KIND}' AND a.key = c.entity)",
        ):
            change = Change(shard, _SET_ALARM, (CLEARING_KIND, key, self._now_ms))
            detail = f"its instances are to {'be deleted' if how == 'delete' else 'end'}"
            yield Finding("alarm.missing", f"{shard} {key}", detail, (change,))

    def _engine(self, home: str, key: str) -> tuple[str, bool] | None:
        """Status of an instance, and whether it will report by itself; None: it is not there."""
        if home not in self._stores:
            return None
        alarm = self._one(
            home, "SELECT due_ms FROM alarms WHERE kind = ? AND key = ?", (ENGINE_KIND, key)
        )
        soon = alarm is not None and alarm[0] <= self._now_ms + limits.ANNOUNCE_ALARM_MS
        row = self._one(home, "SELECT status FROM instances WHERE entity = ?", (key,))
        if row is None:
            gone = self._one(home, "SELECT 1 FROM tombstones WHERE entity = ?", (key,))
            return ("terminated", soon) if gone else None
        return row[0], soon

    def _leases(self, shard: str) -> Iterator[Finding]:
        sql = "SELECT entity, souschef, ledger, gone FROM gatekeeper_leases"
        known = {chef: (ledger, gone) for _, chef, ledger, gone in self._rows(shard, sql)}
        for account, chef, ledger, gone in self._rows(shard, sql):
            if gone or not ledger:
                continue
            control = self._placement.shard_of(EntityRef(SOUSCHEF_KIND, chef))
            state = "SELECT live, leased FROM souschef_state WHERE entity = ?"
            held = "SELECT 1 FROM souschef_held WHERE entity = ?"
            row = self._one(control, state, (chef,))
            if (row is None or row == (0, 0)) and not self._one(control, held, (chef,)):
                change = Change(shard, "DELETE FROM gatekeeper_leases WHERE entity = ? AND "
                                "souschef = ?", (account, chef))  # fmt: skip
                yield Finding("lease.orphan", f"{shard} {chef}", f"{ledger} slots", (change,))
        for control in self._control():
            for chef, held in self._rows(
                control, "SELECT entity, count(*) FROM souschef_held GROUP BY entity"
            ):
                account = chef.split("/", 1)[0]
                if chef in self._on_v1(control):  # it leases its slots itself
                    continue
                if self._placement.shard_of(EntityRef(GATEKEEPER_KIND, account)) != shard:
                    continue
                ledger, _ = known.get(chef, (0, 0))
                if ledger < held:
                    change = Change(
                        shard,
                        "INSERT INTO gatekeeper_leases (entity, souschef, version, target, ledger, "
                        "incarnation, seq, gone) VALUES (?, ?, 0, 0, ?, 0, 0, 0) ON CONFLICT "
                        "(entity, souschef) DO UPDATE SET ledger = excluded.ledger, gone = 0",
                        (account, chef, held),
                    )
                    detail = f"{held} in use, {ledger} written down"
                    yield Finding("lease.short", f"{shard} {chef}", detail, (change,))

    def _on_v1(self, shard: str) -> set[str]:
        """The AccountOlds of accounts that are on V1, or on their way from it."""
        if not self._has(shard, "account_old_planes"):
            return set()
        sql = "SELECT entity FROM account_old_planes WHERE plane != 'v2'"
        return {row[0] for row in self._rows(shard, sql)}

    def _unborn(self, shard: str) -> Iterator[Finding]:
        """Instances that V1 took and whose Engines it did not make."""
        if self._has(shard, "account_old_unborn"):
            sql = "SELECT entity, count(*) FROM account_old_unborn GROUP BY entity"
            for entity, count in self._rows(shard, sql):
                account = entity.split("/", 1)[0]
                yield Finding("instance.unborn", f"{shard} {account}", f"{count} instances")

    def _tokens(self, shard: str) -> Iterator[Finding]:
        for account, count in self._rows(
            shard,
            "SELECT account, count(*) FROM identity_tokens t WHERE account != '*' AND NOT EXISTS "
            "(SELECT 1 FROM identity_accounts a WHERE a.entity = t.entity AND a.id = t.account) "
            "GROUP BY account",
        ):
            yield Finding("token.orphan", f"{shard} {account}", f"{count} tokens")
        mark = self._folder / MARK
        if mark.exists() and self._rows(shard, "SELECT 1 FROM identity LIMIT 1"):
            valid = (
                "SELECT 1 FROM identity_tokens WHERE account = '*' AND scope = 'admin' AND "
                "revoked_ms = 0 AND (expires_ms = 0 OR expires_ms > ?) LIMIT 1"
            )
            if not self._rows(shard, valid, (self._now_ms,)):
                yield Finding("token.none", shard, "", (Change(str(mark)),))

    def _losses(self, shard: str) -> Iterator[Finding]:
        for at_ms, what in self._rows(shard, "SELECT at_ms, what FROM shard_losses"):
            yield Finding("store.loss", shard, f"{iso(at_ms)}: {what}")

    def _alarms(self, shard: str) -> Iterator[Finding]:
        """Alarms that wait for a start, and those whose handlers fail."""
        late_ms = self._now_ms - _OVERDUE_MS
        for kind, count, oldest_ms in self._rows(
            shard,
            "SELECT kind, count(*), min(due_ms) FROM alarms WHERE due_ms < ? GROUP BY kind",
            (late_ms,),
        ):
            since_s = (self._now_ms - oldest_ms) // 1_000
            detail = f"{count} alarms, the oldest due {since_s} s ago ({iso(oldest_ms)})"
            yield Finding("alarm.overdue", f"{shard} {kind}", detail)
        for kind, key, due_ms, retries in self._rows(
            shard,
            "SELECT kind, key, due_ms, retries FROM alarms WHERE retries >= ? "
            "ORDER BY retries DESC LIMIT ?",
            (_FAILURES_MAX, limits.SCAN_ROWS_MAX),
        ):
            detail = f"{retries} times; it is tried again at {iso(due_ms)}"
            yield Finding("alarm.failing", f"{shard} {kind}({key})", detail)

    def _outbox(self, shard: str) -> Iterator[Finding]:
        (epoch,) = self._one(shard, "SELECT epoch FROM shard", ())
        oldest = (epoch - _OPENINGS_MAX) << _EPOCH_SHIFT
        for kind, key, method, count, seq, sender_kind, sender in self._rows(
            shard,
            "SELECT dest_kind, dest_key, method, count(*), min(seq), sender_kind, sender_key "
            "FROM outbox WHERE seq < ? GROUP BY dest_kind, dest_key, method",
            (max(0, oldest),),
        ):
            openings = epoch - (seq >> _EPOCH_SHIFT)
            detail = (
                f"{count} {'message' if count == 1 else 'messages'}; the oldest, of "
                f"{sender_kind}({sender}), was written {openings} openings of {shard} ago"
            )
            yield Finding("outbox.stuck", f"{shard} {kind}({key}).{method}", detail)

    def _epochs(self) -> Iterator[Finding]:
        heard: dict[str, int] = defaultdict(int)
        for shard in self._placement.data_names():
            for chef, epoch in self._rows(shard, "SELECT souschef, epoch FROM souschef_epochs"):
                control = self._placement.shard_of(EntityRef(SOUSCHEF_KIND, chef))
                heard[control] = max(heard[control], epoch)
        for control, epoch in sorted(heard.items()):
            (own,) = self._one(control, "SELECT epoch FROM shard", ())
            if own < epoch:
                change = Change(control, "UPDATE shard SET epoch = max(epoch, ?)", (epoch,))
                detail = f"its epoch is {own}; {epoch} was heard of"
                yield Finding("epoch.behind", control, detail, (change,))

    # --- files ------------------------------------------------------------------------------

    def _bundles(self) -> Iterator[Finding]:
        """Code that is missed, and code that nothing names."""
        folder = self._folder / BUNDLES_FOLDER
        scripts = self._named("account_scripts", "code_hash")
        for code_hash in sorted(scripts):
            if not (folder / f"{code_hash}.zip").is_file():
                yield Finding("bundle.missing", str(folder / f"{code_hash}.zip"))
        versions = self._named("account_versions", "version_id")
        used = {
            row[0]
            for shard in self._placement.data_names()
            for row in self._rows(shard, "SELECT DISTINCT version_id FROM instances")
        } | self._versions_of_v1()
        if used - versions or not folder.is_dir():
            return  # which code those instances need is not known here
        newest = scripts | self._named("account_workflows", "code_hash")
        known = newest | self._named("account_versions", "code_hash")
        needed = newest | self._code_of(used)
        stored = defaultdict(list)
        for path in sorted(folder.iterdir()):
            code_hash = path.name.split(".", 1)[0]
            if is_code_hash(code_hash) and path.suffix != ".tmp":
                stored[code_hash].append(path)
        for code_hash, paths in stored.items():
            changes = tuple(Change(str(path)) for path in paths)
            if code_hash not in known:
                yield Finding("bundle.orphan", str(folder / code_hash), "", changes)
            elif code_hash not in needed and self._is_old(paths):
                yield Finding("bundle.unused", str(folder / code_hash), "", changes)

    def _versions_of_v1(self) -> set[str]:
        """Versions of instances that V1 keeps, which may have no Engine yet."""
        sql = "SELECT DISTINCT version_id FROM account_old_instances"
        return {
            row[0]
            for shard in self._control()
            if self._has(shard, "account_old_instances")
            for row in self._rows(shard, sql)
        }

    def _code_of(self, versions: set[str]) -> set[str]:
        """The code of some versions: of those that instances have, ended ones too, since they may
        be restarted."""
        sql = "SELECT version_id, code_hash FROM account_versions"
        return {
            code_hash
            for shard in self._control()
            for version_id, code_hash in self._rows(shard, sql)
            if version_id in versions
        }

    def _is_old(self, paths: Iterable[Path]) -> bool:
        newest_ms = max(path.stat().st_mtime for path in paths) * 1_000
        return self._now_ms - newest_ms > limits.BUNDLE_LINGER_MS

    def _named(self, table: str, column: str) -> set[str]:
        sql = f"SELECT DISTINCT {column} FROM {table}"
        return {row[0] for shard in self._control() for row in self._rows(shard, sql)}

    def _files(self) -> Iterator[Finding]:
        """What interrupted writes have left. Unpacked code may hold anything: it is not ours."""
        for folder in (
            self._folder,
            self._folder / BUNDLES_FOLDER,
            self._folder / SHARDS_FOLDER,
        ):
            yield from self._passing(folder.glob("*.tmp"))
        yield from self._passing((self._folder / BLOBS_FOLDER).rglob("*.tmp"))

    def _passing(self, paths: Iterable[Path]) -> Iterator[Finding]:
        for path in sorted(paths):
            if not path.is_symlink():
                yield Finding("file.orphan", str(path), "", (Change(str(path)),))


def mend(folder: Path, findings: Iterable[Finding]) -> None:
    """Make the changes. Under the directory's lock."""
    by_shard: dict[str, list[Change]] = defaultdict(list)
    files = []
    for finding in findings:
        for change in finding.changes:
            if change.sql:
                by_shard[change.place].append(change)
            else:
                files.append(Path(change.place))
    for shard, changes in sorted(by_shard.items()):
        with changing(store_path(folder, shard)) as store:
            store.execute("BEGIN IMMEDIATE")
            for change in changes:
                store.execute(change.sql, change.params)
            store.execute("UPDATE shard SET epoch = epoch + 1")
            store.execute("COMMIT")
    for path in files:
        if path.is_dir() and not path.is_symlink():
            remove_files(path)
        else:
            path.unlink(missing_ok=True)
