"""Stores of the simulated world that are at fault on purpose."""

from __future__ import annotations

from typing import Any

from toque.runtime.group_commit import Batch
from toque.runtime.writer_sqlite import Writer
from toque.testkit.store import SimStore


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
