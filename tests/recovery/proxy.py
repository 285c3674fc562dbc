"""A TCP proxy that loses replies, stands still and mixes up frames; counts what it did.

It listens on a port of its own and passes bytes on to a server. What it does to what comes back is
the subclass's: `Lossy` cuts the connection in place of a reply, `Stalled` passes nothing on while
it is told to, `Shuffled` gives the frames of toque's links in another order.
"""

from __future__ import annotations

import asyncio
import random
import struct
from types import TracebackType

_READ_BYTES = 64 * 1024
_HEAD = struct.Struct("!I")


class Proxy:
    """Passes all on as it comes.

    Args:
        host, port: the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.connections = 0
        self.faults = 0
        self._to = host, port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        far, forth = await asyncio.open_connection(*self._to)
        there = asyncio.create_task(self._forth(near, forth))
        try:
            await self.back(far, back)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            there.cancel()
            await asyncio.gather(there, return_exceptions=True)
            for writer in (forth, back):
                writer.transport.abort()
            self._tasks.discard(task)

    async def _forth(self, near: asyncio.StreamReader, forth: asyncio.StreamWriter) -> None:
        while data := await near.read(_READ_BYTES):
            forth.write(data)
            await forth.drain()
        forth.write_eof()

    async def back(self, far: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Pass on what the server says."""
        while data := await far.read(_READ_BYTES):
            await self.give(data, back)

    async def give(self, data: bytes, back: asyncio.StreamWriter) -> None:
        """Pass a part on."""
        back.write(data)
        await back.drain()


class Lossy(Proxy):
    """Loses a part of all replies: the connection ends where a reply would have come."""

    def __init__(self, host: str, port: int, share: float, seed: int) -> None:
        super().__init__(host, port)
        self._share = share
        self._chance = random.Random(seed)

    async def give(self, data: bytes, back: asyncio.StreamWriter) -> None:
        if self._chance.random() < self._share:
            self.faults += 1
            raise ConnectionResetError
        await super().give(data, back)


class Stalled(Proxy):
    """Passes nothing back while `open` is not set; connections stay as they are."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.open = asyncio.Event()
        self.open.set()

    async def give(self, data: bytes, back: asyncio.StreamWriter) -> None:
        if not self.open.is_set():
            self.faults += 1
            await self.open.wait()
        await super().give(data, back)


class Shuffled(Proxy):
    """Holds frames of toque's links back until there are a few, and gives them in another order.

    The handshake, two frames, passes as it is.
    """

    HELD = 4

    def __init__(self, host: str, port: int, seed: int) -> None:
        super().__init__(host, port)
        self._chance = random.Random(seed)
        self.flush = False

    async def back(self, far: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await self.give(await self._frame(far), back)
        held: list[bytes] = []
        while True:
            held.append(await self._frame(far))
            if len(held) < self.HELD and not self.flush:
                continue
            mixed = self._chance.sample(held, len(held))
            self.faults += mixed != held
            await self.give(b"".join(mixed), back)
            held.clear()

    async def _frame(self, far: asyncio.StreamReader) -> bytes:
        head = await far.readexactly(_HEAD.size)
        return head + await far.readexactly(_HEAD.unpack(head)[0])
