"""Whose code is running right now: a note that outlives the process.

One slot for the event loop and one per thread of bodies, in a file that is mapped into memory:
writing a note costs a copy of some bytes and no system call, and what is written when the process
is killed, exits or crashes can be read by the next one. Notes blame; they decide nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import NamedTuple

from .limits import BODY_THREADS_NOTED_MAX, ENTITY_KEY_CHARS_MAX

LOOP = 0
"""The slot of the event loop."""
_HEAD = 3  # whether there is a note, and its length
_SLOT_BYTES = _HEAD + ENTITY_KEY_CHARS_MAX
_SLOTS = 1 + BODY_THREADS_NOTED_MAX


def notes_path(data_dir: str | os.PathLike[str], shard: str) -> str:
    """Where a shard of a data directory keeps its notes."""
    return os.path.join(data_dir, "notes", shard)


class Blame(NamedTuple):
    """A note that was left behind.

    Attributes:
        key: the instance's Engine's key.
        on_loop: whether its code was on the event loop, and not in a thread.
    """

    key: str
    on_loop: bool


class Notes:
    """See the module's description.

    Args:
        path: the file; what it held is forgotten.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # With the room taken now: a full disk is an error here, and no SIGBUS in `enter`.
            os.posix_fallocate(descriptor, 0, _SLOTS * _SLOT_BYTES)
            self._map = mmap.mmap(descriptor, _SLOTS * _SLOT_BYTES)
        finally:
            os.close(descriptor)
        self._path = path

    @staticmethod
    def tag(key: str) -> bytes:
        """What `enter` writes for an instance; made once per run."""
        raw = key.encode()[:ENTITY_KEY_CHARS_MAX]
        return b"\x01" + len(raw).to_bytes(2, "little") + raw

    def enter(self, slot: int, tag: bytes) -> None:
        """Code of that instance runs from now on."""
        if slot < _SLOTS:
            at = slot * _SLOT_BYTES
            self._map[at : at + len(tag)] = tag

    def leave(self, slot: int) -> None:
        """No instance's code runs in that slot."""
        if slot < _SLOTS:
            self._map[slot * _SLOT_BYTES] = 0

    def close(self) -> None:
        """All is in good order: leave nothing behind."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def read_notes(path: str | os.PathLike[str]) -> list[Blame]:
    """The notes that a process left behind; none if it ended in good order."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError:
        return []
    found = []
    for at in range(0, len(raw) - _SLOT_BYTES + 1, _SLOT_BYTES):
        size = int.from_bytes(raw[at + 1 : at + _HEAD], "little")
        if raw[at] == 1 and 0 < size <= ENTITY_KEY_CHARS_MAX:
            key = raw[at + _HEAD : at + _HEAD + size].decode(errors="replace")
            found.append(Blame(key, at == LOOP))
    return found
