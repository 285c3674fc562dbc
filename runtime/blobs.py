"""Streams at rest: content-addressed files of one shard, beside its store.

A file's name is the SHA-256 of its content, so the same content is kept once. A file is written
under a passing name, synced, and then renamed: what has its final name is whole and on disk, and
only then may a row name it. What no row names is removed: at once when the last row goes (but not
sooner than `linger_ms` after it was written, for its row may be on its way), and when the shard is
opened. What a crash left half-written goes then, too. What a body wrote that had been given up was
never named; it goes when two looks, STREAM_SWEEP_MS apart, have found it so.

Several processes may write (a shard's workers do); only the shard removes, and only it makes the
folder: who does not find that is on a machine with another disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

from . import limits

_log = logging.getLogger("toque.runtime")
SEALED = "-sealed"
"""Ends the names of files that went through a codec; see `sealed_blobs`."""
_NAME = re.compile(rf"[0-9a-f]{{64}}({SEALED})?\Z")
_PASSING = "passing-"
_numbers = itertools.count()


class Writer(Protocol):
    """A stream that is being written; see `BlobWriter`.

    Attributes:
        size: of its content so far, in bytes.
    """

    size: int

    @property
    def sha256(self) -> str:
        """Of its content so far."""

    def write(self, chunk: bytes) -> None:
        """Add a chunk."""

    def commit(self) -> str:
        """It is whole: sync it and give it its name, which is returned."""

    def abort(self) -> None:
        """Leave nothing behind. After `commit` it does nothing."""


class BlobWriter:
    """One file that is being written. `commit` or `abort` ends it."""

    def __init__(self, folder: Path, suffix: str = "") -> None:
        self._folder = folder
        self._suffix = suffix
        self._path = folder / f"{_PASSING}{os.getpid()}-{next(_numbers)}"
        self._file = open(self._path, "xb")  # noqa: SIM115 - closed by commit or abort
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        """Of what has been written."""
        return self._hash.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Add a chunk."""
        self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def commit(self) -> str:
        """It is whole: sync it and give it its name, which is returned."""
        name = self.sha256 + self._suffix
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._path, self._folder / name)
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return name

    def abort(self) -> None:
        """Leave nothing behind. After `commit` it does nothing."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class BlobStore:
    """The files of a shard; see the module's description.

    Args:
        folder: where they are.
        is_inline: use no threads (virtual time has none).
    """

    def __init__(self, folder: Path, *, is_inline: bool = False) -> None:
        self.folder = folder
        self.is_inline = is_inline

    def write(self) -> Writer:
        """Begin a file.

        Raises:
            FileNotFoundError: there is no such folder: the shard's disk is elsewhere.
        """
        return BlobWriter(self.folder)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """A part of a file; shorter at its end.

        Raises:
            FileNotFoundError
        """
        with open(self._path(name), "rb") as file:
            file.seek(offset)
            return file.read(size)

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file's content, part by part."""
        with open(self._path(name), "rb") as file:
            while chunk := file.read(limits.STREAM_PART_BYTES):
                yield chunk

    def names(self) -> list[str]:
        """All whole files."""
        try:
            found = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in found if _NAME.match(name))

    def sweep(self, named: Iterable[str]) -> None:
        """Remove all but those: for a shard that has just been opened."""
        kept = set(named)
        try:
            found = os.listdir(self.folder)
        except FileNotFoundError:
            return
        for name in found:
            if name not in kept and (_NAME.match(name) or name.startswith(_PASSING)):
                (self.folder / name).unlink(missing_ok=True)

    def age_ms(self, name: str) -> int:
        """How long ago a file was written, by the clock of its file system."""
        probe = self.folder / f"{_PASSING}{os.getpid()}-{next(_numbers)}"
        probe.touch()
        try:
            age_ns = probe.stat().st_mtime_ns - self._path(name).stat().st_mtime_ns
        finally:
            probe.unlink()
        return max(0, age_ns // 1_000_000)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.match(name):
            raise FileNotFoundError(f"{name!r:.80} is no name of a stream")
        return self.folder / name


class BlobCollector:
    """Removes files that no row names any more.

    Args:
        blobs: the files.
        is_named: whether a committed row names a file.
        loop: the shard's event loop.
        linger_ms: see the module's description.
    """

    def __init__(
        self,
        blobs: BlobStore,
        is_named: Callable[[str], bool],
        loop: asyncio.AbstractEventLoop,
        linger_ms: int = limits.STREAM_LINGER_MS,
    ) -> None:
        self.blobs = blobs
        self._is_named = is_named
        self._loop = loop
        self._linger_ms = linger_ms
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unnamed: set[str] = set()
        blobs.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._look_later()

    def release(self, names: Iterable[str]) -> None:
        """Rows that named these have been deleted, durably."""
        for name in names:
            if name not in self._timers:
                self._collect(name)

    def close(self) -> None:
        """Collect no more; the next opening sweeps."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._looking.cancel()

    def _look_later(self) -> None:
        wait_s = limits.STREAM_SWEEP_MS / 1_000
        self._looking: asyncio.Handle = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        former, self._unnamed = self._unnamed, set()
        self._look_at(iter(self.blobs.names()), former)

    def _look_at(self, names: Iterator[str], former: set[str]) -> None:
        """Some of the names, then the rest: others of the shard have their turn in between."""
        some = list(islice(names, limits.STREAM_SWEEP_NAMES))
        for name in some:
            if name not in self._timers and not self._is_named(name):
                if name in former:
                    self._collect(name)
                else:
                    self._unnamed.add(name)
        if some:
            self._looking = self._loop.call_soon(self._look_at, names, former)
        else:
            self._look_later()

    def _collect(self, name: str) -> None:
        self._timers.pop(name, None)
        try:
            if self._is_named(name):
                return
            left_ms = self._linger_ms - self.blobs.age_ms(name)
            if left_ms > 0:
                self._timers[name] = self._loop.call_later(left_ms / 1_000, self._collect, name)
            else:
                self.blobs.remove(name)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("stream %s can't be removed: %s", name, error)
