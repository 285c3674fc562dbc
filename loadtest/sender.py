"""A process that sends its part of a load: `python -m toque.loadtest.sender`.

Lines on stdin: first the access, then loads, each answered by ticks and a part on stdout; `stop`
ends the load that is under way. It ends when stdin closes, in the midst of a load too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

import msgspec
import uvloop

from ..api.client_port import Backend
from ..runtime import limits
from ..runtime.clock import stopwatch_s
from ..runtime.entropy import SystemEntropy
from .driver import Driver
from .fleet import Access, Told, final_backend, own_cost
from .load import Load
from .recorder import Recorder

_TICK_S = 1.0


async def main() -> None:
    """Serve stdin until it closes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * limits.MIB)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    access = msgspec.json.decode(await reader.readline(), type=Access)
    backend = final_backend(access)
    _tell(Told(ready=True))
    try:
        line = await reader.readline()
        while line:
            line = await _one(reader, backend, line)
    finally:
        await backend.close()


async def _one(reader: asyncio.StreamReader, backend: Backend, line: bytes) -> bytes:
    """Send one load; gives the next line."""
    if line == b"stop\n":
        return await reader.readline()
    load = msgspec.json.decode(line, type=Load)
    entropy, stop = SystemEntropy(), asyncio.Event()
    recorder = Recorder(entropy)
    driver = Driver(backend, recorder, entropy, stopwatch_s)
    work = asyncio.ensure_future(driver.run(load, stop))
    ticking = asyncio.ensure_future(_tick(recorder))
    listening = asyncio.ensure_future(reader.readline())
    try:
        await asyncio.wait({work, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            stop.set()
            if not listening.result():
                work.cancel()
        await work
    except Exception as error:
        _tell(Told(error=f"{type(error).__name__}: {error}"))
        raise
    finally:
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking
    _tell_tick(recorder)
    _tell(Told(part=recorder.part()))
    return await listening


async def _tick(recorder: Recorder) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        _tell_tick(recorder)


def _tell_tick(recorder: Recorder) -> None:
    tick = recorder.take_tick()
    tick.cpu_s, tick.rss_mib = own_cost()
    _tell(Told(tick=tick))


def _tell(told: Told) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(told) + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        uvloop.run(main())
