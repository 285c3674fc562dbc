"""The shard actor: one Ray actor that owns a shard and hosts its entities.

What is hosted comes from a factory that the spec names by import path, since this floor knows
nothing of those above. Ray's restarts run the constructor only, so it is the constructor that
starts the opening, in the background, on the actor's main loop. `health` answers from a loop and
a thread of its own and touches nothing of the main loop's, so it answers while the main loop
hangs, and says for how long it has.

How it fails. A start that cannot succeed (the workflow file does not import, the data is of a
newer format) leaves the actor up and `failed`, with the error for whoever asks: no restart would
help. Anything else is tried again. A store that broke or was fenced ends the process; Ray starts
it anew and it opens the shard again. If the process that started the cluster is gone, so is the
actor, shortly after.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import logging.handlers
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, Protocol, TypeVar, cast

import ray
from ray.util import get_node_ip_address

from ..runtime import limits
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import AuthorError, CallerError, InvalidArgument, WireError, to_wire
from ..runtime.link_socket import LinkServer, Session
from ..runtime.log_bounds import LogBounds
from ..runtime.opening import keep_opening, refusing_server
from ..runtime.rpc import NO_OWNER
from .claims import Claim, take_over, this_machine
from .keeper import identify, is_alive
from .prints import Printed
from .topology import CONTROL_GROUP, ShardSpec, class_options

log = logging.getLogger("toque.shard")
T = TypeVar("T")

_LOG_BYTES_MAX = 4 * limits.MIB


class ShardHandle(Protocol):
    """What a factory gives: an open shard. All of it belongs to the main loop."""

    @property
    def epoch(self) -> int:
        """This owner's epoch."""

    @property
    def broken(self) -> BaseException | None:
        """Why the shard can't go on (its store broke, or a newer owner fenced it), if so."""

    def serve_session(self, send: Callable[[bytes], None]) -> Session:
        """A session for a new link."""

    def statistics(self) -> dict[str, Any]:
        """Plain data."""

    async def drain(self) -> None:
        """Take no new work; return when what runs has come to rest."""

    async def close(self) -> None:
        """Commit what is pending and close the store."""


Factory = Callable[[ShardSpec], Awaitable[ShardHandle]]


def find_factory(name: str) -> Factory:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    try:
        return cast(Factory, getattr(importlib.import_module(module), function))
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"factory {name!r} can't be imported: {error}.") from error


