"""Group commit: gathers the rows that all entities write into batches; no clock, thread or SQL.

There are at most two batches: the *open* one, which takes writes, and the one *in flight*, which
a writer commits. Together they overlay the committed rows for reads. In a batch the last write of
a key wins, so a row that changes twice is written once. Batches are numbered from 1.

Rows of one owner stand or fall together. If an owner's part of the batch in flight could not be
stored, what it has written since (which builds on it) is dropped from the open batch as well.
Owners that wrote the same row in one batch share their fate. Past the bounds of a batch a write
is refused with `Overloaded` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

from . import limits
from .errors import InvalidArgument, Overloaded, PayloadTooLarge
from .store import Durable
from .tables import Change, Key, Row, Table

ROW_OVERHEAD_BYTES = 100
"""What a pending row is taken to cost besides its texts and blobs."""

Entry = tuple[Any, Row | None, int]
"""Owner, row (None: deleted), size in bytes."""
Groups = dict[Any, dict[Key, Entry]]
"""Pending entries of one table by scope, then by key."""
Told = list[tuple[Durable, BaseException | None]]
"""Callbacks to run, in order, each with what it is told."""
Failures = dict[Any, BaseException]
"""Errors by owner."""

_PYTHON_TYPES = {"TEXT": str, "INTEGER": int, "BLOB": bytes, "REAL": float}


class _EveryOwner:
    """Stands for all owners of a batch: told the first error of any of them."""

    def __repr__(self) -> str:
        return "EVERY_OWNER"


EVERY_OWNER = _EveryOwner()


class Shape:
    """What the hot paths need to know of a table, looked up once."""

    __slots__ = (
        "group_of",
        "key_kinds",
        "key_size",
        "key_types",
        "lengthy",
        "name",
        "scope",
        "width",
    )

    def __init__(self, table: Table) -> None:
        self.name = table.name
        self.width = len(table.columns)
        self.key_size = table.key_size
        self.scope = table.scope_size
        self.key_kinds = tuple(kind for _, kind in table.columns[: table.key_size])
        for kind in self.key_kinds:
            if kind not in _PYTHON_TYPES:
                raise ValueError(f"table {table.name}: a key column can't have type {kind!r}")
        self.key_types = tuple(_PYTHON_TYPES[kind] for kind in self.key_kinds)
        part = 0 if table.scope_size == 1 else slice(0, table.scope_size)
        self.group_of: Callable[[Key], Any] = itemgetter(part)
        sized = [n for n, (_, kind) in enumerate(table.columns) if kind[:4] in ("TEXT", "BLOB")]
        few = slice(sized[0], sized[0] + 1) if sized else slice(0)
        self.lengthy: Callable[[Row], Any] = itemgetter(*sized) if sized[1:] else itemgetter(few)

    def size_of(self, row: Row) -> int:
        """Bytes that a row is taken to cost."""
        try:
            return sum(map(len, self.lengthy(row)), ROW_OVERHEAD_BYTES)
        except TypeError:  # None, or what the commit refuses
            sized = [value for value in self.lengthy(row) if hasattr(value, "__len__")]
            return sum(map(len, sized), ROW_OVERHEAD_BYTES)

    def key_of(self, row: Row) -> Key:
        """The key of a row; refuses a row that is none of this table."""
        if len(row) != self.width:
            raise InvalidArgument(
                f"table {self.name}: a row has {self.width} columns, not {len(row)}."
            )
        key = row[: self.key_size]
        if tuple(map(type, key)) != self.key_types:
            self.check_key(key)
        return key

    def check_key(self, key: Key) -> None:
        """Refuse a key (or prefix) whose values have not the columns' types."""
        for value, kind, expected in zip(key, self.key_kinds, self.key_types, strict=False):
            fits = isinstance(value, expected) or (expected is float and isinstance(value, int))
            if not fits:
                raise InvalidArgument(
                    f"table {self.name}: a key column of type {kind} can't hold "
                    f"{type(value).__name__}."
                )

    def check_prefix(self, prefix: Key) -> None:
        """Refuse what no key can begin with."""
        if len(prefix) > self.key_size:
            raise InvalidArgument(f"table {self.name}: a key has {self.key_size} columns.")
        self.check_key(prefix)

    def check_whole(self, key: Key) -> None:
        """Refuse what is no whole key."""
        if len(key) != self.key_size:
            raise InvalidArgument(
                f"table {self.name}: a key has {self.key_size} columns, not {len(key)}."
            )
        self.check_key(key)


