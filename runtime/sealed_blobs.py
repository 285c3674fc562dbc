"""Streams at rest as one account writes and reads them: through its codec, part by part.

A sealed file is a row of parts, each with its length before it, then the parts' places (eight bytes
each) and their number (four). What a part holds is what the codec made of its number, whether it
is the last, and up to STREAM_PART_BYTES of content: so no part can be left out, moved or cut off
unnoticed if the codec notices changes at all. Reading from any place on decodes only the parts
that are wanted; nothing ever holds more than a few parts. The file is named by what is on disk, so
that neither name nor length of its parts tell of the content more than the codec does.

An account without a codec has plain files (see `blobs`), and reads both.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .blobs import SEALED, BlobStore, BlobWriter, Writer
from .limits import STREAM_PART_BYTES
from .payload_codec import CodecFailed, Seal

_PART = struct.Struct(">IB")
_LENGTH = struct.Struct(">I")
_PLACE = struct.Struct(">Q")


class SealedWriter:
    """As `BlobWriter`; `size` and `sha256` are of the content."""

    def __init__(self, folder: Path, seal: Seal) -> None:
        self._seal = seal
        self._inner = BlobWriter(folder, SEALED)
        self._hash = hashlib.sha256()
        self._gathered = bytearray()
        self._places: list[int] = []
        self.size = 0

    @property
    def sha256(self) -> str:
        """Of the content so far."""
        return self._hash.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Add a chunk."""
        self._hash.update(chunk)
        self.size += len(chunk)
        self._gathered += chunk
        start = 0
        while len(self._gathered) - start > STREAM_PART_BYTES:  # the last part may be a full one
            self._put(bytes(self._gathered[start : start + STREAM_PART_BYTES]), is_last=False)
            start += STREAM_PART_BYTES
        del self._gathered[:start]

    def commit(self) -> str:
        """See `BlobWriter.commit`."""
        self._put(bytes(self._gathered), is_last=True)
        places = b"".join(map(_PLACE.pack, self._places))
        self._inner.write(places + _LENGTH.pack(len(self._places)))
        return self._inner.commit()

    def abort(self) -> None:
        """See `BlobWriter.abort`."""
        self._inner.abort()

    def _put(self, content: bytes, *, is_last: bool) -> None:
        kept = self._seal.close(_PART.pack(len(self._places), is_last) + content)
        self._places.append(self._inner.size)
        self._inner.write(_LENGTH.pack(len(kept)) + kept)


class SealedStore(BlobStore):
    """See the module's description.

    Args:
        folder: where the files are.
        seal: the account's.
        is_inline: see `BlobStore`.
    """

    def __init__(self, folder: Path, seal: Seal, *, is_inline: bool = False) -> None:
        super().__init__(folder, is_inline=is_inline)
        self.seal = seal

    def write(self) -> Writer:
        """See `BlobStore.write`."""
        return SealedWriter(self.folder, self.seal) if self.seal.writes else super().write()

    def read(self, name: str, offset: int, size: int) -> bytes:
        """See `BlobStore.read`.

        Raises:
            CodecMissing, CodecFailed
        """
        if not name.endswith(SEALED):
            return super().read(name, offset, size)
        first, skip = divmod(offset, STREAM_PART_BYTES)
        wanted = -(-(skip + size) // STREAM_PART_BYTES)
        found = b"".join(self._parts(name, first, first + wanted))
        return found[skip : skip + size]

    def chunks(self, name: str) -> Iterator[bytes]:
        """See `BlobStore.chunks`.

        Raises:
            CodecMissing, CodecFailed
        """
        return self._parts(name, 0, None) if name.endswith(SEALED) else super().chunks(name)

    def _parts(self, name: str, first: int, end: int | None) -> Iterator[bytes]:
        with open(self._path(name), "rb") as file:
            places = _places(file, name)
            for number in range(first, len(places) if end is None else min(end, len(places))):
                file.seek(places[number])
                head = file.read(_LENGTH.size)
                if len(head) < _LENGTH.size:
                    raise _damaged(name)
                raw = self.seal.open(file.read(_LENGTH.unpack(head)[0]))
                is_last = number == len(places) - 1
                if raw[: _PART.size] != _PART.pack(number, is_last):
                    raise _damaged(name)
                yield raw[_PART.size :]


def _places(file: BinaryIO, name: str) -> list[int]:
    size = os.fstat(file.fileno()).st_size
    if size < _LENGTH.size:
        raise _damaged(name)
    file.seek(size - _LENGTH.size)
    count = _LENGTH.unpack(file.read(_LENGTH.size))[0]
    start = size - _LENGTH.size - count * _PLACE.size
    if start < 0:
        raise _damaged(name)
    file.seek(start)
    return [place for (place,) in _PLACE.iter_unpack(file.read(count * _PLACE.size))]


def _damaged(name: str) -> CodecFailed:
    return CodecFailed(f"stream {name} is damaged: a part is missing or not in its place.")
