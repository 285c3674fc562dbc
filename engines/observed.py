"""What an Engine tells those who watch it: its events, and why it does not go on.

Between `life.InstanceLife` and `engine.Engine`. Costs nothing while nobody asks: events are
derived from rows (`watch`). Whoever asks for events that have not happened yet is answered after
the commit in which they did, since answers pass the output gate.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ..runtime import limits
from ..runtime.errors import EntityReset, InstanceNotFound, InvalidArgument, Overloaded
from .journal import Record
from .life import InstanceLife
from .status import FINISHED
from .views import EventPage, WaitingView
from .waiting import waiting_view
from .watch import EventLog, check_types


class _Watcher(NamedTuple):
    timer: asyncio.TimerHandle
    cursor: int
    limit: int
    wanted: frozenset[str]


class ObservedInstance(InstanceLife):
    """See the module's description."""

    _watchers: dict[asyncio.Future[EventPage], _Watcher] | None = None

    def events(
        self, cursor: int, limit: int, types: list[str], wait_ms: int
    ) -> EventPage | asyncio.Future[EventPage]:
        """Events past the cursor, oldest first.

        Args:
            cursor: number of the last event seen; 0: from the start.
            limit: how many at most.
            types: only these; empty: all.
            wait_ms: if there is none yet, wait for one so long.
        """
        self._existing()
        if not 0 < limit <= limits.EVENTS_PAGE_MAX or cursor < 0:
            raise InvalidArgument(
                f"a page takes 1 to {limits.EVENTS_PAGE_MAX} events, past a cursor of 0 or more."
            )
        wanted = check_types(types)
        page = self._page(cursor, limit, wanted)
        if page.events or page.ended or wait_ms <= 0:
            return page
        if self._watchers is None:
            self._watchers = {}
        if len(self._watchers) >= limits.WAITERS_PER_INSTANCE_MAX:
            raise Overloaded(f"too many callers watch instance {self._id()!r}.")
        future: asyncio.Future[EventPage] = self.env.loop.create_future()
        delay_s = min(wait_ms, limits.WAIT_MAX_MS) / 1_000
        timer = self.env.loop.call_later(delay_s, self._answer_watcher, future, True)
        self._watchers[future] = _Watcher(timer, page.cursor, limit, wanted)
        return future

    def waiting(self) -> WaitingView:
        """Why it does not go on."""
        instance = self._existing()
        return waiting_view(
            instance,
            self._records(),
            self._rows.events() if instance.events_buffered else (),
            self._code_error,
            now_ms=self.ctx.clock.now_ms(),
            in_memory=self._run is not None,
            pending=self._run.pending() if self._run is not None else None,
        )

    # --- inside -----------------------------------------------------------------------------

    def _records(self) -> list[Record]:
        """The journal, from where it is."""
        records = self._run.records() if self._run is not None else None
        return self._rows.records() if records is None else records

    def _page(self, cursor: int, limit: int, wanted: frozenset[str]) -> EventPage:
        instance, rows = self._existing(), self._rows
        log = rows.log
        if log is None or cursor < log.start:
            log = rows.log = EventLog(rows.notes(instance), self._records())
        has_ended = instance.status in FINISHED
        output = rows.payload("output", instance.output) if instance.status == "complete" else None
        events, cursor, is_all = log.page(instance, output, cursor, wanted, limit)
        log.trim(cursor)
        return EventPage(events, cursor, has_ended and is_all)

    def _flush(self) -> None:
        super()._flush()
        if self._watchers:
            for future in list(self._watchers):
                self._answer_watcher(future, False)

    def _answer_watcher(self, future: asyncio.Future[EventPage], is_late: bool) -> None:
        watchers = self._watchers
        watcher = None if watchers is None else watchers.get(future)
        if watchers is None or watcher is None:
            return
        if self._instance is None:
            self._drop_watcher(future, InstanceNotFound(f"instance {self._id()!r} was deleted."))
            return
        page = self._page(watcher.cursor, watcher.limit, watcher.wanted)
        if page.events or page.ended or is_late or future.done():
            watcher.timer.cancel()
            del watchers[future]
            if not future.done():
                future.set_result(page)
        elif page.cursor > watcher.cursor:
            watchers[future] = watcher._replace(cursor=page.cursor)

    def _drop_watcher(self, future: asyncio.Future[EventPage], error: Exception) -> None:
        assert self._watchers is not None
        self._watchers.pop(future).timer.cancel()
        if not future.done():
            future.set_exception(error)

    def _start_over(self, error: Exception) -> None:
        for future in list(self._watchers or ()):
            self._drop_watcher(future, EntityReset(f"instance {self._id()!r} was interrupted."))
        super()._start_over(error)

    def on_evict(self) -> None:
        for watcher in (self._watchers or {}).values():
            watcher.timer.cancel()
        self._watchers = None
        self._rows.log = None
