"""What an Engine tells those who watch it: its events, and why it does not go on.

Between `life.InstanceLife` and `engine.Engine`. Costs nothing while nobody asks: events are
derived from rows (`watch`). Whoever asks for events that have not happened yet is answered after
the commit in which they did, since answers pass the output gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from ..runtime import limits
from ..runtime.errors import EntityReset, InstanceNotFound, InvalidArgument, Overloaded
from .journal import Record
from .life import InstanceLife
from .status import FINISHED
from .views import EventPage, WaitingView
from .waiting import waiting_view
from .watch import EventLog, check_types

T = TypeVar("T")


class _Watcher(NamedTuple):
    timer: asyncio.TimerHandle
    cursor: int
    limit: int
    wanted: frozenset[str]


class ObservedInstance(InstanceLife):
    """See the module's description."""

    _watchers: dict[asyncio.Future[EventPage], _Watcher] | None

    def events(
        self, cursor: int, limit: int, types: list[str], wait_ms: int
    ) -> EventPage | Awaitable[EventPage]:
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
        if self._has_log(cursor):
            return self._events(cursor, limit, wanted, wait_ms)
        return self._events_of_long(cursor, limit, wanted, wait_ms)

    async def _events_of_long(
        self, cursor: int, limit: int, wanted: frozenset[str], wait_ms: int
    ) -> EventPage:
        while not self._has_log(cursor):
            await self._read_log()
        found = self._events(cursor, limit, wanted, wait_ms)
        return found if isinstance(found, EventPage) else await found

    def _events(
        self, cursor: int, limit: int, wanted: frozenset[str], wait_ms: int
    ) -> EventPage | asyncio.Future[EventPage]:
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

    def waiting(self) -> WaitingView | Awaitable[WaitingView]:
        """Why it does not go on."""
        self._existing()
        return self._of_journal(self._waiting)

    def _waiting(self, records: list[Record]) -> WaitingView:
        return waiting_view(
            self._existing(),
            records,
            self._rows.events() if self._existing().events_buffered else (),
            self._code_error,
            now_ms=self.ctx.clock.now_ms(),
            in_memory=self._run is not None,
            pending=self._run.pending() if self._run is not None else None,
        )

    # --- inside -----------------------------------------------------------------------------

    def _in_memory(self) -> list[Record] | None:
        """The journal, if it need not be read."""
        return self._run.records() if self._run is not None else None

    def _is_long(self) -> bool:
        """Whether the journal is more than may be gone through in one turn."""
        records = self._in_memory()
        size = self._rows.last_ordinal() if records is None else len(records)
        return size > limits.RECORDS_READ_PER_TURN_MAX

    def _of_journal(self, give: Callable[[list[Record]], T]) -> T | Awaitable[T]:
        """What `give` makes of the journal as it stands; at once if that takes no time."""
        records = self._in_memory()
        if records is not None:
            return give(records)
        return self._of_long(give) if self._is_long() else give(self._rows.records())

    async def _of_long(self, give: Callable[[list[Record]], T]) -> T:
        return give(await self._journal())

    async def _journal(self) -> list[Record]:
        """The journal as it stands, read a slice a turn; others of the shard have theirs between.

        What happens meanwhile may be in it or not; after a restart it is read anew.
        """
        while True:
            run_id, found = self._existing().run_id, list[Record]()
            records = self._in_memory()
            if records is not None:
                return records
            while not self._rows.read_on(found, limits.RECORDS_READ_PER_TURN_MAX):
                await asyncio.sleep(0)
                if self._existing().run_id != run_id:
                    break
            else:
                return found

    def _has_log(self, cursor: int) -> bool:
        """Whether events past the cursor can be told; of a short journal the log is made here."""
        log = self._rows.log
        if log is not None and log.is_complete and cursor >= log.start:
            return True
        if self._is_long():
            return False
        log = self._rows.log = self._new_log()
        records = self._in_memory()
        log.read(self._rows.records() if records is None else records)
        log.complete()
        return True

    def _new_log(self) -> EventLog:
        last = self._rows.event_no
        return EventLog(self._rows.notes(self._existing()), last)

    async def _read_log(self) -> None:
        """Make the log of a long journal, a slice a turn; give up if somebody else does."""
        log = self._rows.log
        if log is not None and not log.is_complete:
            await asyncio.sleep(0)
            return
        log = self._rows.log = self._new_log()
        size = limits.RECORDS_READ_PER_TURN_MAX
        known = self._in_memory()
        found: list[Record] = []
        at, is_all = 0, False
        try:
            while not is_all:
                if known is not None:
                    part, at = known[at : at + size], at + size
                    is_all = at >= len(known)
                else:
                    is_all = self._rows.read_on(found, size)
                    part, found = found[min(at, 1) :], found[-1:]
                    at = 1
                log.read(part)
                await asyncio.sleep(0)
                if self._rows.log is not log:
                    return
        except BaseException:
            if self._rows.log is log:
                self._rows.log = None  # else others would wait for it
            raise
        log.complete()
        for future in list(self._watchers or ()):
            self._answer_watcher(future, False)

    def _page(self, cursor: int, limit: int, wanted: frozenset[str]) -> EventPage:
        instance, rows = self._existing(), self._rows
        log = rows.log
        assert log is not None
        has_ended = instance.status in FINISHED
        output = rows.payload("output", instance.output) if instance.status == "complete" else None
        events, cursor, is_all = log.page(instance, output, cursor, wanted, limit)
        log.trim(cursor)
        return EventPage(events, cursor, has_ended and is_all)

    def _tell_watchers(self) -> None:
        for future in list(self._watchers or ()):
            self._answer_watcher(future, False)

    def _answer_watcher(self, future: asyncio.Future[EventPage], is_late: bool) -> None:
        watchers = self._watchers
        watcher = None if watchers is None else watchers.get(future)
        if watchers is None or watcher is None:
            return
        if self._instance is None:
            self._drop_watcher(future, InstanceNotFound(f"instance {self._id()!r} was deleted."))
            return
        if not self._has_log(watcher.cursor):
            if is_late:  # it asks again, and is told then
                watcher.timer.cancel()
                del watchers[future]
                if not future.done():
                    future.set_result(EventPage([], watcher.cursor, False))
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
        self._give_up_watchers()
        super()._start_over(error)

    def _give_up_watchers(self) -> None:
        for future in list(self._watchers or ()):
            self._drop_watcher(future, EntityReset(f"instance {self._id()!r} was interrupted."))

    def on_evict(self) -> None:
        self._give_up_watchers()
        self._watchers = None
        self._rows.log = None
