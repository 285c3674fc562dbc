"""Stores whose commits the simulated world watches, and may make the last; streams beside them.

The code is the real store's, with its writer inline; what befalls a commit is for the world to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..runtime import limits
from ..runtime.blobs import BlobStore
from ..runtime.errors import Fenced, Overloaded, StoreFailed
from ..runtime.group_commit import Batch, Failures
from ..runtime.ids import EntityRef
from ..runtime.store_sqlite import SqliteStore

_PAGES_MAX = 4_294_967_294


class SimStore(SqliteStore):
    """Asks before each commit, and tells of each before anyone else hears of it.

    Attributes:
        fate: asked before each commit: `go`, `died` (nothing happens any more), or `fails, kept`
            and `fails, lost` (the disk reports a failure, after or before the fact).
        has_committed: told which tables a commit has changed that is on disk.
    """

    outcome = "lost"
    """What has become of the last commit of a store that crashed."""
    tear_at = 0.5
    """How much of a commit that is torn is in the log."""
    fate: Callable[[], str] = staticmethod(lambda: "go")
    has_committed: Callable[[Collection[str]], None] = staticmethod(lambda tables: None)
    _plain: tuple[Any, Any] | None = None
    _cut: list[int] | None = None

    def _commit_inline(self, batch: Batch) -> None:
        fate = self.fate()
        if fate == "go":
            super()._commit_inline(batch)
        elif fate.startswith("fails"):
            if fate == "fails, kept":
                with suppress(Fenced, StoreFailed):  # the disk may be full besides
                    self._writer.commit(batch)
            self._break(StoreFailed("the disk failed, as the simulation decided."))

    def _committed(self, batch: Batch, failures: Failures) -> None:
        self.has_committed(batch.tables)
        if self._cut is not None:
            self._room_again()
        super()._committed(batch, failures)

    def limit_batch(self, rows: int) -> None:
        """Have room for so many rows in a batch, and what one event may need."""
        self._group._rows_max = limits.BATCH_ROWS_RESERVED + rows

    def limit_pages(self, is_full: bool) -> None:
        """Whether the disk takes no more pages; SQLite itself refuses what needs one."""
        most = 1 if is_full else _PAGES_MAX  # not below what there is already
        self._writer._cursor.execute(f"PRAGMA max_page_count = {most}").fetchall()

    def cut_short(self, kind: str, writes: int, told: Callable[[EntityRef], None]) -> None:
        """Entities of a kind have room for so many writes in a batch.

        Who needs more is refused, and so is all of the kind until the batch is committed; then
        there is room again. `told` hears of each refusal.
        """
        put, delete = self._plain or (self.put, self.delete)
        self._cut = left = [writes, writes]

        def check(owner: Any) -> None:
            if isinstance(owner, EntityRef) and owner.kind == kind:
                left[0] -= 1
                if left[0] < 0:
                    told(owner)
                    raise Overloaded("the next batch is full, as the simulation decided.")

        def putting(owner: Any, table: Any, row: Any) -> int:
            check(owner)
            return put(owner, table, row)

        def deleting(owner: Any, table: Any, key: Any) -> int:
            check(owner)
            return delete(owner, table, key)

        self._plain = put, delete
        self.put, self.delete = putting, deleting

    def _room_again(self) -> None:
        """A batch is committed."""
        assert self._cut is not None
        if self._cut[0] < 0:
            self.has_room_again()
        else:
            self._cut[0] = self._cut[1]

    def has_room_again(self) -> None:
        """Take `cut_short` back."""
        if self._plain is not None:
            (self.put, self.delete), self._plain, self._cut = self._plain, None, None

    def watch(self, put: Any, delete: Any) -> None:
        """Have single writes go through these."""
        self.put, self.delete = put, delete

    def crash(self, outcome: Any) -> None:
        """As in `SqliteStore`; `torn`: only a part of the commit reached the log."""
        if self._dead:
            return
        self.outcome = outcome
        if outcome == "torn":
            self._tear()
        else:
            super().crash(outcome)

    def _tear(self) -> None:
        """The log as it is in the middle of the commit, and all other files as before it."""
        batch, log = self._group.in_flight, Path(f"{self.path}-wal")
        shared = Path(f"{self.path}-shm")
        others = [path for path in self.path.parent.glob(f"{self.path.name}*") if path != log]
        before = {path: path.read_bytes() for path in others if path != shared}
        length = log.stat().st_size if log.exists() else 0
        self.outcome = "kept"
        try:
            if batch is not None:
                self._writer.commit(batch)
        except (Fenced, StoreFailed):
            self.outcome = "lost"
        whole = log.read_bytes() if log.exists() else b""
        super().crash("lost")
        if self.outcome == "lost" or len(whole) <= length:
            return  # it went into a part of the log that was there before
        self.outcome = "torn"
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()
        for path, content in before.items():
            path.write_bytes(content)
        log.write_bytes(whole[: length + int((len(whole) - length) * self.tear_at)])


def age_in_virtual_time(blobs: BlobStore, loop: asyncio.AbstractEventLoop) -> None:
    """Have streams' files age in virtual time, counted from when that is asked first.

    By the clock of the file system a run would be another one each time.
    """
    asked_s: dict[str, float] = {}

    def age_ms(name: str) -> int:
        blobs._path(name).stat()  # which says if there is none
        now_s = loop.time()
        return round((now_s - asked_s.setdefault(name, now_s)) * 1000)

    blobs.age_ms = age_ms  # type: ignore[method-assign]
