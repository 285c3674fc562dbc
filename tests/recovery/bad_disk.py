"""Disks that misbehave: a library that makes syncs fail or last, and a file system of few bytes.

The library is bad_disk.c. The small file systems need the right to mount, in a namespace that ends
with the process; where that can't be had, the tests that need it are skipped and say why.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery.preloaded import built

SOURCE = Path(__file__).with_name("bad_disk.c")
_NUMBERS = struct.Struct("=4Q")
_ASKED, _TO_FAIL, _FAILED, _DELAY_US = range(4)


class BadDisk:
    """What the library is told, and what it counts; holds for all processes that have it."""

    def __init__(self, library: Path, control: Path) -> None:
        self.environment = {"LD_PRELOAD": str(library), "BAD_DISK": str(control)}
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBERS.size)

    def _get(self, which: int) -> int:
        return int(_NUMBERS.unpack_from(self._map)[which])

    def _set(self, which: int, value: int) -> None:
        struct.pack_into("=Q", self._map, 8 * which, value)

    @property
    def asked(self) -> int:
        """How many syncs were asked for."""
        return self._get(_ASKED)

    @property
    def failed(self) -> int:
        """How many have failed."""
        return self._get(_FAILED)

    def fail(self, number: int) -> None:
        """Have so many of the next syncs fail with EIO."""
        self._set(_TO_FAIL, number)

    def delay(self, ms: float) -> None:
        """Have each sync take so much longer."""
        self._set(_DELAY_US, round(ms * 1000))

    def close(self) -> None:
        """Let go of the numbers."""
        self._map.close()


@contextlib.contextmanager
def bad_disk(folder: Path) -> Iterator[BadDisk]:
    """The library, built into a folder."""
    library, control = built(SOURCE, folder), folder / "bad_disk.told"
    control.write_bytes(bytes(_NUMBERS.size))
    disk = BadDisk(library, control)
    try:
        yield disk
    finally:
        disk.close()


def on_tmpfs(folder: Path, options: str) -> list[str]:
    """The words before a command that runs it with a file system of its own at `folder`.

    Args:
        options: of the mount, such as `size=32m`.
    """
    unshare = shutil.which("unshare")
    mounts = f"mount -t tmpfs -o {options} tmpfs {folder}"
    words = [str(unshare), "--mount", "--propagation", "private"]
    if os.getuid() != 0:
        words += ["--user", "--map-root-user"]
    tried = unshare and subprocess.run(
        [*words, "sh", "-c", mounts], capture_output=True, text=True, timeout=60
    )
    if not tried or tried.returncode:
        why = tried.stderr.strip() if tried else "there is no unshare"
        pytest.skip(f"no file system can be mounted here: {why}")
    return [*words, "sh", "-c", f'{mounts} && exec "$0" "$@"']


def seen_by(pid: int, path: Path) -> Path:
    """A path as a process with mounts of its own sees it."""
    return Path(f"/proc/{pid}/root{path}")
