"""One worker as its shard sees it: started, asked for signs of life, told, lost.

It begins when the first run wants it and ends when it hangs, dies or is not wanted. Frames that
are sent before it is ready wait, and come first. When it is lost all its runs are, each told
whether its code was running then (`suspicion` in the error's data); nothing else is lost, since
the shard alone writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..actors.worker import Launched, Launcher, WorkerSpec
from ..runtime import limits
from ..runtime.clock import Clock
from ..runtime.entropy import Entropy
from ..runtime.errors import ToqueError, WorkerLost, from_wire
from ..runtime.link_socket import LinkServer
from ..runtime.notes import Blame, read_notes
from ..runtime.payload_codec import Carried
from . import worker_messages as say
from .broken_code import BrokenCode, Code
from .outcomes import UNBLOCK
from .outgoing import Outgoing
from .ray_options import shown
from .remote_run import RemoteRun
from .run_port import Plan, RunHooks
from .worker_slots import WorkerSlots

_log = logging.getLogger("toque.engines")
FACTORY = "toque.engines.worker:serve"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What all workers of a shard have in common.

    Attributes:
        shard: names them.
        run_dir: for sockets; a short path.
        notes_dir: for the notes of who runs.
        launcher: starts them.
        loop, clock, entropy: the shard's.
        slots: how many may live at a time.
        watched: processes whose end ends them.
    """

    shard: str
    run_dir: str
    notes_dir: str
    launcher: Launcher
    loop: asyncio.AbstractEventLoop
    clock: Clock
    entropy: Entropy
    slots: WorkerSlots
    watched: tuple[tuple[int, int], ...] = ()


