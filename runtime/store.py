"""The store's port: what a shard needs of its file, and no more.

Writes gather in memory. Everything written in one turn of the event loop, by any entity, goes
into one transaction (a group commit): while one commit runs, the next batch gathers. A commit
checks the shard's epoch in the same transaction. `seq` numbers batches from 1; a write belongs
to the batch that is open when it is made, and is durable when `durable_seq` has reached that
batch's number.

If a batch fails because of a row, its parts are retried entity by entity, so that only the
owner of the bad row is told. If it fails otherwise (I/O, fenced), its outcome is unknown: the
store is *broken* for good, every waiter is told, and the shard must be opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .tables import Change, Key, Query, Row, Table

Durable = Callable[[BaseException | None], None]
"""Called once with None when durable, else with the error."""


class Store(Protocol):
    """One shard's store. All methods belong to the shard's event loop thread."""

    on_owner_failed: Callable[[Any, BaseException], None] | None
    """Called with each owner whose part of a batch could not be stored, before any callback."""

    on_broken: Callable[[BaseException], None] | None
    """Called once when the store has broken, after all callbacks."""

    @property
    def epoch(self) -> int:
        """This owner's epoch; it grows each time the shard is opened."""

    @property
    def durable_seq(self) -> int:
        """All batches up to this number are on disk."""

    @property
    def write_seq(self) -> int:
        """The number of the newest batch that holds a write (durable or not)."""

    @property
    def broken(self) -> BaseException | None:
        """Why the store takes no more writes, if it does not."""

    def put(self, owner: object, table: Table, row: Row) -> int:
        """Insert or replace a row; returns the number of its batch.

        `owner` is any hashable: rows of one owner stand or fall together in a batch.
        """

    def delete(self, owner: object, table: Table, key: Key) -> int:
        """Delete by whole key (absent is fine); returns the number of its batch."""

    def write_all(self, owner: object, changes: Iterable[Change]) -> int:
        """Make several changes, or none; returns the number of their batch.

        Raises:
            Overloaded: the open batch has no room for all of them; nothing was written.
        """

    def has_room(self, rows: int, size: int) -> bool:
        """Whether the open batch takes so many more rows, and bytes of values in all.

        For writes that may not be done by half: without room `put` and `delete` raise
        `Overloaded`, wherever that is.
        """

    def get(self, table: Table, key: Key) -> Row | None:
        """The row with that key, pending writes included. A point read; takes microseconds."""

    def pending(self, table: Table) -> dict[Key, Row | None]:
        """What is not committed yet of a table, by key (None: to be deleted); no query sees it."""

    def scan(
        self,
        table: Table,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int = 1_000,
        reverse: bool = False,
    ) -> list[Row]:
        """Rows whose key begins with `prefix`, in key order, pending writes included.

        `after` is a whole key: only rows beyond it (before it, if `reverse`) are given.
        """

    async def query(self, query: Query, params: tuple[Any, ...] = ()) -> list[Row]:
        """Rows of a query, committed ones only; does not hold the loop."""

    def query_now(self, query: Query, params: tuple[Any, ...] = ()) -> list[Row]:
        """As `query`, at once, on the loop: for short queries and for opening."""

    def when_durable(self, seq: int, callback: Durable, owner: object = None) -> None:
        """Call back when batch `seq` is durable; at once if it is.

        If only `owner`'s part of the batch failed, only callbacks with that owner get an error.
        """

    async def flush(self) -> None:
        """Wait until all writes made so far are durable; raises what broke them."""

    def verify_owner(self) -> None:
        """Raise `Fenced` if a newer owner has opened the shard. Costs one small read."""

    def statistics(self) -> dict[str, float]:
        """Counters: commits, rows, bytes, commit seconds, largest batch."""

    async def close(self) -> None:
        """Commit what is pending and close the file."""
