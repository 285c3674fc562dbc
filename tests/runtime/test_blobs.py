"""Files of streams that no row ever named are found and removed, and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from toque.runtime import limits
from toque.runtime.blobs import BlobCollector, BlobStore
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)
EVERY_S = limits.STREAM_SWEEP_MS / 1_000


def written(blobs: BlobStore, content: bytes) -> str:
    writer = blobs.write()
    writer.write(content)
    return writer.commit()


async def test_what_no_row_ever_named_goes_at_the_second_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_SWEEP_NAMES", 2)
    blobs, named = BlobStore(tmp_path), set[str]()
    collector = BlobCollector(blobs, named.__contains__, asyncio.get_running_loop(), linger_ms=0)
    lost = {written(blobs, b"lost %d" % number) for number in range(5)}
    named |= {written(blobs, b"named %d" % number) for number in range(5)}
    late = written(blobs, b"its row comes late")
    await asyncio.sleep(1.5 * EVERY_S)
    assert set(blobs.names()) == lost | named | {late}
    named.add(late)
    young = written(blobs, b"of just now")
    await asyncio.sleep(EVERY_S)
    assert set(blobs.names()) == named | {young}
    collector.close()
    await asyncio.sleep(3 * EVERY_S)
    assert young in blobs.names(), "nobody looks any more"
