"""Streams: results of steps that are too large for a row.

A body that returns an iterator of bytes, plain or asynchronous (a generator, an open binary file,
a `Stream`), has it written to a file, chunk by chunk, within the attempt's own time. `run` gets a
`Stream`, a new object at each replay, and hands it to the bodies of other steps. A chunk of
another type, one that is too long, an error or a time-out while writing: the attempt fails, and
nothing is left behind.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn

import msgspec

from ..runtime import limits
from ..runtime.blobs import BlobStore, Writer
from ..runtime.sealed_blobs import SealedStore
from .failures import NonRetryableError, StepMisuse
from .loop import WorkflowLoop


class InvalidStream(NonRetryableError):
    """A body's iterator gave something else than bytes, or more than a stream may hold."""

    code = "step.invalid_stream"
    number = 10333


class StreamRef(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Names a stream's content: SHA-256 and length in bytes; and its file, if that is sealed."""

    sha256: str
    size: int
    sealed: str = ""

    @property
    def file(self) -> str:
        """The name of its file."""
        return self.sealed or self.sha256

    def shown(self) -> bytes:
        """As a step's output is shown: the name of a file is nobody's business outside."""
        return msgspec.json.encode({"stream": {"sha256": self.sha256, "size": self.size}})


class Stream:
    """A step's result that lives in a file. Read it in the body of a step, not in `run`.

    Iterate over it (`for`, or `async for`), or take all of it with `read`.

    Attributes:
        sha256: of its content.
        size: in bytes.
    """

    __toque_stream__ = True
    __slots__ = ("_blobs", "_file", "sha256", "size")

    def __init__(self, ref: StreamRef, blobs: BlobStore) -> None:
        self.sha256 = ref.sha256
        self.size = ref.size
        self._file = ref.file
        self._blobs = blobs

    def __repr__(self) -> str:
        return f"Stream({self.sha256[:12]}, {self.size} bytes)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.sha256 == self.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __iter__(self) -> Iterator[bytes]:
        _refuse_in_run()
        return self._blobs.chunks(self._file)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        _refuse_in_run()
        for offset in range(0, self.size, limits.STREAM_PART_BYTES):
            yield self._blobs.read(self._file, offset, limits.STREAM_PART_BYTES)
            await asyncio.sleep(0)

    def read(self) -> bytes:
        """All of it."""
        return b"".join(self)


def _refuse_in_run() -> None:
    if isinstance(asyncio._get_running_loop(), WorkflowLoop):
        raise StepMisuse(
            "a stream was read in run(). Wrong: `data = stream.read()` in run(). Right: "
            "`await step.do('parse', lambda: parse(stream))`."
        )


_NO_STREAMS = frozenset((dict, list, str, int, float, bool, bytes, tuple, type(None)))
"""Types of most results."""


def is_stream(value: Any) -> bool:
    """Whether a body's result is to be written to a file."""
    kind = type(value)
    if kind in _NO_STREAMS:
        return False
    return kind is Stream or hasattr(kind, "__anext__") or hasattr(kind, "__next__")


def drained(
    fn: Callable[..., Any], is_async: bool, blobs: BlobStore | None, *, is_kept: bool = True
) -> Callable[..., Any]:
    """A body that gives a `StreamRef` where `fn` gives a stream, and else what it gives.

    Of a rollback nothing is kept (`is_kept`): a stream from it is refused.
    """
    if is_async:

        async def on_loop(**kwargs: Any) -> Any:
            value = await fn(**kwargs)
            return await kept(value, blobs, is_kept=is_kept) if is_stream(value) else value

        return on_loop

    def in_thread(**kwargs: Any) -> Any:
        value = fn(**kwargs)
        if not is_stream(value):
            return value
        if not is_kept:
            return _refuse_unkept(value)
        if hasattr(type(value), "__anext__"):
            return _drain(value, blobs)
        return _drain_plain(value, blobs)

    return in_thread


async def kept(stream: Any, blobs: BlobStore | None, *, is_kept: bool) -> StreamRef:
    """The reference to a stream that a body on the loop gave, once it is written."""
    return await _drain(stream, blobs) if is_kept else _refuse_unkept(stream)


def _refuse_unkept(stream: Any) -> NoReturn:
    if not hasattr(type(stream), "__anext__"):
        getattr(stream, "close", lambda: None)()
    raise InvalidStream(
        f"a rollback returned a {type(stream).__name__}, and what a rollback gives is not kept, so "
        "nothing would read it. Right: a function that does the work and returns nothing."
    )


async def _drain(stream: Any, blobs: BlobStore | None) -> StreamRef:
    """Write an asynchronous stream. Syncing may take a while: it is done in a thread."""
    if not hasattr(type(stream), "__anext__"):
        return _drain_plain(stream, blobs)
    writer = _writer(blobs)
    try:
        async for chunk in stream:
            _write(writer, chunk)
        if blobs is None or blobs.is_inline:
            return _kept(writer)
        return await asyncio.to_thread(_kept, writer)
    finally:
        writer.abort()
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def _drain_plain(stream: Any, blobs: BlobStore | None) -> StreamRef:
    writer = _writer(blobs)
    try:
        for chunk in _parts_of(stream):
            _write(writer, chunk)
        return _kept(writer)
    finally:
        writer.abort()
        getattr(stream, "close", lambda: None)()


def _parts_of(stream: Any) -> Any:
    """Of a file parts of a size, whatever its lines are: it may be one line."""
    if isinstance(stream, (io.BufferedIOBase, io.RawIOBase)):
        return iter(lambda: stream.read(limits.STREAM_PART_BYTES), b"")
    return stream


def _kept(writer: Writer) -> StreamRef:
    file = writer.commit()
    return StreamRef(writer.sha256, writer.size, file if file != writer.sha256 else "")


def _writer(blobs: BlobStore | None) -> Writer:
    if isinstance(blobs, SealedStore) and blobs.seal.is_absent:
        raise InvalidStream(
            "a stream can't be kept here: its account has a codec that was given as an object, "
            "which other processes can't have. Right: its name, such as 'shop.security:codec'; or "
            "leave `ray_options` and `placement` out."
        )
    try:
        if blobs is not None:
            return blobs.write()
    except FileNotFoundError:
        pass
    raise InvalidStream(
        "a stream can't be kept here: the body runs apart from the shard's disk. Return the place "
        "where the data is, or leave `ray_options` and `placement` out."
    )


def _write(writer: Writer, chunk: Any) -> None:
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise InvalidStream(
            f"a body returned an iterator that gave a {type(chunk).__name__}; streams are of "
            "bytes. Wrong: `return (n for n in numbers)`. Right: `return list(numbers)`, or "
            "`yield line.encode()`."
        )
    size = chunk.nbytes if isinstance(chunk, memoryview) else len(chunk)
    if size > limits.STREAM_CHUNK_BYTES_MAX:
        raise InvalidStream(
            f"a chunk of a stream has {size} bytes; at most {limits.STREAM_CHUNK_BYTES_MAX} fit."
        )
    if writer.size + size > limits.STREAM_BYTES_MAX:
        raise InvalidStream(f"a stream may hold {limits.STREAM_BYTES_MAX} bytes.")
    writer.write(bytes(chunk))


def stream_of(result: bytes, blobs: BlobStore | None) -> Stream:
    """The stream that a record's result tells of."""
    ref = ref_of(result)
    if blobs is None:
        raise InvalidStream("the streams of this shard can't be reached from here.")
    return Stream(ref, blobs)


def ref_of(result: bytes) -> StreamRef:
    """The reference within a record's result."""
    return msgspec.json.decode(result, type=dict[str, StreamRef])["stream"]
