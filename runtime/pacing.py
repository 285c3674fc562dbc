"""Work that comes in bulk, a few pieces per turn of the loop: calls have their turn in between.

A herd that wakes, grants by the thousand, all that ran before a restart: none of it may hold the
loop, nor fill the store's open batch, for then callers would be refused. Pieces are done in the
order in which they were given, and wait while the disk is behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from . import limits
from .store import Store

_ROWS_SPARED = limits.BATCH_ROWS_MAX - limits.PACED_ROWS_MAX


def disk_is_behind(store: Store) -> bool:
    """Whether bulk work is to wait: more than PACED_ROWS_MAX rows wait for the next commit.

    Never while nothing waits, however small a batch may be: no commit would end that.
    """
    return store.write_seq > store.durable_seq and not store.has_room(_ROWS_SPARED, 0)


def when_disk_went_on(store: Store, go: Callable[[], None]) -> None:
    """Run `go` after the next commit, whatever became of it."""
    store.when_durable(store.durable_seq + 1, lambda _error: go())


class Pacer:
    """See the module's description.

    Args:
        store: the shard's store.
        loop: its event loop.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._work: deque[Callable[[], None]] = deque()
        self._is_due = False
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether nothing waits."""
        return not self._work

    def add(self, works: Iterable[Callable[[], None]]) -> None:
        """Do these pieces, which raise nothing, after those before them."""
        self._work.extend(works)
        if self._work and not self._is_due and not self._closed:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def close(self) -> None:
        """Do nothing more."""
        self._closed = True
        self._work.clear()

    def _turn(self) -> None:
        self._is_due = False
        if self._closed or self._store.broken is not None:
            return
        if disk_is_behind(self._store):
            self._is_due = True
            when_disk_went_on(self._store, self._turn)
            return
        for _ in range(min(limits.PACED_PER_TURN_MAX, len(self._work))):
            if not self._work:
                break  # closed from within
            self._work.popleft()()
        self.add(())
