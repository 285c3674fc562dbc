"""In a worker: runs as the shard asks for them, on code that is loaded here.

Nothing is kept: a run's truth is in the shard's rows. If the link is lost the process ends, since
a shard that opens anew begins its runs elsewhere. Bodies start only on the shard's word, and
what they bring is told, never written: before `run` hears of it, so that a `run` that ends the
process is not taken for a body that does.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ..actors.worker import WorkerSpec, named
from ..runtime.clock import Clock, SystemClock
from ..runtime.codec import pack, unpack
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import WireError, to_wire
from ..runtime.guarded import text_of
from ..runtime.limits import WORKER_CHUNK_BYTES
from ..runtime.link_socket import SocketLinks
from ..runtime.notes import Notes
from ..runtime.payload_codec import Seal
from . import worker_messages as say
from .bundle import load_bundle
from .code_host import InProcessCodeHost
from .codec_names import seal_of
from .journal import Record
from .outgoing import Outgoing
from .resource_body import Resources, TaskLost
from .run_port import Plan, Run, RunHooks, Turn

_log = logging.getLogger("toque.worker")


async def serve(spec: WorkerSpec) -> None:
    """Be a worker until the shard is gone; the factory that `WorkerSpec` names."""
    loop = asyncio.get_running_loop()
    error: WireError | None = None
    seal: Seal | None = None
    notes = Notes(spec.settings["notes"])
    resources: Resources | None = None
    if spec.settings["resources"]:
        resources = named(spec.settings["resources"])(spec.account, TaskLost)
    host = InProcessCodeHost(loop, notes=notes, resources=resources, owns_loop=True)
    try:
        for definition in load_bundle(spec.settings["bundle"]):
            host.register(definition)
        seal = seal_of(spec.settings["codecs"])
    except BaseException as failed:  # an author's file may raise anything
        _log.error("worker %s can't load its code: %s", spec.name, text_of(failed))
        error = to_wire(failed)
    gone = loop.create_future()
    links = SocketLinks(lambda _: spec.address, spec.token, loop, SystemEntropy())
    worker = Worker(loop, host, SystemClock())
    worker.seal = seal

    def up(epoch: int) -> None:
        worker.out.put(say.Ready(say.VERSION, os.getpid(), error))

    def down(reason: BaseException | None) -> None:
        if not gone.done():
            gone.set_result(None)

    link = links.open(spec.name, worker.receive, up, down)
    worker.send = link.send_now
    await gone
    notes.close()


class _Hosted:
    """A run of the shard, by its number there."""

    __slots__ = ("acts", "early", "payloads", "plan", "run")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.acts = 0
        self.early: list[say.Act] = []
        self.run: Run | None = None
        self.payloads: dict[int, bytes] = {}


class Worker:
    """The runs of one worker.

    Args:
        loop: the event loop.
        host: runs them.
        clock: of this process; pings tell how far it is from the shard's.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, host: InProcessCodeHost, clock: Clock
    ) -> None:
        self.out = Outgoing(loop, lambda frame: self.send(frame))
        self.send: Callable[[bytes], None] = _unheard
        self.seal: Seal | None = None
        self._host = host
        self._clock = clock
        self._ahead_ms = 0
        self._hosted: dict[int, _Hosted] = {}
        self._handlers: dict[type, Any] = {
            say.Open: self._open,
            say.Records: self._records,
            say.Event: self._event,
            say.Go: self._go,
            say.Act: self._act,
            say.Start: self._start,
            say.Close: self._close,
            say.Ping: self._ping,
        }

    def receive(self, raw: bytes) -> None:
        """A frame came from the shard."""
        for message in say.to_worker.decode(raw):
            self._handlers[type(message)](message)

    def now_ms(self) -> int:
        """The shard's time."""
        return self._clock.now_ms() - self._ahead_ms

    # --- what the shard says ----------------------------------------------------------------

    def _ping(self, ping: say.Ping) -> None:
        self._ahead_ms = self._clock.now_ms() - ping.now_ms
        self.out.put(say.Pong())

    def _open(self, opened: say.Open) -> None:
        self._hosted[opened.run] = _Hosted(opened.plan)
        self.out.put(say.More(opened.run))

    def _records(self, told: say.Records) -> None:
        hosted = self._hosted.get(told.run)
        if hosted is not None:
            hosted.plan.records += [unpack(raw, Record) for raw in told.records]
            self.out.put(say.More(told.run))

    def _event(self, event: say.Event) -> None:
        hosted = self._hosted.get(event.run)
        if hosted is None:
            return
        hosted.payloads[event.seq] = event.payload
        if hosted.run is None:
            hosted.plan.events.append((event.seq, event.event_type, event.at_ms))
        else:
            hosted.run.buffer_event(event.seq, event.event_type, event.at_ms)

    def _go(self, go: say.Go) -> None:
        hosted = self._hosted.get(go.run)
        if hosted is None:
            return
        hooks = RunHooks(
            partial(self._turned, go.run, hosted),
            partial(self._broke, go.run),
            hosted.payloads.__getitem__,
            self.now_ms,
            ahead=partial(self._tell_ahead, go.run),
            seal=self.seal,
        )
        try:
            hosted.run = self._host.open(hosted.plan, hooks)
            turn = hosted.run.begin()
        except Exception as error:
            self._failed(go.run, error)
            return
        hosted.acts += 1
        if turn is not None:
            self._tell(go.run, hosted, turn)
        for act in hosted.early:
            self._act(act)

    def _act(self, act: say.Act) -> None:
        hosted = self._hosted.get(act.run)
        if hosted is None:
            return
        if hosted.run is None:  # its records are still on their way
            hosted.early.append(act)
            return
        hosted.acts += 1
        try:
            turn = hosted.run.act(act.what, act.now_ms, *act.args)
        except Exception as error:
            self._failed(act.run, error)
            return
        if turn is not None:
            self._tell(act.run, hosted, turn)

    def _start(self, start: say.Start) -> None:
        hosted = self._hosted.get(start.run)
        if hosted is not None and hosted.run is not None:
            hosted.run.start(start.starts)

    def _close(self, close: say.Close) -> None:
        hosted = self._hosted.pop(close.run, None)
        if hosted is not None and hosted.run is not None:
            hosted.run.close()

    # --- what it is told --------------------------------------------------------------------

    def _turned(self, number: int, hosted: _Hosted, run: Run, turn: Turn) -> None:
        if self._hosted.get(number) is hosted:
            self._tell(number, hosted, turn)

    def _tell(self, number: int, hosted: _Hosted, turn: Turn) -> None:
        for seq in turn.consumed:
            hosted.payloads.pop(seq, None)
        gathered: list[bytes] = []
        size = 0
        for record in turn.records:
            raw = pack(record)
            if gathered and size + len(raw) > WORKER_CHUNK_BYTES:
                self.out.put(say.Part(number, gathered))
                gathered, size = [], 0
            gathered.append(raw)
            size += len(raw)
        self.out.put(say.Part(number, gathered))
        turn.records = []
        self.out.put(say.Turned(number, hosted.acts, turn))
        if turn.outcome is not None:
            self._close(say.Close(number))

    def _tell_ahead(self, number: int, run: Run, turn: Turn) -> None:
        """Out of this process's hands before it returns: what comes next may end the process."""
        self.out.put(say.Ahead(number, turn))
        self.out.flush()

    def _broke(self, number: int, run: Run, error: Exception) -> None:
        self._failed(number, error)

    def _failed(self, number: int, error: Exception) -> None:
        _log.error("run %d can't be had: %r", number, error)
        self.out.put(say.Failed(number, to_wire(error)))
        self._close(say.Close(number))


def _unheard(frame: bytes) -> None:
    """Until the link is up there is nobody to tell."""
