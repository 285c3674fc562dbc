"""Rows in a dict, for tests of the pure parts. May refuse writes, as a full store does."""

from __future__ import annotations

from toque.runtime.errors import Overloaded
from toque.runtime.tables import Key, Row, Table


class DictRows:
    """A store without commits.

    Attributes:
        tables: the rows by table and key.
        writes: how many writes were made.
        room: how many more writes it takes; None: any number.
    """

    def __init__(self) -> None:
        self.tables: dict[str, dict[Key, Row]] = {}
        self.writes = 0
        self.room: int | None = None

    def put(self, table: Table, row: Row) -> None:
        assert len(row) == len(table.columns), (table.name, row)
        self._write()
        self.tables.setdefault(table.name, {})[table.key_of(row)] = row

    def delete(self, table: Table, key: Key) -> None:
        assert len(key) == table.key_size, (table.name, key)
        self._write()
        self.tables.setdefault(table.name, {}).pop(key, None)

    def _write(self) -> None:
        if self.room is not None:
            if self.room == 0:
                raise Overloaded("full")
            self.room -= 1
        self.writes += 1

    def get(self, table: Table, key: Key) -> Row | None:
        return self.tables.get(table.name, {}).get(key)

    def scan(
        self,
        table: Table,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int = 1_000,
        reverse: bool = False,
    ) -> list[Row]:
        assert not reverse
        rows = self.tables.get(table.name, {})
        keys = sorted(key for key in rows if key[: len(prefix)] == tuple(prefix))
        return [rows[key] for key in keys if after is None or key > after][:limit]

    def all(self, table: Table) -> list[Row]:
        """All rows of a table, in key order."""
        return [row for _, row in sorted(self.tables.get(table.name, {}).items())]
