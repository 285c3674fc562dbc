"""What a shard's SQLite file holds, how it is connected to, and the SQL for each declared table.

Tables have a rowid: with secondary indexes or blobs they write two to six times faster than
`WITHOUT ROWID` tables, whose long keys stand in each index entry and whose rows fill the tree.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from . import limits
from .errors import DataDirFormat
from .tables import Index, Table

STORE_FORMAT = 3
"""The format that this version writes. Upgrades of older ones live above the runtime."""

CHAIN_FORMAT = 2
"""From this format on a store has a chain, and a mark beside it."""

SUMS_FORMAT = 3
"""From this format on there are checksums of its pages beside it."""

APPLICATION_ID = 0x746F7175  # "toqu" in the file's header

_TYPES = ("TEXT", "INTEGER", "BLOB", "REAL")
META = (
    "CREATE TABLE shard ("
    "id INTEGER PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, name TEXT NOT NULL, "
    "epoch INTEGER NOT NULL, commit_seq INTEGER NOT NULL, chain BLOB) STRICT",
    "CREATE TABLE shard_tables (name TEXT PRIMARY KEY, declaration TEXT NOT NULL) STRICT",
    "CREATE TABLE shard_openings (epoch INTEGER PRIMARY KEY, chain BLOB NOT NULL, "
    "after INTEGER NOT NULL) STRICT",
    "CREATE TABLE shard_losses (epoch INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, "
    "what TEXT NOT NULL) STRICT",
)
_META_NAMES = ("shard", "shard_tables", "shard_openings", "shard_losses")
_VARIABLES_MAX = 32_766  # SQLite's bound on parameters of one statement

TABLES_KEPT = 256
"""Of so many tables the statements are kept."""

Synchronous = str
"""FULL (default: survives power loss), NORMAL (survives the process), OFF (simulation only)."""


def connect_writer(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """The connection that writes and checkpoints. It never checkpoints inside a commit."""
    connection = sqlite3.connect(
        path,
        timeout=limits.STORE_BUSY_MAX_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=1024,
    )
    try:
        for pragma in (
            f"synchronous={synchronous}",
            "wal_autocheckpoint=0",
            f"cache_size=-{limits.STORE_CACHE_KIB}",
            # A statement of many rows journals the pages it touches; on disk that costs 4 us a row.
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}").close()
    except BaseException:
        connection.close()
        raise
    return connection


def reader_uri(path: Path) -> str:
    """The address of a read-only connection."""
    return f"{path.absolute().as_uri()}?mode=ro"


def connect_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection, which never checkpoints."""
    connection = sqlite3.connect(
        reader_uri(path),
        uri=True,
        timeout=limits.STORE_BUSY_MAX_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    connection.execute("PRAGMA query_only=1").close()
    return connection


def check_tables(tables: list[Table]) -> None:
    """Refuse declarations that can't be tables of one file."""
    names: set[str] = set(_META_NAMES)
    for table in tables:
        for name in (table.name, *(index.name for index in table.indexes)):
            if name in names or name.startswith("sqlite_"):
                raise ValueError(f"the name {name!r} of a table or index is taken")
            names.add(name)
        for column, kind in table.columns:
            if kind.removesuffix("?") not in _TYPES:
                raise ValueError(f"table {table.name}: column {column} has no type {kind!r}")
        for index in table.indexes:
            if not index.name.isidentifier() or not set(index.columns) <= set(table.column_names):
                raise ValueError(f"table {table.name}: index {index.name} is ill-formed")


def declare(connection: sqlite3.Connection, path: Path, table: Table) -> None:
    """Make the table, or check that the one in the file was declared alike; set its indexes."""
    wanted = json.dumps({"columns": table.columns, "key_size": table.key_size})
    found = connection.execute(
        "SELECT declaration FROM shard_tables WHERE name = ?", (table.name,)
    ).fetchall()
    if not found:
        connection.execute(create_table(table))
        connection.execute("INSERT INTO shard_tables VALUES (?, ?)", (table.name, wanted))
    elif found[0][0] != wanted:
        raise DataDirFormat(
            f"{path}: table {table.name} is recorded as {found[0][0]}, but declared as {wanted}. "
            "Changed columns need a new store format.",
            {"table": table.name},
        )
    have = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql NOTNULL",
        (table.name,),
    ).fetchall()
    want = {index.name: create_index(table, index) for index in table.indexes}
    for index_name, sql in have:
        if want.get(index_name) == sql:
            del want[index_name]
        else:
            connection.execute(f'DROP INDEX "{index_name}"')
    for sql in want.values():
        connection.execute(sql)


