"""Who sends a load: this process, or several that do nothing else; the same to scenarios.

Other processes are started once, get their parts as lines of JSON, tell each second what they
did, and hand over what they counted when a load is over. A process that ends before it should
fails the test, since what it counted is lost. They end when this one does: their input closes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Protocol

import msgspec

from ..api.client_http import HttpBackend
from ..api.client_port import Backend
from ..runtime import limits
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import ToqueError
from ..runtime.memory import resident_bytes
from .driver import Driver, Now
from .load import Load, split
from .recorder import Part, Recorder, Tick, summed

_LINE_BYTES_MAX = 64 * limits.MIB
_STOP = b"stop\n"


class SenderLost(ToqueError):
    """A process that sent a part of the load ended before it should."""

    code = "loadtest.sender_lost"


class Access(msgspec.Struct, frozen=True):
    """How a process reaches the server."""

    url: str
    token: str | None
    account: str
    connections: int


def final_backend(access: Access) -> HttpBackend:
    """A backend that repeats nothing."""
    return HttpBackend(
        access.url,
        access.token,
        access.account,
        SystemEntropy(),
        retry_for_ms=0,
        connections_max=access.connections,
    )


class Told(msgspec.Struct, frozen=True):
    """A line from a process: it is ready; what a second brought; or all that a load brought."""

    ready: bool = False
    tick: Tick | None = None
    part: Part | None = None
    error: str | None = None


class Fleet(Protocol):
    """Sends loads, one at a time."""

    async def run(self, load: Load, stop: asyncio.Event) -> Part: ...

    def take_tick(self) -> Tick: ...

    async def close(self) -> None: ...


def own_cost() -> tuple[float, float]:
    """CPU seconds and MiB of this process."""
    times = os.times()
    return times.user + times.system, resident_bytes() / limits.MIB


class OwnFleet:
    """This process alone.

    Args:
        backend: see `Driver`.
        now: a stopwatch.
    """

    def __init__(self, backend: Backend, now: Now) -> None:
        self._backend = backend
        self._now = now
        self._recorder: Recorder | None = None

    async def run(self, load: Load, stop: asyncio.Event) -> Part:
        """Send it; what it brought."""
        entropy = SystemEntropy()
        recorder = self._recorder = Recorder(entropy)
        await Driver(self._backend, recorder, entropy, self._now).run(load, stop)
        return recorder.part()

    def take_tick(self) -> Tick:
        """What happened since the last call."""
        tick = Tick(creates_ms=[]) if self._recorder is None else self._recorder.take_tick()
        tick.cpu_s, tick.rss_mib = own_cost()
        return tick

    async def close(self) -> None:
        """Nothing was started."""


class ProcessFleet:
    """Several processes. Made by `start`."""

    def __init__(self, senders: list[_Sender]) -> None:
        self._senders = senders

    @classmethod
    async def start(cls, access: Access, count: int) -> ProcessFleet:
        """Start so many."""
        fleet = cls([])
        try:
            for _ in range(count):
                fleet._senders.append(await _Sender.start(access))
            for sender in fleet._senders:
                await sender.ready()
        except BaseException:
            await fleet.close()
            raise
        return fleet

    async def run(self, load: Load, stop: asyncio.Event) -> Part:
        """Send it; what it brought."""
        parts = split(load, len(self._senders))
        work = [
            asyncio.ensure_future(sender.run(part))
            for sender, part in zip(self._senders, parts, strict=True)
        ]
        stopping = asyncio.ensure_future(self._stop_when(stop))
        try:
            found = await asyncio.gather(*work)
        finally:
            stopping.cancel()
            for task in work:
                task.cancel()
            await asyncio.gather(stopping, *work, return_exceptions=True)
        total = Recorder(SystemEntropy())
        for part in found:
            total.merge(part)
        return total.part()

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        for sender in self._senders:
            sender.write(_STOP)

    def take_tick(self) -> Tick:
        """What happened since the last call."""
        tick = summed([sender.take_tick() for sender in self._senders])
        cpu_s, rss_mib = own_cost()
        tick.cpu_s += cpu_s
        tick.rss_mib += rss_mib
        return tick

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(sender.close() for sender in self._senders))


class _Sender:
    """One process. Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ticks: list[Tick] = []
        self._last = Tick(creates_ms=[])

    @classmethod
    async def start(cls, access: Access) -> _Sender:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "toque.loadtest.sender",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            start_new_session=True,  # a Ctrl-C is for the one that puts parts together
        )
        made = cls(process)
        made.write(msgspec.json.encode(access) + b"\n")
        return made

    def write(self, line: bytes) -> None:
        """Tell it something; one that ended is noticed by `run`."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(line)

    async def ready(self) -> None:
        """Wait until it can send, so that its start is no part of a load's time."""
        if not (await self._told()).ready:
            raise SenderLost("a process that was to send load did not start.")

    async def run(self, load: Load) -> Part:
        """Send a part; what it brought."""
        self.write(msgspec.json.encode(load) + b"\n")
        while True:
            told = await self._told()
            if told.tick is not None:
                self._ticks.append(told.tick)
            if told.error is not None:
                raise SenderLost(f"a process that sent load failed: {told.error}")
            if told.part is not None:
                return told.part

    async def _told(self) -> Told:
        """What it says next."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise SenderLost("a process that sends load has ended; what it had counted is lost.")
        return msgspec.json.decode(line, type=Told)

    def take_tick(self) -> Tick:
        ticks, self._ticks = self._ticks, []
        found = summed(ticks)
        last = ticks[-1] if ticks else self._last
        found.in_flight, found.cpu_s, found.rss_mib = last.in_flight, last.cpu_s, last.rss_mib
        self._last = last
        return found

    async def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), limits.LOADTEST_END_MAX_MS / 1000)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
