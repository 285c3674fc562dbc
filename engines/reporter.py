"""Tells SousChefs how a shard's instances stand: batched, repeated until confirmed.

One per data shard, in memory only. Reports enter after the commit that made them true. A newer
report of an instance replaces an older one that has not been sent. What is lost with the process
is sent again by the Engine's alarm, which stays set until a report is confirmed.

While a message is on its way what comes next gathers, so a busy SousChef gets as many messages as
it makes commits. That an instance has ended only frees a slot: if nobody waits for one (the
SousChef says so), it travels with the next report that is urgent, or a little later by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Protocol

from ..runtime.ids import EntityRef
from ..runtime.limits import (
    ALARM_SETTLE_MS,
    REPORT_GATHER_MS,
    REPORT_MESSAGES_IN_FLIGHT_MAX,
    REPORT_RETRY_MS,
    REPORTS_PENDING_MAX,
    REPORTS_PER_MESSAGE_MAX,
)
from .ports import ENGINE_KIND, StatusReport, souschef_ref

Call = Callable[..., "asyncio.Future[Any]"]
"""`call(ref, method, *args)` gives the future of the answer."""


class Confirmable(Protocol):
    """What the Reporter needs of a live Engine."""

    def report_confirmed(self, run_id: str, seq: int) -> bool:
        """The report is durably noted. True: call `settle` a little later."""

    def settle(self, run_id: str, seq: int) -> None:
        """Things have been quiet since that report: put the alarm right."""


class _Lane:
    """What is to be said to one SousChef."""

    __slots__ = ("in_flight", "is_paused", "pending")

    def __init__(self) -> None:
        self.pending: dict[str, StatusReport] = {}
        self.in_flight = 0
        self.is_paused = False


class Reporter:
    """See the module's description.

    Args:
        loop: the shard's event loop.
        call: how to reach other entities.
        peek: gives the live entity of this shard, or None if it is not in memory.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Call,
        peek: Callable[[EntityRef], Confirmable | None],
    ) -> None:
        self._loop = loop
        self._call = call
        self._peek = peek
        self._lanes: dict[str, _Lane] = {}
        self._dirty: set[str] = set()
        self._pending = 0
        self._flush_is_due = False
        self._settling: deque[tuple[float, str, str, int]] = deque()
        self._roomy: set[str] = set()
        self._gathering: asyncio.TimerHandle | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._settle_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def add(self, souschef: str, report: StatusReport) -> None:
        """Send a report, which is durable, with the others of this turn of the loop."""
        lane = self._lanes.get(souschef)
        if lane is None:
            lane = self._lanes[souschef] = _Lane()
        known = lane.pending.get(report.key)
        if known is not None and known.run_id == report.run_id and known.seq >= report.seq:
            return
        if known is None:
            if self._pending >= REPORTS_PENDING_MAX:
                return  # the Engine's alarm will bring it again
            self._pending += 1
        lane.pending[report.key] = report
        if report.state == "ended" and souschef in self._roomy:
            self._gather()
        else:
            self._wake(souschef)

    def statistics(self) -> dict[str, int]:
        """How much waits to be sent, and how many lanes there are."""
        return {"pending": self._pending, "lanes": len(self._lanes)}

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._gathering is not None:
            self._gathering.cancel()
        if self._settle_timer is not None:
            self._settle_timer.cancel()

    # --- inside -----------------------------------------------------------------------------

    def _gather(self) -> None:
        """Send what waits for company in a moment."""
        if self._gathering is None and not self._closed:
            delay_s = REPORT_GATHER_MS / 1_000
            self._gathering = self._loop.call_later(delay_s, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        for souschef, lane in self._lanes.items():
            if lane.pending:
                self._wake(souschef)

    def _wake(self, souschef: str) -> None:
        if self._closed:
            return
        self._dirty.add(souschef)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._closed:
            return
        souschefs = sorted(self._dirty)  # a set's order differs from process to process
        self._dirty.clear()
        for souschef in souschefs:
            lane = self._lanes[souschef]
            while (
                lane.pending
                and not lane.is_paused
                and lane.in_flight < REPORT_MESSAGES_IN_FLIGHT_MAX
            ):
                self._send(souschef, lane)

    def _send(self, souschef: str, lane: _Lane) -> None:
        if len(lane.pending) <= REPORTS_PER_MESSAGE_MAX:
            batch = list(lane.pending.values())
            lane.pending = {}
        else:
            keys = list(islice(lane.pending, REPORTS_PER_MESSAGE_MAX))
            batch = [lane.pending.pop(key) for key in keys]
        self._pending -= len(batch)
        lane.in_flight += 1
        answer = self._call(souschef_ref(souschef), "report", batch)
        answer.add_done_callback(partial(self._answered, souschef, lane, batch))

    def _answered(
        self,
        souschef: str,
        lane: _Lane,
        batch: list[StatusReport],
        answer: asyncio.Future[Any],
    ) -> None:
        lane.in_flight -= 1
        if self._closed:
            if not answer.cancelled():
                answer.exception()
            return
        if answer.cancelled() or answer.exception() is not None:
            self._take_back(souschef, lane, batch)
            return
        if answer.result() is True:
            self._roomy.add(souschef)
        else:
            self._roomy.discard(souschef)
        until = self._loop.time() + ALARM_SETTLE_MS / 1_000
        for report in batch:
            engine = self._peek(EntityRef(ENGINE_KIND, report.key))
            if engine is not None and engine.report_confirmed(report.run_id, report.seq):
                self._settling.append((until, report.key, report.run_id, report.seq))
        if self._settling and self._settle_timer is None:
            self._settle_timer = self._loop.call_at(self._settling[0][0], self._settle)
        if lane.pending:
            self._wake(souschef)
        elif not lane.in_flight and not lane.is_paused:
            self._lanes.pop(souschef, None)
            self._dirty.discard(souschef)

    def _take_back(self, souschef: str, lane: _Lane, batch: list[StatusReport]) -> None:
        self._roomy.discard(souschef)
        for report in batch:
            if report.key not in lane.pending:
                lane.pending[report.key] = report
                self._pending += 1
        if not lane.is_paused:
            lane.is_paused = True
            self._later(REPORT_RETRY_MS, partial(self._resume, souschef, lane))

    def _resume(self, souschef: str, lane: _Lane) -> None:
        lane.is_paused = False
        if lane.pending:
            self._wake(souschef)

    def _settle(self) -> None:
        self._settle_timer = None
        now = self._loop.time() + 0.01
        while self._settling and self._settling[0][0] <= now:
            _, key, run_id, seq = self._settling.popleft()
            engine = self._peek(EntityRef(ENGINE_KIND, key))
            if engine is not None:
                engine.settle(run_id, seq)
        if self._settling and not self._closed:
            self._settle_timer = self._loop.call_at(self._settling[0][0], self._settle)

    def _later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            if not self._closed:
                callback()

        timer = self._loop.call_later(delay_ms / 1_000, fire)
        self._timers.add(timer)