def create_table(table: Table) -> str:
    """The statement that makes a table."""
    columns = ", ".join(
        f'"{name}" {kind.removesuffix("?")}{"" if kind.endswith("?") else " NOT NULL"}'
        for name, kind in table.columns
    )
    key = ", ".join(f'"{name}"' for name in table.key_columns)
    return f'CREATE TABLE "{table.name}" ({columns}, PRIMARY KEY ({key})) STRICT'


def create_index(table: Table, index: Index) -> str:
    """The statement that makes an index."""
    columns = ", ".join(f'"{name}"' for name in index.columns)
    where = f" WHERE {index.where}" if index.where else ""
    return f'CREATE INDEX "{index.name}" ON "{table.name}" ({columns}){where}'


@lru_cache(TABLES_KEPT)
def sql_of(table: Table) -> TableSql:
    """The statements over a table. Every shard has the same ones, so they are made once."""
    return TableSql(table)


class TableSql:
    """The statements over one table. Texts are made once, so that SQLite prepares them once."""

    def __init__(self, table: Table) -> None:
        self.key_size = table.key_size
        self._name = f'"{table.name}"'
        self._columns = [f'"{name}"' for name in table.column_names]
        self._keys = self._columns[: table.key_size]
        self._selected = f"SELECT {', '.join(self._columns)} FROM {self._name}"
        self.any = f"SELECT 1 FROM {self._name} LIMIT 1"
        self.get = f"{self._selected} WHERE {self._equal(table.key_size)}"
        self._scans: dict[tuple[int, bool, bool], str] = {}
        self.upserts = {size: self._upsert(size) for size in _sizes(len(self._columns))}
        self.deletes = {size: self._delete(size) for size in _sizes(table.key_size)}

    def _equal(self, size: int) -> str:
        return " AND ".join(f"{column} = ?" for column in self._keys[:size])

    def scan(self, prefix_size: int, beyond: bool, reverse: bool) -> str:
        """Rows by key prefix. Parameters: the prefix, the rest of the key to go beyond, a limit."""
        known = self._scans.get((prefix_size, beyond, reverse))
        if known is not None:
            return known
        rest = self._keys[prefix_size:]
        conditions = [self._equal(prefix_size)] if prefix_size else []
        if beyond:
            marks = ", ".join("?" * len(rest))
            conditions.append(f"({', '.join(rest)}) {'<' if reverse else '>'} ({marks})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        order = ", ".join(f"{column} DESC" if reverse else column for column in self._keys)
        sql = f"{self._selected}{where} ORDER BY {order} LIMIT ?"
        self._scans[prefix_size, beyond, reverse] = sql
        return sql

    def _upsert(self, size: int) -> str:
        row = f"({', '.join('?' * len(self._columns))})"
        others = self._columns[self.key_size :]
        change = ", ".join(f"{column} = excluded.{column}" for column in others)
        action = f"UPDATE SET {change}" if others else "NOTHING"
        return (
            f"INSERT INTO {self._name} VALUES {', '.join([row] * size)} "
            f"ON CONFLICT ({', '.join(self._keys)}) DO {action}"
        )

    def _delete(self, size: int) -> str:
        if size == 1:
            return f"DELETE FROM {self._name} WHERE {self._equal(self.key_size)}"
        row = f"({', '.join('?' * self.key_size)})"
        keys = ", ".join(self._keys)
        # CROSS JOIN fixes the order: each key is looked up in the index, the table never scanned.
        return (
            f"WITH gone ({keys}) AS (VALUES {', '.join([row] * size)}) "
            f"DELETE FROM {self._name} WHERE rowid IN "
            f"(SELECT {self._name}.rowid FROM gone CROSS JOIN {self._name} USING ({keys}))"
        )


def _sizes(columns: int) -> Iterator[int]:
    """How many rows a statement may write, the largest first: powers of two, and all small ones.

    The fewer statements a commit takes, the fewer times its thread has to wait for the interpreter.
    """
    largest = min(limits.STATEMENT_ROWS_MAX, _VARIABLES_MAX // columns)
    for power in range(largest.bit_length() - 1, 4, -1):
        yield 1 << power
    yield from range(min(largest, 1 << 4), 0, -1)