class ShardActor:
    """Opens a shard, serves links to it, and answers for its health.

    Args:
        spec: which shard, and how to open it.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self._process = identify(os.getpid())
        self._ended_former = False
        self._node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        if self._process is not None:
            claim = Claim(self._process, self._node, this_machine())
            self._ended_former = take_over(spec.run_dir, spec.shard, claim)
        self.spec = spec
        self.state = "opening"
        self.error: WireError | None = None
        self.final = False
        self.address = ""
        self.epoch = 0
        self._handle: ShardHandle | None = None
        self._server: LinkServer | None = None
        self._refusing: LinkServer | None = None
        self._loop = asyncio.get_running_loop()
        self._ticked = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk is told by health
            _log_to_file(spec)
        if self._ended_former:
            log.warning("the former process of shard %s was there still, and was ended", spec.shard)
        sys.stdout = Printed(logging.getLogger("toque.stdout"), logging.INFO)
        sys.stderr = Printed(logging.getLogger("toque.stderr"), logging.WARNING)
        self._beat()
        self._opening = self._loop.create_task(self._open(), name=f"open {spec.shard}")
        if spec.starter is not None:
            threading.Thread(target=self._outlive_nobody, daemon=True).start()

    # --- the main loop ---

    def _beat(self) -> None:
        self._ticked = time.monotonic()
        if self._handle is not None and self._handle.broken is not None:
            leave(f"shard {self.spec.shard} can't go on: {self._handle.broken!r}")
        self._beating = self._loop.call_later(limits.TICK_PERIOD_MS / 1000, self._beat)

    async def _open(self) -> None:
        await keep_opening(self._open_or_refuse, self._failed)

    async def _open_or_refuse(self) -> None:
        try:
            await self._open_once()
        except (Exception, SystemExit) as error:
            with contextlib.suppress(OSError):
                await self._refuse(error)
            raise
        await self._refuse_no_more()

    async def _refuse(self, error: BaseException) -> None:
        """Until the next attempt callers hear at once why the shard can't be opened."""
        await self._refuse_no_more()
        spec = self.spec
        final = isinstance(error, (CallerError, AuthorError))
        sessions = refusing_server(spec.shard, str(error), self._loop, final=final)
        self._refusing = LinkServer(
            spec.shard, NO_OWNER, spec.token, SystemEntropy(), sessions.session
        )
        await self._listen(self._refusing)

    async def _listen(self, server: LinkServer) -> str:
        """Have a server listen where callers look for this shard; gives its address."""
        wanted = self.spec.socket_address(self.spec.shard)
        if self.spec.listen == "unix":
            return await server.listen(wanted)
        host = get_node_ip_address()  # type: ignore[no-untyped-call]
        return await server.listen(f"tcp://{host}:0", wanted.partition(":")[2])

    async def _refuse_no_more(self) -> None:
        server, self._refusing = self._refusing, None
        if server is not None:
            await server.close()

    async def _open_once(self) -> None:
        spec = self.spec
        handle = await find_factory(spec.factory)(spec)
        try:
            server = LinkServer(
                spec.shard, handle.epoch, spec.token, SystemEntropy(), handle.serve_session
            )
            self.address = await self._listen(server)
        except BaseException:
            await handle.close()
            raise
        self._handle, self._server = handle, server
        self._ticked = time.monotonic()  # importing an app took its time; from here on less is due
        self.epoch, self.error, self.state = handle.epoch, None, "open"
        log.info("shard %s is open, epoch %d", spec.shard, handle.epoch)

    def _failed(self, error: BaseException, final: bool) -> None:
        log.error("shard %s did not open", self.spec.shard, exc_info=error)
        code, message, data = to_wire(error)
        self.error = (code, message, {**data, "shard": self.spec.shard})
        self.state, self.final = "failed", final

    async def _close(self) -> None:
        self.state = "draining"
        self._opening.cancel()
        await self._refuse_no_more()
        if self._handle is not None:
            await self._handle.drain()
        if self._server is not None:
            await self._server.close()
        if self._handle is not None:
            handle, self._handle = self._handle, None
            await handle.close()
        self.state = "closed"

    async def _count(self) -> dict[str, Any]:
        return self._handle.statistics() if self._handle is not None else {}

    # --- a thread of its own ---

    def _outlive_nobody(self) -> None:
        starter = self.spec.starter
        pause = threading.Event()
        while starter is not None and is_alive(starter):
            pause.wait(limits.STARTER_CHECK_MS / 1000)
        leave("the process that started the cluster is gone")

    # --- the control group: another loop, another thread ---

    @ray.method(concurrency_group=CONTROL_GROUP)
    async def health(self) -> dict[str, Any]:
        """How the shard stands. Answers while the main loop hangs."""
        return {
            "shard": self.spec.shard,
            "process": tuple(self._process or ()),
            "node": self._node,
            "state": self.state,
            "final": self.final,
            "epoch": self.epoch,
            "address": self.address,
            "error": self.error,
            "tick_age_ms": round((time.monotonic() - self._ticked) * 1000),
        }

    @ray.method(concurrency_group=CONTROL_GROUP)
    async def drain(self) -> None:
        """Bring the shard to rest and close it. The actor stays, closed."""
        await self._on_main_loop(self._close())

    @ray.method(concurrency_group=CONTROL_GROUP)
    async def statistics(self) -> dict[str, Any]:
        """The shard's counters."""
        return await self._on_main_loop(self._count())

    async def _on_main_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def leave(reason: str) -> NoReturn:
    """End the process at once; Ray takes it for a crash and starts the actor anew."""
    log.critical("%s; the process ends", reason)
    for handler in log.parent.handlers if log.parent else ():
        handler.flush()
    os._exit(1)


def _log_to_file(spec: ShardSpec) -> None:
    """Log to `DATA/logs/<shard>.log`: Ray's own log files go with the cluster."""
    folder = os.path.join(spec.data_dir, "logs")
    os.makedirs(folder, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        os.path.join(folder, f"{spec.shard}.log"), maxBytes=_LOG_BYTES_MAX, backupCount=1
    )
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    )
    handler.addFilter(LogBounds())
    root = logging.getLogger("toque")
    for former in root.handlers[:]:
        root.removeHandler(former)
        former.close()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def actor_class() -> Any:
    """The class as Ray runs it. Wrapped here and not where it is defined, so that its code goes
    by reference and its module's globals exist once per process."""
    return ray.remote(**class_options())(ShardActor)
