"""What a batch of messages costs between two processes: a Ray actor call against a unix socket.

For batches of 1, 10 and 100 messages of about 300 bytes, one at a time and with 32 batches in
flight, it prints batches and messages per second, the median latency of a batch, and the CPU time
that both ends together spend on a message. Both paths carry the same encoded bytes to the same
process, which sends back as many; (de)serialising the messages themselves is outside the measure.

Needs about 5 s to start Ray and 15 s to measure; leaves nothing running.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import ray
import typer

from toque.actors import cluster_ray, topology

MESSAGE = b"m" * 300
HEAD_BYTES = 4
PIPELINE = 32


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Frames(asyncio.Protocol):
    """Length-prefixed frames; `on_frame` gets each one."""

    def __init__(self, on_frame: Callable[[asyncio.Transport, bytes], None]) -> None:
        self.on_frame = on_frame
        self.buffer = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer
        buffer += data
        start, have = 0, len(buffer)
        while have - start >= 4:
            size = int.from_bytes(buffer[start : start + HEAD_BYTES], "big")
            if have - start - 4 < size:
                break
            self.on_frame(self.transport, bytes(buffer[start + 4 : start + 4 + size]))
            start += 4 + size
        del buffer[:start]


def echo(transport: asyncio.Transport, frame: bytes) -> None:
    transport.write(len(frame).to_bytes(HEAD_BYTES, "big") + frame)


class Peer:
    """The far end: the same echo by call and by socket."""

    async def open(self, path: str) -> int:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_unix_server(lambda: Frames(echo), path)
        return os.getpid()

    async def call(self, frame: bytes) -> bytes:
        return frame

    async def cpu(self) -> float:
        return cpu_seconds()


async def measure(
    send: Callable[[bytes], Awaitable[Any]], batch: int, in_flight: int, seconds: float
) -> tuple[int, float, list[float]]:
    frame = MESSAGE * batch
    latencies: list[float] = []
    started = time.perf_counter()
    until = started + seconds

    async def worker() -> None:
        while (now := time.perf_counter()) < until:
            await send(frame)
            latencies.append(time.perf_counter() - now)

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return len(latencies), time.perf_counter() - started, latencies


async def run(seconds: float, folder: str) -> None:
    actor = ray.remote(Peer).options(num_cpus=0.01).remote()
    path = os.path.join(folder, "echo")
    await actor.open.remote(path)
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def on_reply(_: asyncio.Transport, __: bytes) -> None:
        waiting.pop(0).set_result(None)

    transport, _ = await loop.create_unix_connection(lambda: Frames(on_reply), path)

    def by_socket(frame: bytes) -> Awaitable[None]:
        future = loop.create_future()
        waiting.append(future)
        transport.write(len(frame).to_bytes(HEAD_BYTES, "big") + frame)
        return future

    def by_call(frame: bytes) -> Awaitable[bytes]:
        return actor.call.remote(frame)  # type: ignore[no-any-return]

    print(
        f"{'path':<9}{'batch':>6}{'in flight':>11}{'batches/s':>11}{'messages/s':>12}"
        f"{'p50 ms':>9}{'CPU us/message':>16}"
    )
    for name, send in (("Ray call", by_call), ("socket", by_socket)):
        await measure(send, 1, 1, 0.2)
        for in_flight in (1, PIPELINE):
            for batch in (1, 10, 100):
                before = cpu_seconds() + await actor.cpu.remote()
                count, took, latencies = await measure(send, batch, in_flight, seconds)
                spent = cpu_seconds() + await actor.cpu.remote() - before
                print(
                    f"{name:<9}{batch:>6}{in_flight:>11}{count / took:>11,.0f}"
                    f"{count * batch / took:>12,.0f}{statistics.median(latencies) * 1e3:>9.3f}"
                    f"{spent / count / batch * 1e6:>16.1f}",
                    flush=True,
                )
    transport.close()


def command(
    seconds: Annotated[float, typer.Option(min=0.1, help="Per line of the table.")] = 1.0,
) -> None:
    """A batch of messages by Ray call and by socket."""
    os.environ.update(topology.process_environment())
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        cluster_ray.start_ray(folder, num_cpus=1)
        try:
            asyncio.run(run(seconds, folder))
        finally:
            ray.shutdown()
