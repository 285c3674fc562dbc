"""Changes of files: atomic ones, and names that survive power loss.

Both block on the disk. They raise what the operating system says (`OSError`).
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_of(path: Path) -> Path:
    """The file that `write_atomically` fills, and then puts in the place of this one."""
    return path.with_name(f"{path.name}.tmp")


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a whole file: after a crash at any point it has the old content or the new one.

    One writer at a time; a temporary file that a crash left behind is written over.
    """
    temporary = temporary_of(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # before there is anything to read: it may have been there
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    os.replace(temporary, path)
    sync_folder(path.parent)


def replace_text(path: str, text: str) -> tuple[int, int]:
    """Write a whole file so that others see the old one or the new one, whoever writes beside.

    Not synced: for what counts only while processes run. Gives the new file's inode and device.
    """
    scratch = f"{path}.{os.uname().nodename}.{os.getpid()}"
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
        found = os.fstat(file.fileno())
    os.replace(scratch, path)
    return found.st_ino, found.st_dev
