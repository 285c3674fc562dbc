"""Declared tables: what rows an entity class keeps in its shard.

A row is a tuple in column order; its key is its first columns. The store writes rows by key
(an upsert) and deletes by key, so a row that changes twice in one batch is written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from .limits import SCAN_ROWS_MAX

SqlType = Literal["TEXT", "INTEGER", "BLOB", "REAL"]
Row = tuple[Any, ...]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Index:
    """A secondary index. `where` makes it partial (a constant SQL condition)."""

    name: str
    columns: tuple[str, ...]
    where: str | None = None


@dataclass(frozen=True)
class Table:
    """A table of a shard.

    Attributes:
        name: unique in the shard; a lower-case identifier.
        columns: `(name, SQL type)`; a type that ends in `?` admits NULL.
        key_size: how many of the first columns form the primary key.
        indexes: secondary indexes.
        scope_size: how many of the first key columns name what is scanned as a whole (mostly
            the entity). A scan whose prefix is at least that long looks only at that scope's
            pending rows; a shorter one looks at all pending rows of the table.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key_size: int
    indexes: tuple[Index, ...] = field(default=())
    scope_size: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.key_size <= len(self.columns):
            raise ValueError(f"table {self.name}: key_size {self.key_size} is out of range")
        if not 0 < self.scope_size <= self.key_size:
            raise ValueError(f"table {self.name}: scope_size {self.scope_size} is out of range")
        for identifier in (self.name, *(name for name, _ in self.columns)):
            if not identifier.isidentifier() or identifier != identifier.lower():
                raise ValueError(f"table {self.name}: {identifier!r} is no lower-case identifier")

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(name for name, _ in self.columns)

    @cached_property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key's columns, in order."""
        return self.column_names[: self.key_size]

    def key_of(self, row: Row) -> Key:
        """The key of a row."""
        return row[: self.key_size]


Change = tuple[Table, Key, Row | None]
"""A key, and the row of it that is to be written, or None: it is deleted."""


@dataclass(frozen=True)
class Query:
    """A named, read-only SQL query over committed rows, with `?` parameters.

    Attributes:
        name: for messages and statistics.
        sql: constant text; values are only ever bound as parameters.
    """

    name: str
    sql: str


class Scanned(Protocol):
    """What gives rows in key order, a page at a time; see `store.Store.scan`."""

    def scan(
        self,
        table: Table,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int = 1_000,
        reverse: bool = False,
    ) -> list[Row]:
        """Rows whose key begins with `prefix`, beyond the key `after`; own pending ones too."""


def every_row(source: Scanned, table: Table, prefix: Key = ()) -> Iterator[Row]:
    """All rows whose key begins with `prefix`, however many: one scan gives a bounded number.

    Rows that were given may be changed or deleted meanwhile.
    """
    after = None
    while page := source.scan(table, prefix, after=after, limit=SCAN_ROWS_MAX):
        yield from page
        after = page[-1][: table.key_size]
