"""Streams of accounts with a codec: nothing readable on disk, wherever they are written."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api import sealing
from tests.engines.worker_app import Streaming, lines_of, numbers
from toque import StepContext, WorkflowEvent, WorkflowStep, embedded, workflow
from toque.engines.codec_names import codecs_of
from toque.engines.stream_store import StreamStore
from toque.runtime.blobs import BlobStore
from toque.runtime.limits import STREAM_PART_BYTES as PART
from toque.runtime.payload_codec import CodecFailed, CodecMissing, Seal
from toque.runtime.sealed_blobs import SealedStore, SealedWriter

TAIL = b"\n99998\n99999\n"
SEAL = Seal("acc", [sealing.codec])


def on_disk(data: Path) -> bytes:
    """All that is in the data directory."""
    return b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())


def kept(store: BlobStore, content: bytes, chunk: int) -> str:
    """The name under which a content is kept."""
    writer = store.write()
    for start in range(0, len(content), chunk):
        writer.write(content[start : start + chunk])
    name = writer.commit()
    assert writer.size == len(content)
    return name


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 3 * PART + 5])
def test_a_sealed_stream_comes_back_whole_and_from_any_place(tmp_path: Path, size: int) -> None:
    content = (b"a line that nobody may read\n" * (size // 28 + 1))[:size]
    store = SealedStore(tmp_path, SEAL)
    name = kept(store, content, 99_991)
    assert kept(store, content, PART) == name, "the same content is kept once"
    assert store.names() == [name]
    assert b"nobody may read" not in on_disk(tmp_path)
    assert b"".join(store.chunks(name)) == content
    for offset in (0, 1, PART - 1, PART, size - 1, size, size + PART):
        if offset >= 0:
            assert store.read(name, offset, PART) == content[offset : offset + PART]


def test_a_writer_holds_no_more_than_a_part(tmp_path: Path) -> None:
    writer = SealedStore(tmp_path, SEAL).write()
    assert isinstance(writer, SealedWriter)
    for _ in range(50):
        writer.write(b"x" * 100_000)
        assert len(writer._gathered) <= PART
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_parts_that_are_cut_off_moved_or_of_another_codec_are_noticed(tmp_path: Path) -> None:
    store = SealedStore(tmp_path, SEAL)
    name = kept(store, bytes(3 * PART), PART)
    path = tmp_path / name
    whole = path.read_bytes()
    places, count = whole[-28:-4], whole[-4:]
    for damaged in (
        whole[:-28] + places[8:16] + places[:8] + places[16:] + count,  # moved
        whole[:-28] + places[:16] + (2).to_bytes(4),  # the last is left out
        whole[: PART // 2],
        b"",
    ):
        path.write_bytes(damaged)
        with pytest.raises(CodecFailed):
            list(store.chunks(name))
    path.write_bytes(whole)
    with pytest.raises(CodecMissing, match="flip"):
        list(SealedStore(tmp_path, Seal("acc")).chunks(name))


def test_what_was_written_before_there_was_a_codec_stays_readable(tmp_path: Path) -> None:
    name = kept(BlobStore(tmp_path), b"plain", 2)
    store = SealedStore(tmp_path, SEAL)
    assert (b"".join(store.chunks(name)), store.read(name, 1, 3)) == (b"plain", b"lai")


def test_a_store_that_is_sent_carries_the_codecs_names_and_no_key(tmp_path: Path) -> None:
    sealed = codecs_of({"acc": sealing.NAME}).seal("acc")
    sent = pickle.dumps(StreamStore(tmp_path, sealed))
    assert sealing.codec.key.encode() not in sent
    there: StreamStore = pickle.loads(sent)
    assert b"".join(there.chunks(kept(there, b"secret", 2))) == b"secret"
    assert b"secret" not in on_disk(tmp_path)
    assert pickle.loads(pickle.dumps(StreamStore(tmp_path, SEAL))).seal.is_absent
    assert not pickle.loads(pickle.dumps(StreamStore(tmp_path, Seal("acc")))).seal.writes


@workflow
async def here(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
    """A stream made in the shard's process and read there."""

    def make(ctx: StepContext) -> Iterator[bytes]:
        return numbers()

    made = await step.do("made", make)
    return await step.do("lines", lambda: lines_of(made))


async def test_streams_are_sealed_in_the_shard_and_in_workers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    codecs: Any = {"default": sealing.NAME}
    async with embedded(data, [here, Streaming], codecs=codecs) as runtime:
        client = runtime.client()
        one = await client.create_instance("here")
        assert await one.output(timeout=30) == [100_000, os.getpid()]
        two = await client.create_instance("Streaming")
        (lines, pid), (again, _) = await two.output(timeout=60)
        assert (lines, again) == (100_000, 100_000)
        assert pid != os.getpid()
        for instance, name in ((one, "made-1"), (two, "made-1"), (two, "again-1")):
            content = b"".join([part async for part in instance.stream(name)])
            assert content.endswith(TAIL)
            shown = (await instance.step_output(name)).output
            assert shown["stream"].keys() == {"sha256", "size"}, "the file is nobody's business"
    assert TAIL not in on_disk(data)
    assert len(list(data.rglob("*-sealed"))) >= 1


async def test_a_codec_that_a_worker_can_not_have_keeps_it_from_writing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with embedded(data, [Streaming], codecs={"default": sealing.codec}) as runtime:
        instance = await runtime.client().create_instance("Streaming")
        status = await instance.wait(60)
        assert status.error is not None
        assert status.error.name == "InvalidStream"
        assert "was given as an object" in status.error.message
    assert TAIL not in on_disk(data)
