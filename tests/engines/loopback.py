"""A code host whose runs are elsewhere by protocol, and here in truth: every message is encoded.

Each run has a worker of its own on the test's loop, reached by frames that take a turn of the
loop each way, so that a test on virtual time plays what real workers do.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toque.engines import worker_messages as say
from toque.engines.code_host import InProcessCodeHost
from toque.engines.outgoing import Outgoing
from toque.engines.remote_run import RemoteRun
from toque.engines.run_port import Plan, RunHooks
from toque.engines.worker import Worker
from toque.runtime.clock import Clock
from toque.runtime.errors import WorkerLost, from_wire

DELAY_S = 0.0005


class LoopbackHost(InProcessCodeHost):
    """See the module's description.

    Attributes:
        workers: those that live.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, definitions: Any = (), **options: Any
    ) -> None:
        super().__init__(loop, definitions, **options)
        self.clock = clock
        self.workers: set[LoopbackWorker] = set()

    def open(self, plan: Plan, hooks: RunHooks) -> RemoteRun:
        worker = LoopbackWorker(self, self._loop)
        self.workers.add(worker)
        return worker.open(plan, hooks)

    def inside(self) -> InProcessCodeHost:
        """What the worker runs its runs on."""
        return InProcessCodeHost(self._loop, self._definitions.values(), inline=True)


class LoopbackWorker:
    """A worker and the shard's end of it, for one run."""

    is_dedicated = True

    def __init__(self, host: LoopbackHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._is_over = False
        self._out = Outgoing(loop, self._to_worker)
        self.worker = Worker(loop, host.inside(), host.clock)
        self.worker.send = self._to_shard
        self.run: RemoteRun | None = None

    def open(self, plan: Plan, hooks: RunHooks) -> RemoteRun:
        self.run = RemoteRun(self, 1, plan, hooks)  # type: ignore[arg-type]
        self.put(say.Ping(self._host.clock.now_ms()))
        return self.run

    def put(self, message: Any) -> None:
        self._out.put(message)

    def starting(self) -> str:
        return ""

    def leave(self, run: RemoteRun) -> None:
        self.end()

    def end(self) -> None:
        """It is gone, with all that is under way."""
        self._is_over = True
        self._host.workers.discard(self)
        for number in list(self.worker._hosted):
            self.worker._close(say.Close(number))

    def kill(self) -> None:
        """Its process dies; the shard learns it a little later."""
        run = self.run
        self.end()
        assert run is not None
        error = WorkerLost("it was killed.", {"suspicion": 1, "was_up": True})
        self._loop.call_later(DELAY_S, run.lost, error)

    def _to_worker(self, frame: bytes) -> None:
        self._loop.call_later(DELAY_S, self._heard_by_worker, frame)

    def _heard_by_worker(self, frame: bytes) -> None:
        if not self._is_over:
            self.worker.receive(frame)

    def _to_shard(self, frame: bytes) -> None:
        if not self._is_over:
            self._loop.call_later(DELAY_S, self._heard_by_shard, frame)

    def _heard_by_shard(self, frame: bytes) -> None:
        run = self.run
        if self._is_over or run is None:
            return
        for message in say.to_shard.decode(frame):
            if isinstance(message, say.More):
                run.more()
            elif isinstance(message, say.Part):
                run.part(message.records)
            elif isinstance(message, say.Ahead):
                run.ahead(message.turn)
            elif isinstance(message, say.Turned):
                run.turned(message.acts, message.turn)
            elif isinstance(message, say.Failed):
                run.lost(from_wire(message.error))