class Write(NamedTuple):
    """One row to write: `row` None deletes the key."""

    table: str
    key: Key
    row: Row | None


class Batch:
    """Rows that are committed together."""

    __slots__ = ("bytes", "links", "rows", "seq", "tables", "waiters")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.tables: dict[str, Groups] = {}
        self.rows = 0
        self.bytes = 0
        self.waiters: list[tuple[Durable, object]] = []
        self.links: dict[tuple[Any, Any], None] = {}  # pairs of owners that wrote the same row

    def changes(self) -> Iterator[tuple[str, list[Row], list[Key]]]:
        """Per table: the rows to upsert and the keys to delete."""
        for name, groups in self.tables.items():
            puts: list[Row] = []
            deletes: list[Key] = []
            for group in groups.values():
                for key, entry in group.items():
                    if entry[1] is None:
                        deletes.append(key)
                    else:
                        puts.append(entry[1])
            yield name, puts, deletes

    def related(self, owner: Hashable) -> list[Any]:
        """The owner and all that share its fate in this batch, always in the same order."""
        found = {owner: None}
        todo = [owner] if self.links else []
        while todo:
            known = todo.pop()
            for pair in self.links:
                if known in pair:
                    todo.extend(other for other in pair if other not in found)
                    found.update(dict.fromkeys(pair))
        return list(found)

    def parts(self) -> list[tuple[list[Any], list[Write]]]:
        """The batch cut into parts that stand or fall each alone: owners and their writes."""
        by_owner: dict[Any, tuple[list[Any], list[Write]]] = {}
        for name, groups in self.tables.items():
            for group in groups.values():
                for key, (owner, row, _size) in group.items():
                    part = by_owner.get(owner)
                    if part is None:
                        part = (self.related(owner), [])
                        by_owner.update(dict.fromkeys(part[0], part))
                    part[1].append(Write(name, key, row))
        return list({id(part): part for part in by_owner.values()}.values())

    def drop(self, owners: set[Any]) -> None:
        """Take all rows of some owners out."""
        for groups in self.tables.values():
            for group in groups.values():
                gone = [key for key, entry in group.items() if entry[0] in owners]
                for key in gone:
                    self.rows -= 1
                    self.bytes -= group.pop(key)[2]


