"""A run in a worker, as its Engine in the shard sees it.

It sends what it is told and passes on the turns that come back. A turn that was made before the
worker had seen all acts is told as busy: more is under way, so the Engine must not park on it.
Of buffered events a few of each type are sent ahead, the rest as those are used up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ..runtime.codec import pack, unpack
from ..runtime.limits import WORKER_CHUNK_BYTES, WORKER_EVENTS_AHEAD_MAX
from . import worker_messages as say
from .journal import Record
from .run_port import ACTS, Pending, Plan, RunHooks, Starts, Turn

if TYPE_CHECKING:
    from .worker_host import WorkerHost


class RemoteRun:
    """See the module's description.

    Args:
        host: the worker.
        number: of the run, within the worker.
        plan: what to begin with.
        hooks: of its Engine.
    """

    def __init__(self, host: WorkerHost, number: int, plan: Plan, hooks: RunHooks) -> None:
        self.number = number
        self.key = plan.key
        self.hooks = hooks
        self._host = host
        self._plan = plan
        self._chunks: Iterator[list[bytes]] = _chunks_of(plan.records)
        self._acts = 0
        self._parts: list[Record] = []
        self._told: Turn | None = None
        self._ahead: dict[str, int] = {}
        self._behind: dict[str, deque[tuple[int, str, int]]] = {}
        self._types: dict[int, str] = {}

    # --- what the Engine says ---------------------------------------------------------------

    def begin(self) -> None:
        """See `run_port.Run`."""
        plan = self._plan
        bare = msgspec.structs.replace(plan, is_apart=False, records=[], events=[])
        events, plan.events, plan.records = plan.events, [], []
        self._host.put(say.Open(self.number, bare))
        for event in events:
            self.buffer_event(*event)
        self._acts += 1

    def act(self, what: str, now_ms: int, *args: Any) -> None:
        """See `run_port.Run`."""
        assert what in ACTS, what
        self._acts += 1
        self._host.put(say.Act(self.number, what, now_ms, list(args)))

    def buffer_event(self, seq: int, event_type: str, at_ms: int) -> None:
        """See `run_port.Run`."""
        ahead = self._ahead.get(event_type, 0)
        if ahead >= WORKER_EVENTS_AHEAD_MAX:
            self._behind.setdefault(event_type, deque()).append((seq, event_type, at_ms))
            return
        self._ahead[event_type] = ahead + 1
        self._types[seq] = event_type
        payload = self.hooks.payload_of(seq)
        self._host.put(say.Event(self.number, seq, event_type, at_ms, payload))

    def start(self, starts: Starts) -> None:
        """See `run_port.Run`."""
        self._host.put(say.Start(self.number, starts))

    def close(self) -> None:
        """See `run_port.Run`."""
        self._host.put(say.Close(self.number))
        self._host.leave(self)

    def parked(self) -> bool:
        """See `run_port.Run`."""
        return self._host.is_dedicated

    def pending(self) -> Pending:
        """See `run_port.Run`."""
        return Pending(self._host.starting(), {})

    def records(self) -> None:
        """See `run_port.Run`."""

    # --- what the worker says ---------------------------------------------------------------

    def more(self) -> None:
        """The worker wants more records."""
        chunk = next(self._chunks, None)
        if chunk is None:
            self._host.put(say.Go(self.number))
        else:
            self._host.put(say.Records(self.number, chunk))

    def part(self, raw: list[bytes]) -> None:
        """Records of the turn to come."""
        self._parts += [unpack(one, Record) for one in raw]

    def ahead(self, turn: Turn) -> None:
        """How a step has ended; the turn to come brings the rest, if it comes."""
        if self._told is not None:
            turn.records[:0] = self._told.records
        self._told = turn

    def lost(self, error: Exception) -> None:
        """No turn will come any more: what was told ahead stands."""
        told, self._told = self._told, None
        if told is not None:
            self.hooks.turned(self, told)
        self.hooks.lost(self, error)

    def turned(self, acts: int, turn: Turn) -> None:
        """A turn, whose records came before."""
        turn.records, self._parts = self._parts, []
        if self._told is not None:
            turn.records[:0] = self._told.records
            self._told = None
        if turn.outcome is None:
            self._send_behind(turn.consumed)
            if acts < self._acts:
                turn.is_busy = True
        self.hooks.turned(self, turn)

    def _send_behind(self, consumed: list[int]) -> None:
        """Events were used up: send as many more of their types, and have them looked at."""
        sent = False
        for seq in consumed:
            event_type = self._types.pop(seq)
            self._ahead[event_type] -= 1
            behind = self._behind.get(event_type)
            if behind:
                self.buffer_event(*behind.popleft())
                sent = True
        if sent:
            self.act("tick", self.hooks.now_ms())


def _chunks_of(records: list[Record]) -> Iterator[list[bytes]]:
    """The records, packed, in chunks of a bounded size."""
    gathered: list[bytes] = []
    size = 0
    for record in records:
        raw = pack(record)
        if gathered and size + len(raw) > WORKER_CHUNK_BYTES:
            yield gathered
            gathered, size = [], 0
        gathered.append(raw)
        size += len(raw)
    if gathered:
        yield gathered
