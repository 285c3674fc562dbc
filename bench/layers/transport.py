"""A batch of calls over the socket between processes, against a bare echo of as many bytes.

Both ends of both are on one event loop: the CPU of the process is that of both ends. What the
transport adds: calls and answers as messages, futures, deadlines, the check of who owns the shard.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from toque.runtime import link_socket, rpc
from toque.runtime.entropy import SystemEntropy
from toque.runtime.ids import EntityRef, Placement

from . import Row, Sample, in_turns

ARGUMENT = "m" * 300
TOKEN = b"a token of this benchmark alone"
_HEAD_BYTES = 4


class _Owner:
    """A store that is owned for good."""

    epoch = 1

    def verify_owner(self) -> None:
        """Always."""


class _Echo:
    """A host that answers each call with its arguments."""

    store: Any = _Owner()

    def deliver(self, call: Any, answer: rpc.Answer) -> None:
        answer(call.id, True, bytes(call.args))


class _Frames(asyncio.Protocol):
    """Frames with a length before them; sends each back, or tells `waiter`."""

    def __init__(self, echoes: bool) -> None:
        self._echoes = echoes
        self._buffer = bytearray()
        self.waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        size = int.from_bytes(self._buffer[:_HEAD_BYTES], "big")
        if len(self._buffer) < _HEAD_BYTES + size:
            return
        frame = bytes(self._buffer)
        self._buffer.clear()
        if self._echoes:
            self.transport.write(frame)
        elif self.waiter is not None:
            self.waiter.set_result(None)


async def measure(folder: Path, scale: float) -> list[Row]:
    """Batches of 1, 10 and 100 calls, one batch at a time."""
    loop = asyncio.get_running_loop()
    placement, ref = Placement(1, 1), EntityRef("bench", "echo")
    shard, entropy = placement.shard_of(ref), SystemEntropy()
    sessions = rpc.ShardServer(_Echo(), loop)
    server = link_socket.LinkServer(shard, 1, TOKEN, entropy, sessions.session)
    address = await server.listen(f"unix:{folder}/l.sock")
    links = link_socket.SocketLinks(lambda shard: address, TOKEN, loop, entropy)
    router = rpc.Router(placement, links, loop)
    bare_server = await loop.create_unix_server(lambda: _Frames(True), f"{folder}/b.sock")
    bare, echo = await loop.create_unix_connection(lambda: _Frames(False), f"{folder}/b.sock")
    try:
        found = []
        for size in (1, 10, 100):
            times = max(3, int(1_000 / size**0.5 * scale))

            async def layer(size: int = size, times: int = times) -> Sample:
                start = time.process_time()
                for _ in range(times):
                    await asyncio.gather(*(router.call(ref, "m", ARGUMENT) for _ in range(size)))
                return ((time.process_time() - start) / times * 1e6,)

            async def alone(size: int = size, times: int = times) -> Sample:
                body = ARGUMENT.encode() * size
                frame = len(body).to_bytes(_HEAD_BYTES, "big") + body
                start = time.process_time()
                for _ in range(times):
                    echo.waiter = loop.create_future()
                    bare.write(frame)
                    await echo.waiter
                return ((time.process_time() - start) / times * 1e6,)

            ((us, bare_us),) = await in_turns(layer, alone)
            what = f"batch of {size} call{'s' * (size > 1)}"
            found.append(Row("transport", what, us, "asyncio echo of the bytes", bare_us))
        return found
    finally:
        bare.close()
        bare_server.close()
        router.close()
        await server.close()
