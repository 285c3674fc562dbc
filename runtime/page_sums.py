"""What is kept of a store's pages: a checksum of each, and where it stands. Pure.

SQLite takes a page of its main file as it finds it. So beside the store stands a file with a
checksum of every page: a block of 4096 bytes that is its head, and then blocks of 1,023 checksums,
so that the one of page `n` stands at a fixed place. Each block has a checksum of its own. That one
tells which of both is damaged if a page and its checksum differ: if the block is whole, the page
is; if the block would be whole with the checksums that the pages have now, the block is.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

BLOCK_BYTES = 4096
PAGES_PER_BLOCK = BLOCK_BYTES // 4 - 1
_MAGIC = b"tqPS"
_VERSION = 1
_HEAD = struct.Struct("<4sIIQQQQ")
_CHECK = struct.Struct("<I")
_SUMS = struct.Struct(f"<{PAGES_PER_BLOCK}I")


class Head(NamedTuple):
    """What stands before the checksums.

    Attributes:
        page_bytes: the size of a page.
        pages: of how many pages there are checksums.
        epoch, commit: as far as them the checksums tell of the store.
        suspect: a page that was found damaged while its store was open; 0: none was.
    """

    page_bytes: int
    pages: int
    epoch: int
    commit: int
    suspect: int = 0

    def packed(self) -> bytes:
        """As it is kept: a whole block."""
        raw = _HEAD.pack(_MAGIC, _VERSION, *self)
        return (raw + _CHECK.pack(zlib.crc32(raw))).ljust(BLOCK_BYTES, b"\0")


def head_from(raw: bytes) -> Head | None:
    """The head that was kept; None: it is none, or damaged."""
    if len(raw) < _HEAD.size + _CHECK.size:
        return None
    magic, version, *rest = _HEAD.unpack_from(raw)
    whole = (magic, version) == (_MAGIC, _VERSION)
    check = _CHECK.unpack_from(raw, _HEAD.size)[0]
    return Head(*rest) if whole and check == zlib.crc32(raw[: _HEAD.size]) else None


def block_of(page: int) -> int:
    """In which block the checksum of a page stands, from 0; pages count from 1."""
    return (page - 1) // PAGES_PER_BLOCK


def place_of(block: int) -> int:
    """Where a block begins."""
    return (1 + block) * BLOCK_BYTES


def packed_block(block: int, sums: Sequence[int]) -> bytes:
    """A block as it is kept; the rest of it is zeros."""
    raw = _SUMS.pack(*sums, *[0] * (PAGES_PER_BLOCK - len(sums)))
    return _CHECK.pack(zlib.crc32(raw, block)) + raw


def is_whole(block: int, raw: bytes) -> bool:
    """Whether a block is as it was written."""
    return raw[: _CHECK.size] == _CHECK.pack(zlib.crc32(raw[_CHECK.size :], block))


def sums_in(raw: bytes) -> list[int]:
    """The checksums in a block."""
    return list(_SUMS.unpack_from(raw, _CHECK.size))


def mended(block: int, raw: bytes, sums: Sequence[int]) -> bytes | None:
    """The block with other checksums, if its own says that it had those; None: it does not."""
    again = packed_block(block, sums)
    return again if again[: _CHECK.size] == raw[: _CHECK.size] else None


def sums_of(content: memoryview, page_bytes: int) -> list[int]:
    """The checksums of pages that follow each other. Some 4 us each."""
    crc32 = zlib.crc32
    return [crc32(content[at : at + page_bytes]) for at in range(0, len(content), page_bytes)]


def pages_shown(pages: Sequence[int]) -> str:
    """Pages, for people."""
    some = ", ".join(map(str, pages[:5]))
    more = f" and {len(pages) - 5} more" if len(pages) > 5 else ""
    return f"page{'s' * (len(pages) > 1)} {some}{more}"
