"""Sends a load: open loops at times fixed before, closed loops as fast as answers come.

In an open loop a latency counts from the time at which the operation was due. Where too many calls
are under way the next ones wait, and their time goes on counting; what could not be sent at all is
offered and failed (`loadtest.not_sent`), never left out. A stop ends it within a moment: calls
under way are given up and counted as unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from ..api.changes import Change
from ..api.client_port import Backend
from ..api.client_values import InstanceStatus
from ..api.service import NewInstance
from ..runtime import limits
from ..runtime.entropy import Entropy, SeededEntropy
from ..runtime.errors import OutcomeUnknown, ToqueError
from . import load as kinds
from .arrivals import arrivals, first
from .load import Load, Stream, bounds
from .recorder import Recorder, Tally

T = TypeVar("T")
Now = Callable[[], float]
_NOT_SENT = "loadtest.not_sent"
_GIVEN_UP = "loadtest.given_up"
_STOP_GRACE_S = 2.0
_LATE_GRACE_S = 10.0
_CLOSED_CHECK_S = 0.2
_RECENT_MAX = 1_000
_PAGE = {"per_page": "50"}


class Part(NamedTuple):
    """Which call of an operation one is; an operation is counted once, however many it takes."""

    is_first: bool
    is_last: bool


_WHOLE, _FIRST, _BETWEEN, _LAST = (
    Part(True, True), Part(True, False), Part(False, False), Part(False, True),
)  # fmt: skip


class _Operation(NamedTuple):
    """One that is due: its name, where it is counted, and when it was due."""

    kind: str
    tally: Tally
    due: float


class Driver:
    """Sends loads to one backend.

    Args:
        backend: whose answers are final: it repeats nothing by itself.
        recorder: counts.
        entropy: request ids.
        now: seconds on a stopwatch.
    """

    def __init__(self, backend: Backend, recorder: Recorder, entropy: Entropy, now: Now) -> None:
        self._backend = backend
        self._recorder = recorder
        self._entropy = entropy
        self._now = now

    async def run(self, load: Load, stop: asyncio.Event) -> None:
        """Send all of it, or as much as there is until `stop`."""
        streams = [
            _Sending(self._backend, self._recorder, self._entropy, self._now, load, stream, stop)
            for stream in load.streams
        ]
        await asyncio.gather(*(each.run() for each in streams))


class _Sending:
    """One stream under way."""

    def __init__(
        self,
        backend: Backend,
        recorder: Recorder,
        entropy: Entropy,
        now: Now,
        load: Load,
        stream: Stream,
        stop: asyncio.Event,
    ) -> None:
        self._backend = backend
        self._recorder = recorder
        self._new_id = entropy.new_id
        self._now = now
        self._load = load
        self._stream = stream
        self._stop = stop
        self._params = stream.params.encode()
        self._room = stream.in_flight
        self._wanted: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._number = 0
        self._recent: list[str] = []
        self._draws = SeededEntropy(f"{load.seed}/{stream.group}/{stream.workflow}")
        self._choices = list(stream.weights)
        self._bounds = bounds(stream.weights)

    async def run(self) -> None:
        """Send."""
        closed = self._stream.rate is None
        try:
            await (self._closed() if closed else self._open())
            await self._ended()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._fault is not None:
            raise self._fault

    # --- the loops ---

    async def _open(self) -> None:
        stream, rate = self._stream, self._stream.rate
        assert rate is not None
        begin = self._now()
        times = first(
            arrivals(stream.arrivals, rate, stream.seconds, self._draws, stream.begin), stream.count
        )
        for at in times:
            due = begin + at
            while (left := due - self._now()) > 0 and not self._stop.is_set():
                await asyncio.sleep(min(left, _CLOSED_CHECK_S))
            until = begin + stream.seconds + _LATE_GRACE_S
            if self._stop.is_set():
                return
            if not await self._has_room(until):
                self._not_sent(1 + sum(1 for _ in times))
                return
            self._start(due)

    async def _closed(self) -> None:
        stream = self._stream
        until = self._now() + stream.seconds
        size = limits.CREATE_BATCH_MAX if kinds.BATCH in stream.weights else 1
        sent, most = 0, stream.count
        if most is not None:
            most = -(-most // size)
        while (most is None or sent < most) and not self._stop.is_set():
            if not await self._has_room(until):
                if stream.count is not None:  # so many were due, and there was no time for these
                    self._not_sent(max(0, stream.count - sent * size))
                return
            sent += 1
            self._start(self._now())

    async def _has_room(self, until: float) -> bool:
        """Wait for room for a call; False: stopped, or it is too late."""
        while not self._room and not self._stop.is_set():
            left = until - self._now()
            if left <= 0:
                return False
            self._wanted = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._wanted], timeout=min(left, _CLOSED_CHECK_S))
            self._wanted = None
        return not self._stop.is_set() and self._now() < until

    def _not_sent(self, count: int) -> None:
        if self._stop.is_set() or not count:
            return
        tally = self._recorder.group(self._stream.group or kinds.CREATE)
        self._recorder.offered(tally, count)
        self._recorder.failed(tally, _NOT_SENT, count)

    def _start(self, due: float) -> None:
        kind = self._choices[0]
        if len(self._choices) > 1:
            draw = self._draws.random()
            kind = next(
                name for name, bound in zip(self._choices, self._bounds, strict=True)
                if draw < bound
            )  # fmt: skip
        tally = self._recorder.group(self._stream.group or kind)
        self._room -= 1
        self._recorder.in_flight += 1
        operation = _Operation(kind, tally, due)
        task = asyncio.ensure_future(_OPERATIONS[kind](self, operation))
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._recorder.in_flight -= 1
        self._room += 1
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)
        if not task.cancelled() and task.exception() is not None:
            self._fault = self._fault or task.exception()
            self._stop.set()

    async def _ended(self) -> None:
        """Wait for what is under way; after a stop for a moment only."""
        while self._tasks:
            grace = _STOP_GRACE_S if self._stop.is_set() else _CLOSED_CHECK_S
            await asyncio.wait(self._tasks, timeout=grace)
            if self._stop.is_set():
                return

    # --- operations ---

    def _next_id(self, group: str) -> str:
        number = self._number
        self._number += 1
        return self._load.id_of(group, number)

    async def _call(
        self,
        operation: _Operation,
        work: Callable[[str], Awaitable[T]],
        count: int = 1,
        part: Part = _WHOLE,
    ) -> T | None:
        """A call with its repeats; None: it was refused or failed, and its operation with it."""
        tally = operation.tally
        if part.is_first:
            self._recorder.offered(tally, count)
        key = self._new_id()
        until = self._now() + self._load.retry_for_s
        tries = 0
        try:
            while True:
                try:
                    found = await work(key)
                except ToqueError as error:
                    pause_s = _pause_s(error, tries)
                    if self._stop.is_set() or self._now() + pause_s >= until:
                        self._count(tally, error, count)
                        return None
                else:
                    if part.is_last:
                        self._recorder.accepted(tally, count)
                    return found
                tries += 1
                tally.counts.retries += 1
                await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            self._recorder.failed(tally, _GIVEN_UP, count, unknown=True)
            raise

    def _count(self, tally: Tally, error: ToqueError, count: int) -> None:
        if isinstance(error, OutcomeUnknown):
            self._recorder.failed(tally, error.code, count, unknown=True)
        elif is_refusal(error):
            self._recorder.refused(tally, error.code, count)
        else:
            self._recorder.failed(tally, error.code, count)

    async def _create(self, operation: _Operation) -> None:
        wait_ms = self._stream.wait_ms
        await self._made(operation, self._stream.workflow, self._params, wait_ms)

    async def _create_wait(self, operation: _Operation) -> None:
        await self._made(
            operation, self._stream.workflow, self._params, limits.LOADTEST_WAIT_MS
        )  # fmt: skip

    async def _made(
        self,
        operation: _Operation,
        workflow: str,
        params: bytes,
        wait_ms: int = 0,
        part: Part = _WHOLE,
    ) -> InstanceStatus | None:
        tally, due = operation.tally, operation.due
        new = NewInstance(self._next_id(self._stream.group or operation.kind), params)
        sent = self._now()
        found = await self._call(
            operation, lambda key: self._backend.create(workflow, new, wait_ms, key), part=part
        )
        now = self._now()
        if found is None:
            tally.latencies.add("create_failed", (now - due) * 1000)
            return None
        self._recorder.created += 1
        if wait_ms:
            tally.latencies.add("create_wait", (now - due) * 1000)
            return found
        self._recorder.create_took(tally, (now - due) * 1000)
        tally.latencies.add("create_service", (now - sent) * 1000)
        if workflow == self._stream.workflow:
            if len(self._recent) < _RECENT_MAX:
                self._recent.append(found.id)
            else:
                self._recent[self._draws.randrange(_RECENT_MAX)] = found.id
        return found

    async def _batch(self, operation: _Operation) -> None:
        left = (self._stream.count or 0) - self._number
        size = min(limits.CREATE_BATCH_MAX, left)
        if size < 1:
            return
        news = [NewInstance(self._next_id(self._stream.group), self._params) for _ in range(size)]
        workflow = self._stream.workflow
        found = await self._call(
            operation, lambda key: self._backend.create_batch(workflow, news, key), size
        )
        if found is not None:
            self._recorder.created += size
            took_ms = (self._now() - operation.due) * 1000
            operation.tally.latencies.add("create_batch", took_ms)

    async def _status(self, operation: _Operation) -> None:
        if not self._recent:
            await self._create(operation)
            return
        one = self._recent[self._draws.randrange(len(self._recent))]
        await self._timed(operation, "status", operation.due, lambda key: self._backend.get(
            self._stream.workflow, one, with_steps=False, wait_ms=0))  # fmt: skip

    async def _list(self, operation: _Operation) -> None:
        await self._timed(operation, "list", operation.due, lambda key: self._backend.list_page(
            self._stream.workflow, _PAGE, None))  # fmt: skip

    async def _timed(
        self,
        operation: _Operation,
        name: str,
        due: float,
        work: Callable[[str], Awaitable[T]],
        part: Part = _WHOLE,
    ) -> T | None:
        found = await self._call(operation, work, part=part)
        if found is not None:
            operation.tally.latencies.add(name, (self._now() - due) * 1000)
        return found

    async def _event(self, operation: _Operation) -> None:
        made = await self._waiter(operation)
        if made is not None:
            await self._timed(operation, "event", self._now(), lambda key: (
                self._backend.send_event(self._stream.waiter, made.id, "go", b"null", key)
            ), _LAST)  # fmt: skip

    async def _waiter(self, operation: _Operation) -> InstanceStatus | None:
        return await self._made(operation, self._stream.waiter, b"null", part=_FIRST)

    async def _changed(
        self, operation: _Operation, made: InstanceStatus, change: str, part: Part
    ) -> bool:
        found = await self._timed(operation, change, self._now(), lambda key: (
            self._backend.change_status(self._stream.waiter, made.id, Change(change), key)
        ), part)  # fmt: skip
        return found is not None

    async def _pause_resume(self, operation: _Operation) -> None:
        made = await self._waiter(operation)
        if (
            made is not None
            and await self._changed(operation, made, "pause", _BETWEEN)
            and await self._changed(operation, made, "resume", _BETWEEN)
        ):
            await self._changed(operation, made, "terminate", _LAST)

    async def _terminate(self, operation: _Operation) -> None:
        made = await self._waiter(operation)
        if made is not None:
            await self._changed(operation, made, "terminate", _LAST)


_OPERATIONS: dict[str, Callable[[_Sending, _Operation], Awaitable[None]]] = {
    kinds.CREATE: _Sending._create,
    kinds.BATCH: _Sending._batch,
    kinds.CREATE_WAIT: _Sending._create_wait,
    kinds.STATUS: _Sending._status,
    kinds.LIST: _Sending._list,
    kinds.EVENT: _Sending._event,
    kinds.PAUSE_RESUME: _Sending._pause_resume,
    kinds.TERMINATE: _Sending._terminate,
}


def is_refusal(error: ToqueError) -> bool:
    """Whether the control plane said: not now, and nothing was done."""
    return error.status == 429 or error.overloaded


def _pause_s(error: ToqueError, tries: int) -> float:
    """How long until the next try; endless where none can help."""
    if not (isinstance(error, OutcomeUnknown) or error.retryable or is_refusal(error)):
        return float("inf")
    return min(limits.CLIENT_RETRY_MAX_MS, limits.CLIENT_RETRY_MIN_MS << min(tries, 16)) / 1000
