"""What Engines get from the wiring of their shard: one object, shared by all of them.

Frozen, so that an Engine can't change what another relies on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..runtime.blobs import BlobCollector
from ..runtime.histogram import Histogram
from ..runtime.ids import EntityRef
from ..runtime.limits import RETENTION_DEFAULT_MS
from ..runtime.payload_codec import NO_CODECS, Codecs
from ..runtime.store import Store
from .child_calls import ChildrenPort
from .code_host import CodeHost
from .reporter import Reporter


@dataclass(frozen=True, slots=True)
class EngineFaults:
    """Deliberate faults, for the simulator's checkers to find. All are off in earnest.

    Attributes:
        unfenced_attempts: results of attempts that were given up are taken.
        no_announce_alarm: nothing repeats a report that was lost with the process.
    """

    unfenced_attempts: bool = False
    no_announce_alarm: bool = False


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class EngineEnv:
    """See the module's description.

    Attributes:
        loop: the shard's event loop.
        shard: the data shard's name.
        store: the shard's store (`EngineShard` reads index rows from it).
        code_host: where workflows come from and bodies run.
        reporter: tells SousChefs how instances stand.
        local: gives the live entity of this shard, activating it if need be (`host.local`).
        faults: see `EngineFaults`.
        blobs: the shard's streams.
        codecs: what payloads go through on their way to disk.
        crowded: whether the queued are to leave memory soon (`host.crowded`).
        starts_ms: how long those that were granted a slot had waited for it.
        retention: how long instances are kept after success, and after another end, in ms.
        children: makes what workflows start; None: nothing does.
    """

    loop: asyncio.AbstractEventLoop
    shard: str
    store: Store
    code_host: CodeHost
    reporter: Reporter
    local: Callable[[EntityRef], Any]
    faults: EngineFaults = EngineFaults()
    blobs: BlobCollector | None = None
    codecs: Codecs = NO_CODECS
    retention: tuple[int, int] = (RETENTION_DEFAULT_MS, RETENTION_DEFAULT_MS)
    crowded: Callable[[], bool] = _always
    children: ChildrenPort | None = None
    starts_ms: Histogram = field(default_factory=Histogram)
