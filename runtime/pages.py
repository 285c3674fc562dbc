"""The pages of a store's main file, compared with the checksums that are kept beside it.

Checksums follow the main file, and cost a commit nothing: after a checkpoint has copied pages
from the log, and before the next commit may begin the log anew, the checksums of what is in the log
are written and synced. Until then the log has each of these pages, so nobody reads them in the
main file, and they are not compared. A crash at any point leaves a log that overrides all that may
be half written in either file: the same work is done again.

Who brings the checksums up to date holds the store's write lock. What is written follows from the
log alone, so it is right whoever does it.

A process that closes *any* descriptor of a file loses its locks on it, SQLite's included (POSIX).
So the main file and the log's index are opened once in a process, and closed when nobody in it has
the store open any more.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Container, Sequence
from pathlib import Path

from .errors import StoreDamaged
from .files import write_atomically
from .log_index import FRAME_HEAD_BYTES, LogIndex, bytes_needed, log_index
from .page_sums import (
    BLOCK_BYTES,
    PAGES_PER_BLOCK,
    Head,
    block_of,
    head_from,
    is_whole,
    mended,
    packed_block,
    pages_shown,
    place_of,
    sums_in,
    sums_of,
)

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 18  # between two reads the interpreter is held for 0.3 ms
_PAGE_BYTES_AT = 16  # in the head of a main file
_PAGE_BYTES = {0: 4096, 1: 65_536} | {1 << power: 1 << power for power in range(9, 16)}
"""By what stands there; nothing does as yet in an empty file."""
_NO_PAGES: Container[int] = ()


class PagesDamaged(ValueError):
    """A page is not as it was written, or nobody can tell."""


def sums_path(store: Path) -> Path:
    """The file with the checksums of a store's pages."""
    return store.with_name(f"{store.name}-sums")


def damaged(store: Path, why: str) -> StoreDamaged:
    """The error for a store whose pages are damaged."""
    return StoreDamaged(
        f"{store} is damaged: {why}. It is left as it is. Put back the newest files, or the whole "
        "directory from one backup; or go on with it as it is: "
        f"toque doctor --data DIR --accept-loss {store.stem}.",
        {"shard": store.stem, "reason": why},
    )