class WorkerHost:
    """See the module's description.

    Args:
        settings: the shard's.
        name: the worker's.
        bundle: where it finds its code; see `bundle`.
        options: its resources, as Ray takes them.
        account: whose code it runs, if not the trusted one's.
        codecs: as `Seal.carried` gives them.
        is_dedicated: it is for one run alone, and ends with it.
        code: whose and which it runs.
        broken: what is known of code that does not load.
        ended: told when it has ended, for whatever reason.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        name: str,
        bundle: dict[str, Any],
        options: dict[str, Any],
        *,
        account: str | None,
        codecs: Carried,
        is_dedicated: bool,
        code: Code,
        broken: BrokenCode,
        ended: Callable[[WorkerHost], None],
    ) -> None:
        self._codecs = codecs
        self.name = name
        self.is_dedicated = is_dedicated
        self.pid = 0
        self._settings = settings
        self._bundle = bundle
        self._options = options
        self._account = account
        self._code = code
        self._broken = broken
        self._ended = ended
        self._runs: dict[int, RemoteRun] = {}
        self._numbers = 0
        self._notes = os.path.join(settings.notes_dir, name)
        self._waiting: list[bytes] = []
        self._link: Callable[[bytes], None] | None = None
        self._out = Outgoing(settings.loop, self._send)
        self._server: LinkServer | None = None
        self._launched: Launched | None = None
        self._is_over = False
        self._is_up = False
        self._is_linked = False
        self._how_ended = ""
        self._heard = 0.0
        self._asks_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_slot = False
        self._starting = settings.loop.create_task(self._start(), name=f"start worker {name}")
        self.closing: asyncio.Task[None] | None = None

    # --- runs -------------------------------------------------------------------------------

    def open(self, plan: Plan, hooks: RunHooks) -> RemoteRun:
        """A run in this worker."""
        self._numbers += 1
        run = self._runs[self._numbers] = RemoteRun(self, self._numbers, plan, hooks)
        return run

    def leave(self, run: RemoteRun) -> None:
        """A run is closed."""
        self._runs.pop(run.number, None)
        if self._runs or self._is_over:
            return
        if self.is_dedicated:
            self.end("its instance needs it no more")
        else:
            idle_s = limits.WORKER_IDLE_MS / 1_000
            self._settings.loop.call_later(idle_s, self._end_if_idle, self._numbers)

    def _end_if_idle(self, numbers: int) -> None:
        if not self._runs and self._numbers == numbers:
            self.end("it had nothing to do")

    def starting(self) -> str:
        """What is waited for until the worker is there; empty once it is."""
        if self._is_up:
            return ""
        what = "a worker process is being started"
        if not self._has_slot:
            what = "all workers that its shard, or its account on this shard, may have are taken"
        return f"{what}; it needs {shown(self._options)}" if self._options else what

    def put(self, message: Any) -> None:
        """Tell the worker something."""
        if not self._is_over:
            self._out.put(message)

    def _send(self, frame: bytes) -> None:
        # An act that came before its run's `Open` would be lost: what waits goes first.
        if self._is_up and self._link is not None:
            self._link(frame)
        elif not self._is_over:
            self._waiting.append(frame)

    # --- life -------------------------------------------------------------------------------

    async def _start(self) -> None:
        settings = self._settings
        await settings.slots.acquire(self._account or "")
        self._has_slot = True
        token = bytes.fromhex(settings.entropy.new_id() + settings.entropy.new_id())
        server = LinkServer(self.name, 0, token, settings.entropy, self._session)
        try:
            if settings.launcher.listen == "unix":
                address = await server.listen(f"unix:{settings.run_dir}/{self.name}.sock")
            else:
                address = await server.listen(f"tcp://{settings.launcher.listen}:0")
            self._server = server
            spec = WorkerSpec(
                self.name,
                address,
                token,
                FACTORY,
                {
                    "bundle": self._bundle,
                    "notes": self._notes,
                    "resources": settings.launcher.resources,
                    "codecs": self._codecs,
                },
                self._account,
                list(settings.watched),
            )
            launched = await settings.launcher.launch(spec, self._options, self._process_ended)
        except Exception as error:  # options that Ray or the system refuses, too
            self._lose(f"it did not start: {error}", [])
            return
        self._launched = launched
        if self._is_over:
            launched.kill()
        elif not self._is_up:
            start_s = limits.WORKER_START_MAX_MS / 1_000
            self._timer = settings.loop.call_later(
                start_s, self._lose, f"it did not answer within {start_s:g} s", []
            )

    def _session(self, send: Callable[[bytes], None]) -> _Session:
        self._link = send
        self._is_linked = True
        self._heard = self._settings.loop.time()
        return _Session(self)

    def _ready(self, ready: say.Ready) -> None:
        if ready.version != say.VERSION:
            self._lose(f"it speaks version {ready.version}, not {say.VERSION}", [])
            return
        if ready.error is not None:
            self._fail_all(from_wire(ready.error))
            return
        self.pid = ready.pid
        self._is_up = True
        self._broken.loaded(self._code)
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self._send(frame)
        if self._timer is not None:
            self._timer.cancel()
        self._asks_at = self._settings.loop.time()
        self._ask()

    def _ask(self) -> None:
        loop = self._settings.loop
        late_s = loop.time() - self._asks_at  # the shard itself stood still, and asked nothing
        self._heard = min(loop.time(), self._heard + late_s)
        silent_ms = (loop.time() - self._heard) * 1_000
        if silent_ms > limits.WORKER_SILENCE_MAX_MS:
            self._lose(f"its event loop was blocked for {silent_ms / 1_000:.1f} s: {UNBLOCK}")
            return
        self.put(say.Ping(self._settings.clock.now_ms()))
        self._asks_at = loop.time() + limits.WORKER_PING_MS / 1_000
        self._timer = loop.call_at(self._asks_at, self._ask)

    def hear(self, raw: bytes) -> None:
        """A frame came from the worker."""
        self._heard = self._settings.loop.time()
        for message in say.to_shard.decode(raw):
            if isinstance(message, say.Pong):
                continue
            if isinstance(message, say.Ready):
                self._ready(message)
                continue
            run = self._runs.get(message.run)
            if run is None:
                continue
            if isinstance(message, say.Turned):
                run.turned(message.acts, message.turn)
            elif isinstance(message, say.Ahead):
                run.ahead(message.turn)
            elif isinstance(message, say.Part):
                run.part(message.records)
            elif isinstance(message, say.More):
                run.more()
            else:
                self._fail(run, from_wire(message.error))

    def hung_up(self) -> None:
        """The link is gone, and all that came over it has been heard."""
        self._is_linked = False
        if self._how_ended:
            self._lose(self._how_ended)
        else:
            self._settings.loop.call_soon(self._lose, "it hung up")  # its process may tell more

    def _process_ended(self, how: str) -> None:
        """What it said last may still be on its way; a child of its own may hold the link open."""
        self._how_ended = how
        if self._is_linked:
            wait_s = limits.WORKER_LAST_WORDS_MS / 1_000
            self._settings.loop.call_later(wait_s, self._lose, how)
        else:
            self._lose(how)

    def _fail(self, run: RemoteRun, error: ToqueError) -> None:
        self._runs.pop(run.number, None)
        run.lost(error)

    def _fail_all(self, error: ToqueError) -> None:
        runs = list(self._runs.values())
        self._runs.clear()
        self._broken.failed(self._code, error, self._settings.loop.time())
        self.end("it can't load its code")
        for run in runs:
            run.lost(error)

    def _lose(self, why: str, blamed: list[Blame] | None = None) -> None:
        """It is gone, or must go: tell the runs."""
        if self._is_over:
            return
        was_up = self._is_up
        if self._process_was_there() and not was_up:  # its import ends the process, as it seems
            error = WorkerLost(f"its worker process is gone before it is there: {why}.")
            self._broken.failed(self._code, error, self._settings.loop.time())
        runs = list(self._runs.values())
        self._runs.clear()
        self._kill()
        weights = Counter[str]()
        for blame in read_notes(self._notes) if blamed is None else blamed:
            weights[blame.key] += limits.SUSPICION_MAX if blame.on_loop else 1
        # with no note (its code ran in a callback, say) it may have been anyone's
        _log.warning("worker %s (process %d) is lost: %s", self.name, self.pid, why)
        self.end(why)
        for run in runs:
            weight = weights[run.key] or (1 if was_up and not weights else 0)
            text = f"the worker process of the instance is gone: {why}."
            run.lost(WorkerLost(text, {"suspicion": weight, "was_up": was_up}))

    def _process_was_there(self) -> bool:
        return self._launched is not None

    def _kill(self) -> None:
        if self._launched is not None:
            self._launched.kill()

    def end(self, why: str) -> None:
        """End it. Runs in it are told nothing."""
        if self._is_over:
            return
        self._is_over = True
        _log.info("worker %s ends: %s", self.name, why)
        if self._timer is not None:
            self._timer.cancel()
        self._kill()
        self._link = None
        self._waiting.clear()
        self.closing = self._settings.loop.create_task(self._close())
        self._ended(self)

    async def _close(self) -> None:
        if not self._starting.done() and self._launched is None:
            self._starting.cancel()
        await asyncio.gather(self._starting, return_exceptions=True)
        if self._launched is not None:
            await self._launched.end()
        if self._server is not None:
            await self._server.close()
        if self._has_slot:
            self._settings.slots.release(self._account or "")
        with contextlib.suppress(OSError):
            os.unlink(self._notes)


class _Session:
    """The shard's side of the link."""

    def __init__(self, host: WorkerHost) -> None:
        self._host = host

    def receive(self, raw: bytes) -> None:
        self._host.hear(raw)

    def closed(self) -> None:
        self._host.hung_up()
