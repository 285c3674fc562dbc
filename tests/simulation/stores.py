"""Stores whose commits the simulated world watches, and may make the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toque.runtime.errors import StoreFailed
from toque.runtime.group_commit import Batch, Failures
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.writer_sqlite import Writer


class SimStore(SqliteStore):
    """Asks before each commit, and tells of each before anyone else hears of it.

    Attributes:
        fate: asked before each commit: `go`, `died` (nothing happens any more), or `fails, kept`
            and `fails, lost` (the disk reports a failure, after or before the fact).
        has_committed: the commit is on disk.
    """

    fate: Callable[[], str] = staticmethod(lambda: "go")
    has_committed: Callable[[], None] = staticmethod(lambda: None)

    def _commit_inline(self, batch: Batch) -> None:
        fate = self.fate()
        if fate == "go":
            super()._commit_inline(batch)
        elif fate.startswith("fails"):
            if fate == "fails, kept":
                self._writer.commit(batch)
            self._break(StoreFailed("the disk failed, as the simulation decided."))

    def _committed(self, batch: Batch, failures: Failures) -> None:
        self.has_committed()
        super()._committed(batch, failures)


class StoreOfAnyEpoch(SimStore):
    """A deliberate fault: commits and answers whether or not a newer owner has come."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._writer.__class__ = _WriterOfAnyEpoch

    def verify_owner(self) -> None:
        """Believe that nothing has changed."""


class _WriterOfAnyEpoch(Writer):
    def _begin(self, batch: Batch) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")
        self._cursor.execute("UPDATE shard SET commit_seq = ?", (self._before + batch.seq,))
