"""Streams: written whole or not at all, kept once, given anew at each replay, and removed."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.rig import Rig, insist, on_virtual_time, rigged
from toque.engines import streams
from toque.engines.body_call import StepContext
from toque.engines.failures import StepFailed
from toque.engines.step import WorkflowStep
from toque.engines.streams import Stream
from toque.engines.workflow import WorkflowEvent, workflow
from toque.runtime import limits
from toque.runtime.codec import decode_json
from toque.runtime.limits import MIB

pytestmark = pytest.mark.loop(factory=on_virtual_time)
CONTENT = b"".join(b"line %d\n" % number for number in range(100_000))
SHA = hashlib.sha256(CONTENT).hexdigest()


def lines() -> Iterator[bytes]:
    """The content, by a plain generator."""
    yield from io.BytesIO(CONTENT)


async def alines() -> AsyncIterator[bytes]:
    """The content, by an asynchronous generator."""
    for start in range(0, len(CONTENT), 65_536):
        await asyncio.sleep(0)
        yield CONTENT[start : start + 65_536]


async def opened() -> Any:
    """A coroutine that gives an iterator."""
    return io.BytesIO(CONTENT)


def views() -> Iterator[Any]:
    """Pieces of other types that hold bytes."""
    yield bytearray(CONTENT[:10])
    yield memoryview(CONTENT)[10:]


def files(rig: Rig) -> list[str]:
    """What is in the folder of streams."""
    folder = rig.folder / "blobs"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("body", [lines, alines, opened, views], ids=lambda body: body.__name__)
async def test_an_iterator_of_bytes_is_kept_and_flows_on(tmp_path: Path, body: Any) -> None:
    seen = []

    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        stream = await step.do("make", body)
        seen.append(stream)
        await step.sleep("nap", 1)

        async def read() -> list[Any]:
            parts = [part async for part in stream]
            return [stream.size, hashlib.sha256(b"".join(parts)).hexdigest()]

        return [*await step.do("read", read), await step.do("sum", lambda: len(stream.read()))]

    async with rigged(tmp_path) as rig:
        await rig.create(flow)
        await rig.status("waiting")
        rig.restart()
        view = await rig.ended()
        assert view.error is None, view.error
        assert decode_json(view.output or b"") == [len(CONTENT), SHA, len(CONTENT)]
        assert seen[0] == seen[1]
        assert seen[0] is not seen[1], "a new object at each replay"
        assert files(rig) == [SHA]
        step = await rig.step("make-1")
        assert decode_json(step.output or b"") == {"stream": {"sha256": SHA, "size": len(CONTENT)}}


async def test_a_file_that_is_one_long_line_is_kept(tmp_path: Path) -> None:
    size = limits.STREAM_CHUNK_BYTES_MAX + 1
    (tmp_path / "dump").write_bytes(bytes(size))

    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        return (await step.do("dump", lambda: (tmp_path / "dump").open("rb"))).size

    async with rigged(tmp_path) as rig:
        assert await rig.run(flow) == size


async def test_an_empty_stream_and_the_same_one_twice(tmp_path: Path) -> None:
    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        empty = await step.do("empty", lambda: iter(()))
        first = await step.do("first", lines)
        again = await step.do("again", lambda: first)
        return [empty.size, first == again, again.size]

    async with rigged(tmp_path) as rig:
        assert await rig.run(flow) == [0, True, len(CONTENT)]
        assert len(files(rig)) == 2, "the same content is kept once"
        parts, offset = [], 0
        while part := await rig.call("read_stream", "again-1", offset):
            parts.append(part)
            offset += len(part)
        assert b"".join(parts) == CONTENT


def numbers() -> Iterator[Any]:
    """No bytes."""
    yield b"good"
    yield 5


def text() -> Iterator[Any]:
    """Text is no bytes."""
    yield "text"


def too_long() -> Iterator[bytes]:
    """A chunk over the bound."""
    yield b"x" * (16 * MIB + 1)


def breaks() -> Iterator[bytes]:
    """An error half-way."""
    yield b"good"
    raise OSError("disk")


async def hangs() -> AsyncIterator[bytes]:
    """Takes for ever."""
    yield b"good"
    await asyncio.sleep(3_600)


@pytest.mark.parametrize(
    ("body", "name", "why", "attempts"),
    [
        (numbers, "InvalidStream", "an iterator that gave a int; streams are of bytes", 1),
        (text, "InvalidStream", "an iterator that gave a str; streams are of bytes", 1),
        (too_long, "InvalidStream", "a chunk of a stream has 16777217 bytes", 1),
        (breaks, "OSError", "disk", 2),
        (hangs, "StepTimeout", "took longer than 5000 ms", 2),
    ],
    ids=["numbers", "text", "long", "breaks", "hangs"],
)
async def test_what_goes_wrong_while_writing_leaves_nothing(
    tmp_path: Path, body: Any, name: str, why: str, attempts: int
) -> None:
    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        try:
            await step.do("make", body, {"retries": {"limit": 1, "delay": 0}, "timeout": 5})
        except StepFailed as error:
            return [error.name, error.message]

    async with rigged(tmp_path) as rig:
        found, message = await rig.run(flow)
        assert found == name
        assert why in message
        assert (await rig.step("make-1")).attempts_total == attempts
        await rig.pass_time(1)
        assert not files(rig)


async def test_a_stream_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.limits, "STREAM_BYTES_MAX", 1_000)

    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        await step.do("make", lines)

    async with rigged(tmp_path) as rig:
        await rig.create(flow)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.message == "a stream may hold 1000 bytes."
        assert not files(rig)


async def test_a_stream_is_not_read_in_run(tmp_path: Path) -> None:
    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        stream = await step.do("make", lines)
        return stream.read()

    async with rigged(tmp_path) as rig:
        await rig.create(flow)
        view = await rig.ended()
        assert view.error is not None
        assert view.error.name == "StepMisuse"
        assert "a stream was read in run()" in view.error.message


async def test_a_sensitive_stream_is_shown_to_nobody(tmp_path: Path) -> None:
    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        stream = await step.do("make", lines, {"sensitive": "output"})
        return stream.size

    async with rigged(tmp_path) as rig:
        assert await rig.run(flow) == len(CONTENT)
        assert (await rig.step("make-1")).output == b'"[REDACTED]"'
        with pytest.raises(Exception, match="has no stream that can be shown"):
            await rig.call("read_stream", "make-1", 0)
        found = await rig.call("step_output", "make-1", "step", 0)
        assert found["output"] == b'"[REDACTED]"'
        assert found["stream_size"] is None


@workflow
async def makes_one(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
    """Makes the same stream as every other instance, and a number of runs."""
    await step.do("make", lines)
    if event.payload:
        return step.continue_as_new(event.payload - 1)
    return None


async def test_a_stream_goes_with_the_last_row_that_names_it(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        for number in (1, 2):
            await rig.create(makes_one, key=f"acc/u1/i{number}")
            await rig.ended(f"acc/u1/i{number}")
        assert files(rig) == [SHA]
        await rig.call("delete", "d1", key="acc/u1/i1")
        await rig.pass_time(1)
        assert files(rig) == [SHA], "another instance names it"
        await rig.call("delete", "d2", key="acc/u1/i2")
        await rig.pass_time(1)
        assert files(rig) == []
        assert not rig.rows("blobs")


async def test_streams_of_a_run_go_with_it(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(makes_one, 2)
        view = await rig.ended()
        assert view.continued == 2
        assert len(rig.rows("blobs")) == 1
        assert files(rig) == [SHA]
        await rig.call("restart", "again", "", 0, "do")
        await rig.ended()
        await rig.pass_time(1)
        assert files(rig) == [SHA]


@workflow
async def makes_its_own(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
    """Each run makes another stream, and goes on as new at once."""
    await step.do("make", lambda: iter([b"of run %d" % event.payload]))
    if event.payload:
        step.continue_as_new(event.payload - 1)


async def test_a_stream_that_a_run_made_last_goes_when_it_continues_as_new(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(makes_its_own, 5)
        assert (await rig.ended()).continued == 5
        await rig.pass_time(1)
        assert files(rig) == [row[2] for row in rig.rows("blobs")]
        assert len(files(rig)) == 1


async def test_what_no_row_names_goes_when_the_shard_is_opened(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.create(makes_one)
        await rig.ended()
        orphan = rig.collector.blobs.write()
        orphan.write(b"nobody's")
        orphan.commit()
        half = rig.collector.blobs.write()
        half.write(b"half")
        assert len(files(rig)) == 3
        rig.restart()
        assert files(rig) == [SHA]
        half.abort()


@pytest.mark.parametrize("outcome", ["lost", "kept"])
async def test_a_stream_over_a_crash_at_every_commit(tmp_path: Path, outcome: Any) -> None:
    @workflow
    async def flow(event: WorkflowEvent[Any], step: WorkflowStep) -> Any:
        def flaky(ctx: StepContext) -> Iterator[bytes]:
            yield b"half"
            if ctx.attempt == 1:
                raise OSError("once")
            yield b"whole"

        stream = await step.do("make", flaky, {"retries": {"limit": 3, "delay": 1}})
        copy = await step.do("copy", lambda: (part.upper() for part in stream))
        return await step.do("read", lambda: copy.read().decode())

    for crash_at in range(1, 30):
        folder = tmp_path / str(crash_at)
        folder.mkdir()
        async with rigged(folder) as rig:
            rig.crash_at = crash_at, outcome
            await insist(rig, lambda: rig.create_call(flow))
            view = await rig.ended()
            assert view.error is None, view.error
            assert view.output == b'"HALFWHOLE"'
            rig.restart()
            assert len(files(rig)) == 2
            if rig.commits < crash_at:
                return


def test_a_stream_object_says_what_it_is(tmp_path: Path) -> None:
    blobs = streams.BlobStore(tmp_path)
    writer = blobs.write()
    writer.write(b"abc")
    stream = Stream(streams.StreamRef(writer.commit(), 3), blobs)
    assert list(stream) == [b"abc"]
    assert {stream} == {stream}
    assert repr(stream) == "Stream(ba7816bf8f01, 3 bytes)"
    with pytest.raises(FileNotFoundError):
        blobs.read("../../etc/passwd", 0, 1)
