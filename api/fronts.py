"""More front ends beside that of the process which keeps the shards.

Each is a process of its own that listens on the same address (the kernel spreads connections over
all who do) and reaches the shards over sockets of its own. Front ends hold no state that matters,
so one that dies is started again and nothing else happens. One that hangs would keep its part of
the connections waiting: it gives a sign of life each second, and without any it is killed. It takes
its spec, with the run's secret, from standard input, and ends when that ends: so none outlives who
started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from ..actors.topology import Listen, shard_address
from ..runtime import limits
from ..runtime.errors import ToqueError
from ..runtime.ids import Placement
from .front_figures import front_ended

log = logging.getLogger("toque.front")
COMMAND = (sys.executable, "-m", "toque.api.front_http")
DRAIN = b"drain\n"
READY = b"ready\n"
ALIVE = b"alive\n"


class FrontSpec(msgspec.Struct, frozen=True):
    """All that a further front end needs. Plain data.

    Attributes:
        number: 1 and up.
        count: how many front ends there are, with the first.
        host, port: where all of them listen.
        data_dir: of the shards; code that is deployed is kept there.
        run_dir: the shards' sockets or their addresses, and figures.
        secret: proves that it may speak to shards.
        data_shards, control_shards: which shards there are.
        log_format: of its log.
        listen: how shards listen.
        dashboard: whether to serve the page for operators.
    """

    number: int
    count: int
    host: str
    port: int
    data_dir: str
    run_dir: str
    secret: bytes
    data_shards: int
    control_shards: int
    log_format: str = "text"
    listen: Listen = "unix"
    dashboard: bool = True

    @property
    def placement(self) -> Placement:
        """Which shard an entity lives on."""
        return Placement(self.data_shards, self.control_shards)

    def socket_address(self, shard: str) -> str:
        """How a shard is found."""
        return shard_address(self.run_dir, shard, self.listen)

    def __repr__(self) -> str:  # a traceback must not show the secret
        return f"FrontSpec({self.number}, {self.host!r}, {self.port})"


def default_count(data_shards: int, cores: int) -> int:
    """How many front ends suit a machine.

    One costs about a third of what a data shard does for the same work, so one for each three data
    shards keeps up with them; and no more than half of the cores, since shards need the rest.

    >>> [default_count(shards, 16) for shards in (1, 2, 4, 8, 64)]
    [1, 1, 2, 3, 8]
    """
    return max(1, min(-(-data_shards // 3), cores // 2))


class Fronts:
    """The further front ends of a server.

    Args:
        specs: one for each.
        command: starts one; it gets its spec as a line of JSON.
    """

    def __init__(self, specs: Sequence[FrontSpec], command: Sequence[str] = COMMAND) -> None:
        self._specs = specs
        self._command = command
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False

    @property
    def pids(self) -> list[int]:
        """The processes that run."""
        return [child.pid for child in self._children.values()]

    async def start(self) -> None:
        """Start all; return when they serve.

        Raises:
            ToqueError: one does not.
        """
        loop = asyncio.get_running_loop()
        ready = [loop.create_future() for _ in self._specs]
        for spec, serves in zip(self._specs, ready, strict=True):
            self._tasks.append(loop.create_task(self._keep(spec, serves)))
        try:
            async with asyncio.timeout(limits.FRONT_START_MAX_MS / 1000):
                await asyncio.gather(*ready)
        except TimeoutError:
            await self.close()
            raise ToqueError("a further front end did not start; its log says why.") from None

    def drain(self) -> None:
        """Have all say that they are not ready any more."""
        self._draining = True
        for child in self._children.values():
            _tell(child, DRAIN)

    async def close(self) -> None:
        """End all: they finish what is under way."""
        self._draining = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _keep(self, spec: FrontSpec, serves: asyncio.Future[None]) -> None:
        """Keep one running."""
        while True:
            try:
                child = self._children[spec.number] = self._start(spec)
            except OSError as error:  # no process or no file can be had just now
                log.warning("front end %d can't be started: %s; trying again", spec.number, error)
                await asyncio.sleep(limits.FRONT_RESTART_MS / 1000)
                continue
            try:
                await self._until_ended(spec.number, child, serves)
            finally:
                self._children.pop(spec.number, None)
                with contextlib.suppress(OSError):
                    front_ended(spec.run_dir, spec.number)
            log.warning("front end %d ended (%s); starting it again", spec.number, child.returncode)
            await asyncio.sleep(limits.FRONT_RESTART_MS / 1000)

    def _start(self, spec: FrontSpec) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # signals of the terminal are not for it
        )
        _tell(child, msgspec.json.encode(spec) + b"\n")
        if self._draining:
            _tell(child, DRAIN)
        return child

    async def _until_ended(
        self, number: int, child: subprocess.Popen[bytes], serves: asyncio.Future[None]
    ) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        told = asyncio.StreamReader()
        pipe: asyncio.BaseTransport | None = None
        try:
            pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(told), child.stdout
            )
            if await _heard(told, limits.FRONT_START_MAX_MS) and not serves.done():
                serves.set_result(None)
            while await _heard(told, limits.FRONT_SILENCE_MAX_MS):
                pass
            if child.poll() is None and not told.at_eof():
                log.warning("front end %d gives no sign of life; ending it", number)
                child.kill()
        finally:
            with contextlib.suppress(OSError):
                child.stdin.close()
            await asyncio.shield(asyncio.to_thread(_ended, child))
            if pipe is not None:
                pipe.close()


async def _heard(told: asyncio.StreamReader, within_ms: int) -> bool:
    """Whether a front end says something in time. It is waited for twice: if this process was
    stopped meanwhile, that is not the other's silence."""
    for _ in range(2):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_ms / 2000):
                return bool(await told.readline())
    return False


def _tell(child: subprocess.Popen[bytes], line: bytes) -> None:
    assert child.stdin is not None
    with contextlib.suppress(OSError):  # it has ended
        child.stdin.write(line)
        child.stdin.flush()


def _ended(child: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended in order, or end it."""
    try:
        child.wait(limits.FRONT_END_MAX_MS / 1000)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
