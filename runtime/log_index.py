"""What the index of a store's log says: which pages are in the log, and where. Pure.

The format is SQLite's, and documented as stable (its "WAL-mode file format", section 2). Numbers
are in the byte order of the machine. Two copies of a head come first, then how much of the log is
in the main file, then the page numbers of all frames, in parts between which hash tables stand.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

LOG_HEAD_BYTES = 32
FRAME_HEAD_BYTES = 24
_HEAD = struct.Struct("=IIIBBHII")
_HEAD_BYTES = 48
_BACKFILLED_AT = 2 * _HEAD_BYTES
_VERSION = 3_007_000
_PART_BYTES = 32_768
_FIRST_AT = 136
_PER_PART = 4_096
_IN_FIRST = _PER_PART - _FIRST_AT // 4


class LogIndex(NamedTuple):
    """The log of a store.

    Attributes:
        frames: how many there are.
        pages: of how many pages the store is, with what is in the log.
        is_copied: the main file has all that is in the log, so the next commit may begin it anew.
        page_bytes: the size of a page; 0: nothing is in the log, nor was.
        latest: by page, the last frame that has it, from 0.
    """

    frames: int
    pages: int
    is_copied: bool
    page_bytes: int
    latest: dict[int, int]

    def place_of(self, frame: int) -> int:
        """Where a frame begins in the log."""
        return LOG_HEAD_BYTES + frame * self.frame_bytes

    @property
    def frame_bytes(self) -> int:
        """The size of a frame."""
        return FRAME_HEAD_BYTES + self.page_bytes


def bytes_needed(head: bytes) -> int:
    """How much of an index there is to read, by the first bytes of it."""
    frames = _HEAD.unpack_from(head)[6] if len(head) >= _HEAD_BYTES else 0
    return _PART_BYTES * (1 + max(0, frames - _IN_FIRST + _PER_PART - 1) // _PER_PART)


def log_index(raw: bytes) -> LogIndex | None:
    """The index, read while nobody else writes; None: it is not in order."""
    if len(raw) < _FIRST_AT or raw[:_HEAD_BYTES] != raw[_HEAD_BYTES:_BACKFILLED_AT]:
        return None
    version, _, _, is_made, _, page_bytes, frames, pages = _HEAD.unpack_from(raw)
    if version != _VERSION or is_made != 1 or len(raw) < bytes_needed(raw):
        return None
    (copied,) = struct.unpack_from("=I", raw, _BACKFILLED_AT)
    numbers: list[int] = []
    at, room = _FIRST_AT, _IN_FIRST
    part = 0
    while len(numbers) < frames:
        numbers += struct.unpack_from(f"={min(room, frames - len(numbers))}I", raw, at)
        part += 1
        at, room = part * _PART_BYTES, _PER_PART
    latest = dict(zip(numbers, range(frames), strict=True))
    size = 65_536 if page_bytes == 1 else page_bytes
    return LogIndex(frames, pages, copied >= frames, size, latest)
