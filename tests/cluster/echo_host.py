"""A shard that needs no store: it sends frames back, and misbehaves when told to.

Frames it knows: `pid` (answers with the process number), `hang` (blocks the main loop for a
minute), `break` (reports a broken store). The epoch is a number in a file of the data directory;
the file `SHARD.stop` there stops the next process at its start.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toque.actors.topology import ShardSpec
from toque.runtime.errors import StoreFailed, StoreStale, WorkflowLoadError


class Session:
    def __init__(self, shard: EchoShard, send: Callable[[bytes], None]) -> None:
        self.shard = shard
        self.send = send

    def receive(self, frame: bytes) -> None:
        self.shard.frames += 1
        if frame == b"pid":
            print("asked for the pid")
            self.send(str(os.getpid()).encode())
        elif frame == b"hang":
            threading.Event().wait(60)
        elif frame == b"break":
            self.shard.broken = StoreFailed("told to break")
        else:
            self.send(frame)

    def closed(self) -> None:
        """Nothing to give back."""


class EchoShard:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.broken: BaseException | None = None
        self.frames = 0
        self.drained = False

    def serve_session(self, send: Callable[[bytes], None]) -> Session:
        return Session(self, send)

    def statistics(self) -> dict[str, Any]:
        return {"frames": self.frames}

    async def drain(self) -> None:
        self.drained = True

    async def close(self) -> None:
        """There is no store."""


async def build(spec: ShardSpec) -> EchoShard:
    """Open the shard; its settings may say that it can't be."""
    if "load_error" in spec.settings:
        raise WorkflowLoadError(spec.settings["load_error"])
    if spec.settings.get("stale") == spec.shard:
        raise StoreStale("an older copy")
    if "crash" in spec.settings:
        raise OSError(spec.settings["crash"])
    stop = Path(spec.data_dir, f"{spec.shard}.stop")
    if stop.exists():
        stop.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait()  # this thread may go on for a moment; it must write nothing
    path = Path(spec.data_dir, f"{spec.shard}.epoch")
    epoch = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(epoch))
    return EchoShard(epoch)