class Pages:
    """A store's pages and their checksums. Belongs to one thread at a time.

    Args:
        store: its main file. Make this before SQLite opens it, and close it after.
        durable: sync what is written.
    """

    def __init__(self, store: Path, durable: bool = True) -> None:
        self._store = store
        self._sums = sums_path(store)
        self._durable = durable
        self._files = _hold(store)
        self._is_closed = False
        self.compared = 0
        """How many pages were."""

    def close(self) -> None:
        """Let go of the files."""
        if not self._is_closed:
            self._is_closed = True
            _release(self._files)

    # --- what there is ---

    def log(self) -> LogIndex:
        """What is in the log. Under the store's write lock, or while nobody writes.

        Raises:
            PagesDamaged: the main file is.
            OSError: its index can't be read.
        """
        try:
            shared = self._files.opened(f"{self._store}-shm")
        except FileNotFoundError:
            return LogIndex(0, 0, True, self._page_bytes(), {})
        found = log_index(os.pread(shared, bytes_needed(os.pread(shared, 4096, 0)), 0))
        if found is None:
            raise OSError(None, f"the index of the log of {self._store.name} is not in order")
        return found if found.page_bytes else found._replace(page_bytes=self._page_bytes())

    def head(self) -> Head | None:
        """The head of the checksums; None: it is damaged.

        Raises:
            PagesDamaged: there are none.
            OSError: they can't be read.
        """
        try:
            with self._sums.open("rb") as file:
                return head_from(file.read(BLOCK_BYTES))
        except FileNotFoundError:
            raise PagesDamaged(f"{self._sums.name}, the checksums of its pages, is gone") from None

    def main_pages(self) -> int:
        """Of how many pages the main file is."""
        return os.fstat(self._files.opened(self._store)).st_size // self._page_bytes()

    def _page_bytes(self) -> int:
        raw = os.pread(self._files.opened(self._store), 2, _PAGE_BYTES_AT)
        found = int.from_bytes(raw, "big")
        if found in _PAGE_BYTES:
            return _PAGE_BYTES[found]
        raise PagesDamaged(f"its pages can't have {found} bytes")

    def _main_sums(self, first: int, count: int) -> list[int]:
        """Those of pages of the main file, as they are; what is missing at its end is zeros."""
        size = self._page_bytes()
        main = self._files.opened(self._store)
        found: list[int] = []
        while len(found) < count:
            wanted = min(_READ_BYTES // size, count - len(found)) * size
            content = os.pread(main, wanted, (first - 1 + len(found)) * size)
            found += sums_of(memoryview(content.ljust(wanted, b"\0")), size)
        return found

    # --- bringing the checksums up to date ---

    def make(self, epoch: int, commit: int) -> None:
        """Make the checksums anew, from the main file as it is. Under the write lock.

        Raises:
            OSError: the disk failed.
        """
        pages = self.main_pages()
        parts = [Head(self._page_bytes(), pages, epoch, commit).packed()]
        for first in range(1, pages + 1, PAGES_PER_BLOCK):
            sums = self._main_sums(first, min(PAGES_PER_BLOCK, pages + 1 - first))
            parts.append(packed_block(block_of(first), sums))
        write_atomically(self._sums, b"".join(parts))

    def update(self, epoch: int, commit: int) -> None:
        """Have the checksums of all that is in the log, as of that commit. Under the write lock.

        Raises:
            PagesDamaged: the checksums are gone, or were cut.
            OSError: the disk failed.
        """
        log = self.log()
        head = self.head()
        if not log.frames and head is not None:
            return
        sums = self._log_sums(log) if log.frames else {}
        pages, suspect = (self.main_pages(), 0) if head is None else (head.pages, head.suspect)
        zeros = zlib.crc32(bytes(log.page_bytes))  # what is in neither file was never written
        sums |= {page: zeros for page in range(pages + 1, log.pages + 1) if page not in sums}
        found = Head(log.page_bytes, max(pages, log.pages), epoch, commit, suspect)
        with self._sums.open("r+b") as file:
            self._put(file.fileno(), sums, found)

    def _log_sums(self, log: LogIndex) -> dict[int, int]:
        """The checksums of the pages in the log. It is on disk before they are."""
        last = dict(zip(log.latest.values(), log.latest.keys(), strict=True))
        found: dict[int, int] = {}
        with open(f"{self._store}-wal", "rb", buffering=0) as file:
            descriptor = file.fileno()
            self._sync(descriptor)
            at_once = max(1, _READ_BYTES // log.frame_bytes)
            for first in range(0, log.frames, at_once):
                count = min(at_once, log.frames - first)
                raw = os.pread(descriptor, count * log.frame_bytes, log.place_of(first))
                if len(raw) < count * log.frame_bytes:
                    raise OSError(None, f"the log of {self._store.name} is shorter than it says")
                view = memoryview(raw)
                for frame in range(first, first + count):
                    page = last.get(frame)
                    if page is not None:
                        at = (frame - first) * log.frame_bytes + FRAME_HEAD_BYTES
                        found[page] = zlib.crc32(view[at : at + log.page_bytes])
        return found

    def _put(self, file: int, sums: dict[int, int], head: Head) -> None:
        by_block: dict[int, list[int]] = {}
        for page in sums:
            by_block.setdefault(block_of(page), []).append(page)
        for block, pages in sorted(by_block.items()):
            raw = os.pread(file, BLOCK_BYTES, place_of(block))
            kept = sums_in(raw) if len(raw) == BLOCK_BYTES else [0] * PAGES_PER_BLOCK
            if len(raw) == BLOCK_BYTES and not is_whole(block, raw):
                kept = sums_in(self._mended(block, raw, sums) or raw)
            for page in pages:
                kept[(page - 1) % PAGES_PER_BLOCK] = sums[page]
            os.pwrite(file, packed_block(block, kept), place_of(block))
        os.pwrite(file, head.packed(), 0)
        self._sync(file)

    def _sync(self, descriptor: int) -> None:
        if self._durable:
            os.fdatasync(descriptor)

    # --- comparing ---

    def differing(self, first: int, count: int, skip: Container[int] = _NO_PAGES) -> list[int]:
        """The pages of the main file that are not as their checksums say.

        Args:
            first, count: which are compared; those that there are.
            skip: pages that the log overrides.

        Raises:
            PagesDamaged: the checksums are gone, or were cut.
            OSError: the disk failed.
        """
        head = self.head()
        there = self.main_pages()
        known = there if head is None else head.pages
        count = min(count, max(there, known) + 1 - first)
        if count <= 0:
            return []
        zeros = zlib.crc32(bytes(self._page_bytes()))  # of a page that was never written
        wrong: list[int] = []
        with self._sums.open("rb", buffering=0) as file:
            for block in range(block_of(first), block_of(first + count - 1) + 1):
                begin = max(first, block * PAGES_PER_BLOCK + 1)
                end = min(first + count, (block + 1) * PAGES_PER_BLOCK + 1)
                at = (begin - 1) % PAGES_PER_BLOCK
                kept = []
                if begin <= known:
                    kept = sums_in(self._block(file.fileno(), block))[at : at + end - begin]
                    del kept[known + 1 - begin :]
                kept += [zeros] * (end - begin - len(kept))
                found = self._main_sums(begin, end - begin)
                if found != kept:
                    pairs = enumerate(zip(found, kept, strict=True), begin)
                    wrong += [page for page, (is_, was) in pairs if is_ != was and page not in skip]
        self.compared += count
        return wrong

    def _block(self, file: int, block: int) -> bytes:
        raw = os.pread(file, BLOCK_BYTES, place_of(block))
        if len(raw) < BLOCK_BYTES:
            raise PagesDamaged(f"{self._sums.name}, the checksums of its pages, was cut")
        return raw

    def judge(self, wrong: Sequence[int], skip: Container[int], mend: bool = True) -> None:
        """Tell damaged pages from damaged checksums; the latter are mended. Under the write lock.

        Args:
            wrong: pages that differ.
            skip: pages that the log overrides.
            mend: put the checksums in order.

        Raises:
            PagesDamaged: a page is, or nobody can tell.
            OSError: the disk failed.
        """
        for block in sorted({block_of(page) for page in wrong}):
            with self._sums.open("r+b" if mend else "rb", buffering=0) as file:
                raw = self._block(file.fileno(), block)
                found = None if is_whole(block, raw) else self._mended(block, raw, skip)
                if found is None:
                    differ = "is" if len(wrong) == 1 else "are"
                    raise PagesDamaged(f"{pages_shown(wrong)} {differ} not as written")
                _log.warning("%s was damaged, and is mended", self._sums.name)
                if mend:
                    os.pwrite(file.fileno(), found, place_of(block))
                    self._sync(file.fileno())

    def _mended(self, block: int, raw: bytes, skip: Container[int]) -> bytes | None:
        """A block that is not whole, with what its pages are, if that is what it was."""
        first = block * PAGES_PER_BLOCK + 1
        kept = sums_in(raw)
        count = max(0, min(PAGES_PER_BLOCK, self.main_pages() + 1 - first))
        for page, found in enumerate(self._main_sums(first, count), first):
            if page not in skip:
                kept[page - first] = found
        return mended(block, raw, kept)

    def suspect(self, page: int) -> None:
        """Remember that a page was found damaged, for the next opening. Under the write lock.

        Raises:
            PagesDamaged, OSError: it can't be noted.
        """
        head = self.head()
        if head is not None and head.suspect != page:
            with self._sums.open("r+b", buffering=0) as file:
                os.pwrite(file.fileno(), head._replace(suspect=page).packed(), 0)
                self._sync(file.fileno())


# --- files that stay open -------------------------------------------------------------------------


class _Files:
    """Files of a store that are open in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.holders = 0
        self._opened: dict[tuple[int, int], int] = {}

    def opened(self, path: str | Path) -> int:
        """A descriptor of the file that there is by that name."""
        with _lock:
            found = os.stat(path)
            known = self._opened.get((found.st_dev, found.st_ino))
            if known is not None:
                return known
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(descriptor)
            self._opened.setdefault((found.st_dev, found.st_ino), descriptor)
            return descriptor

    def close(self) -> None:
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened.clear()


_lock = threading.Lock()
_held: dict[str, _Files] = {}


def _hold(store: Path) -> _Files:
    name = os.path.realpath(store)
    with _lock:
        files = _held.setdefault(name, _Files(name))
        files.holders += 1
        return files


def _release(files: _Files) -> None:
    with _lock:
        files.holders -= 1
        if not files.holders:
            del _held[files.name]
            files.close()
