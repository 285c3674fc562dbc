"""The high-water mark of a store: a small file beside it that says which commit was acknowledged.

SQLite can't tell that its last commits are gone: after a damaged page in its log it drops that
commit and all later ones, and a file that was put back from an older copy is in perfect order. The
mark is outside of that file. It is written after each commit is on disk and before anybody hears
of it, so it never claims what the store has not got: a crash at any point leaves a store that is
as new as its mark or newer.

The file is mapped into memory: noting a commit is a copy of 16 bytes and no system call, and it is
not synced with each commit. After the end of a process it is exact; after a power cut it may be
some seconds old, and then notices that much less.

Two slots, each in a page of its own, are written in turns: whatever write a crash tears, the other
one is whole. The newest whole one counts. A slot is a head (whose commits, with a checksum), and
the number of the last commit twice, the second time with its bits changed over.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path

from .chain import LINEAGE_BYTES, NOTHING_CLAIMED, Claim
from .files import write_atomically

_MAGIC = b"tqHW"
_VERSION = 1
_HEAD = struct.Struct(f"<4sIQ{LINEAGE_BYTES}s")
_CHECK = struct.Struct("<Q")
_COMMIT = struct.Struct("<QQ")
_AT_COMMIT = _HEAD.size + _CHECK.size
_OVER = 0xFFFF_FFFF_FFFF_FFFF
_APART = 4096
_BYTES = 2 * _APART


class MarkDamaged(ValueError):
    """A mark that says nothing."""


def mark_path(store: Path) -> Path:
    """The file of a store's mark."""
    return store.with_name(f"{store.name}-mark")


def read_mark(store: Path) -> Claim | None:
    """What a store's mark claims; None if there is no mark.

    Raises:
        MarkDamaged: neither slot is whole, or they are of a newer version.
        OSError: it can't be read.
    """
    path = mark_path(store)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    claims = [claim for at in (0, _APART) if (claim := _read_slot(raw[at : at + _APART]))]
    if not claims:
        raise MarkDamaged(f"{path.name} is damaged, so nobody can tell whether it is the newest")
    return max(claims)


class Mark:
    """An open mark. Belongs to one thread at a time.

    Args:
        store: the store's file; there is a mark beside it.
    """

    def __init__(self, store: Path) -> None:
        descriptor = os.open(mark_path(store), os.O_RDWR | os.O_CLOEXEC)
        try:
            # With the room taken now: a full disk is an error here, and no SIGBUS in `note`.
            os.posix_fallocate(descriptor, 0, _BYTES)
            self._map = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)
        self._at = _AT_COMMIT

    def begin(self, claim: Claim) -> None:
        """A new owner begins: its claim stands in both slots, and on the disk. A former owner may
        still write the number of its last commit into one of them, which is no later.

        Raises:
            OSError: the disk failed.
        """
        slot = _slot(claim)
        for at in (0, _APART):
            self._map[at : at + len(slot)] = slot
        self.sync()

    def note(self, commit: int) -> None:
        """That commit of the owner that began is on disk. The mark is synced when the operating
        system likes."""
        at = self._at = _BYTES - _APART + 2 * _AT_COMMIT - self._at  # the other slot
        _COMMIT.pack_into(self._map, at, commit, commit ^ _OVER)

    def sync(self) -> None:
        """Bring it to the disk.

        Raises:
            OSError: the disk failed.
        """
        self._map.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()


def make_mark(store: Path, claim: Claim = NOTHING_CLAIMED) -> None:
    """Make a mark, or put another one in its place: whole, and on disk.

    Raises:
        OSError: it can't be written.
    """
    write_atomically(mark_path(store), 2 * _slot(claim).ljust(_APART, b"\0"))


def _slot(claim: Claim) -> bytes:
    head = _HEAD.pack(_MAGIC, _VERSION, claim.epoch, claim.lineage)
    commit = _COMMIT.pack(claim.commit, claim.commit ^ _OVER)
    return head + _CHECK.pack(zlib.crc32(head)) + commit


def _read_slot(raw: bytes) -> Claim | None:
    if len(raw) < _AT_COMMIT + _COMMIT.size:
        return None
    magic, version, epoch, lineage = _HEAD.unpack_from(raw)
    commit, over = _COMMIT.unpack_from(raw, _AT_COMMIT)
    is_whole = (
        (magic, version) == (_MAGIC, _VERSION)
        and _CHECK.unpack_from(raw, _HEAD.size)[0] == zlib.crc32(raw[: _HEAD.size])
        and commit == over ^ _OVER
    )
    return Claim(epoch, commit, lineage) if is_whole else None