class GroupCommit:
    """The batches of one store.

    Args:
        tables: the declared tables.
        on_first_write: called when the open batch gets its first write.
        rows_max, bytes_max: the bounds of a batch.
    """

    def __init__(
        self,
        tables: list[Table],
        on_first_write: Callable[[], None],
        *,
        rows_max: int = limits.BATCH_ROWS_MAX,
        bytes_max: int = limits.BATCH_BYTES_MAX,
    ) -> None:
        self._shapes = {table.name: Shape(table) for table in tables}
        self._on_first_write = on_first_write
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._open = Batch(1)
        self._written = False  # whether the open batch has ever had a write
        self._failed: dict[Any, tuple[int, BaseException]] = {}  # owners whose part failed
        self.bare: set[str] = set()
        """Tables that are empty, and have been since the store was opened: not worth a read."""
        self.in_flight: Batch | None = None
        self.durable_seq = 0
        self.write_seq = 0
        self.broken: BaseException | None = None

    def shape(self, table: Table) -> Shape:
        """What is known of a declared table."""
        try:
            return self._shapes[table.name]
        except KeyError:
            raise InvalidArgument(f"table {table.name} is not declared in this store.") from None

    @property
    def open_rows(self) -> int:
        """How many rows the open batch holds."""
        return self._open.rows

    @property
    def has_open(self) -> bool:
        """Whether the open batch waits to be taken."""
        return self._written

    # --- writes ---

    def put(self, owner: Hashable, table: Table, row: Row) -> int:
        """See `Store.put`."""
        shape = self._shapes.get(table.name) or self.shape(table)
        return self._write(owner, shape, shape.key_of(row), row, shape.size_of(row))

    def write_all(self, owner: Hashable, changes: Iterable[Change]) -> int:
        """See `Store.write_all`."""
        if self.broken is not None:
            raise self.broken
        checked = []
        size = 0
        shapes = self._shapes
        for table, key, row in changes:
            shape = shapes.get(table.name) or self.shape(table)
            cost = ROW_OVERHEAD_BYTES
            if row is not None:
                if len(row) != shape.width:
                    shape.key_of(row)  # refuses it
                cost = shape.size_of(row)
            if tuple(map(type, key)) != shape.key_types:
                shape.check_whole(key)
            size += cost
            checked.append((shape, key, row, cost))
        batch = self._open
        if not checked:
            return self.write_seq
        if batch.rows + len(checked) > self._rows_max or batch.bytes + size > self._bytes_max:
            self._refuse(size)
        for shape, key, row, cost in checked:
            self._write(owner, shape, key, row, cost)
        return batch.seq

    def delete(self, owner: Hashable, table: Table, key: Key) -> int:
        """See `Store.delete`."""
        shape = self._shapes.get(table.name) or self.shape(table)
        if tuple(map(type, key)) != shape.key_types:
            shape.check_whole(key)
        return self._write(owner, shape, key, None, ROW_OVERHEAD_BYTES)

    def has_room(self, rows: int, size: int) -> bool:
        """See `Store.has_room`."""
        batch = self._open
        return batch.rows + rows <= self._rows_max and (
            batch.bytes + size + rows * ROW_OVERHEAD_BYTES <= self._bytes_max
        )

    def _write(self, owner: Hashable, shape: Shape, key: Key, row: Row | None, size: int) -> int:
        if self.broken is not None:
            raise self.broken
        batch = self._open
        groups = batch.tables.get(shape.name)
        if groups is None:
            groups = batch.tables[shape.name] = {}
            self.bare.discard(shape.name)
        scope = shape.group_of(key)
        group = groups.get(scope)
        previous = None if group is None else group.get(key)
        if previous is None:
            if batch.rows >= self._rows_max or batch.bytes + size > self._bytes_max:
                self._refuse(size)
            batch.rows += 1
            batch.bytes += size
        else:
            if batch.bytes + size - previous[2] > self._bytes_max:
                self._refuse(size)
            batch.bytes += size - previous[2]
            if previous[0] is not owner and previous[0] != owner:
                batch.links[previous[0], owner] = None
        if group is None:
            group = groups[scope] = {}
        group[key] = (owner, row, size)
        if not self._written:
            self._written = True
            self.write_seq = batch.seq
            self._on_first_write()
        return batch.seq

    def _refuse(self, size: int) -> None:
        if size > self._bytes_max:
            raise PayloadTooLarge(
                f"a row takes {size} bytes; a batch holds at most {self._bytes_max}."
            )
        raise Overloaded("the shard's store is behind: its next batch is full.")

    # --- reads ---

    def find(self, table: Table, key: Key) -> Entry | None:
        """The pending entry of a key, if there is one."""
        shape = self._shapes.get(table.name) or self.shape(table)
        if len(key) != shape.key_size:
            shape.check_whole(key)
        groups = self._open.tables.get(shape.name)
        if groups:
            group = groups.get(shape.group_of(key))
            if group:
                entry = group.get(key)
                if entry is not None:
                    return entry
        if self.in_flight is not None:
            groups = self.in_flight.tables.get(shape.name)
            if groups:
                group = groups.get(shape.group_of(key))
                if group:
                    return group.get(key)
        return None

    def matching(self, table: Table, prefix: Key) -> dict[Key, Row | None]:
        """All pending rows whose key begins with a prefix (None: deleted), newest state."""
        shape = self.shape(table)
        found: dict[Key, Row | None] = {}
        size = len(prefix)
        for batch in (self.in_flight, self._open):
            groups = None if batch is None else batch.tables.get(shape.name)
            if not groups:
                continue
            if size >= shape.scope:
                group = groups.get(shape.group_of(prefix))
                chosen = [group] if group else []
            else:
                chosen = list(groups.values())
            for group in chosen:
                for key, entry in group.items():
                    if key[:size] == prefix:
                        found[key] = entry[1]
        return found

    # --- batches ---

    def take(self) -> Batch | None:
        """The open batch goes in flight, if it has had a write and none is in flight."""
        if not self._written or self.in_flight is not None or self.broken is not None:
            return None
        batch = self.in_flight = self._open
        self._open = Batch(batch.seq + 1)
        self._written = False
        return batch

    def finish(self, failures: Failures) -> Told:
        """The batch in flight is durable, except for the parts of the owners in `failures`.

        `failures` is extended by owners whose rows in the open batch fall with them.
        """
        batch = self.in_flight
        if batch is None:
            raise RuntimeError("no batch is in flight")
        self.in_flight = None
        self.durable_seq = batch.seq
        if not failures:
            return [(callback, None) for callback, _owner in batch.waiters]
        told = _told(batch.waiters, failures)
        for owner, error in failures.items():
            self._failed.pop(owner, None)
            self._failed[owner] = (batch.seq, error)
        while len(self._failed) > limits.FAILED_OWNERS_KEPT_MAX:
            del self._failed[next(iter(self._failed))]
        for owner, error in list(failures.items()):
            for other in self._open.related(owner):
                failures.setdefault(other, error)
        self._open.drop(set(failures))
        waiters = self._open.waiters
        self._open.waiters = [w for w in waiters if not _concerns(failures, w[1])]
        return told + _told([w for w in waiters if _concerns(failures, w[1])], failures)

    def fail(self, error: BaseException) -> Told:
        """The store is broken: nothing more is taken, everyone who waits is told."""
        waiters = [] if self.in_flight is None else self.in_flight.waiters
        waiters = waiters + self._open.waiters
        self.broken = error
        self.in_flight = None
        self._open = Batch(self._open.seq)
        self._written = False
        return [(callback, error) for callback, _owner in waiters]

    def when_durable(self, seq: int, callback: Durable, owner: object = None) -> None:
        """See `Store.when_durable`."""
        if seq <= self.durable_seq:
            failed = self._failed.get(owner) if self._failed else None
            callback(failed[1] if failed is not None and failed[0] == seq else None)
        elif self.broken is not None:
            callback(self.broken)
        elif self.in_flight is not None and seq <= self.in_flight.seq:
            self.in_flight.waiters.append((callback, owner))
        elif seq == self.write_seq:
            self._open.waiters.append((callback, owner))
        else:
            raise InvalidArgument(f"no write has got batch number {seq} yet.")


def merge(
    committed: list[Row], pending: dict[Key, Row | None], key_size: int, reverse: bool
) -> list[Row]:
    """Committed rows with pending ones laid over them, in key order."""
    rows = [row for row in committed if row[:key_size] not in pending]
    rows.extend(row for row in pending.values() if row is not None)
    rows.sort(key=itemgetter(slice(0, key_size)), reverse=reverse)
    return rows


def _told(waiters: list[tuple[Durable, object]], failures: Failures) -> Told:
    first = next(iter(failures.values()))
    return [
        (callback, first if owner is EVERY_OWNER else failures.get(owner))
        for callback, owner in waiters
    ]


def _concerns(failures: Failures, owner: object) -> bool:
    return owner is EVERY_OWNER or owner in failures
