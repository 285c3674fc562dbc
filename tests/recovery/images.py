"""Images of a store's files: as every crash may leave them, and damaged.

A history is a store that commits and checkpoints for real, with a copy of its four files (main
file, log, mark, checksums) taken after each commit and each checkpoint, and what it held. From two
copies that follow each other come the images of a crash between them: some of the sectors that
differ are new, all others old. What is synced before something else begins is whole in all images
of that. `judge` opens an image as its next owner would, and says what it shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from toque.runtime import limits, writer_sqlite
from toque.runtime.errors import DataDirFormat, StoreDamaged, StoreFailed
from toque.runtime.high_water import mark_path
from toque.runtime.pages import sums_path
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Index, Table

ROWS = Table(
    "rows",
    (("entity", "TEXT"), ("n", "INTEGER"), ("due", "INTEGER?"), ("payload", "BLOB")),
    key_size=2,
    indexes=(Index("rows_due", ("due",), where="due IS NOT NULL"),),
)
SECTOR = 512
LOG_HEAD = 32
REFUSALS = (DataDirFormat, StoreDamaged, StoreFailed)


class Files(NamedTuple):
    """The bytes of a store's files; None: there is no such file."""

    main: bytes | None
    log: bytes | None
    mark: bytes | None
    sums: bytes | None

    @classmethod
    def of(cls, store: Path) -> Files:
        """Those on disk."""
        paths = (store, Path(f"{store}-wal"), mark_path(store), sums_path(store))
        return cls(*(path.read_bytes() if path.exists() else None for path in paths))

    def put(self, store: Path) -> None:
        """Put them on disk, and nothing else."""
        Path(f"{store}-shm").unlink(missing_ok=True)
        paths = (store, Path(f"{store}-wal"), mark_path(store), sums_path(store))
        for path, content in zip(paths, self, strict=True):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)


@dataclass
class History:
    """What a store has been through.

    Attributes:
        name: its shard.
        before: its files before each commit, by the commit's number.
        after: its files after each commit, before it checkpoints.
        settled: its files after that, by commit; there was a checkpoint if it is in `checkpoints`.
        states: a digest of what it held, by the number of commits.
        resets: commits that began the log anew.
        checkpoints: commits after which it checkpointed.
    """

    name: str
    before: dict[int, Files] = field(default_factory=dict)
    after: dict[int, Files] = field(default_factory=dict)
    settled: dict[int, Files] = field(default_factory=dict)
    states: list[str] = field(default_factory=list)
    resets: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    last: Files = field(default_factory=lambda: Files(None, None, None, None))

    @property
    def commits(self) -> int:
        """How many commits there were."""
        return len(self.states) - 1


def state_of(store: SqliteStore) -> str:
    """A digest of all its rows."""
    digest = hashlib.sha256()
    after: tuple[Any, ...] | None = None
    while True:
        page = store.scan(ROWS, after=after)
        digest.update(repr(page).encode())
        if len(page) < limits.SCAN_ROWS_MAX:
            return digest.hexdigest()
        after = page[-1][:2]


def opened(store: Path) -> SqliteStore:
    """The store, by its next owner."""
    return SqliteStore.open(store, tables=[ROWS], writer="inline")


def closed(files: Files, store: Path) -> Files:
    """The files after an owner has opened the store, and closed it in good order."""

    async def main() -> None:
        files.put(store)
        await opened(store).close()

    asyncio.run(main())
    return Files.of(store)


def live(folder: Path, name: str = "d0", commits: int = 60, openings: int = 2) -> History:
    """A store lives; each of its last commits finds a log to recover, and some a short one."""
    store_file = folder / f"{name}.sqlite"
    history = History(name)
    rng = random.Random(name)
    commit, maintain = writer_sqlite.Writer.commit, writer_sqlite.Writer.maintain

    def noted_commit(self: Any, batch: Any) -> Any:
        number = self._before + batch.seq
        history.before[number] = Files.of(store_file)
        failures = commit(self, batch)
        history.after[number] = Files.of(store_file)
        if _salt(history.before[number]) != _salt(history.after[number]):
            history.resets.append(number)
        return failures

    def noted_maintain(self: Any, idle: bool) -> None:
        before = self._link.base
        maintain(self, idle)
        history.settled[self._last_commit] = Files.of(store_file)
        if self._link.base != before:
            history.checkpoints.append(self._last_commit)

    async def main() -> None:
        for opening in range(openings):
            store = opened(store_file)
            if not opening:
                history.states.append(state_of(store))
            for _ in range(commits // openings):
                _write(store, rng)
                await store.flush()
                history.states.append(state_of(store))
            history.last = Files.of(store_file)
            store.crash("lost")
            if opening < openings - 1:
                history.last.put(store_file)  # as a kill leaves it: nothing was put in order

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer_sqlite.Writer, "commit", noted_commit)
        patched.setattr(writer_sqlite.Writer, "maintain", noted_maintain)
        patched.setattr(limits, "CHECKPOINT_PAGES", 60)
        asyncio.run(main())
    return history


def _write(store: SqliteStore, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 4)):
        key = ("e", rng.randrange(40))
        if rng.random() < 0.2:
            store.delete("o", ROWS, key)
        else:
            size = rng.choice((20, 200, 3_000, 9_000))
            due = rng.choice((None, rng.randrange(1_000)))
            store.put("o", ROWS, (*key, due, rng.randbytes(size)))
    store.put("o", ROWS, ("counter", 0, None, b"%d" % store.write_seq))


def _salt(files: Files) -> bytes:
    return b"" if files.log is None else files.log[16:24]


def in_use(log: bytes) -> int:
    """How much of a log is in use: what a log that was begun anew has not written over is not."""
    frame = 24 + 4096
    for at in range(32, len(log), frame):
        if log[at + 8 : at + 16] != log[16:24]:
            return at
    return len(log)


# --- images -------------------------------------------------------------------------------------


def cuts(old: bytes | None, new: bytes, step: int = SECTOR) -> Iterator[bytes]:
    """A file that was being written from front to back, cut at every `step` bytes."""
    base = old or b""
    first = next((n for n, pair in enumerate(zip(base, new, strict=False)) if pair[0] != pair[1]),
                 min(len(base), len(new)))  # fmt: skip
    for at in range(first - first % step, len(new) + step, step):
        yield new[:at] + base[at:]


def torn(old: bytes | None, new: bytes, rng: random.Random) -> bytes:
    """A file of which some sectors had been written, in any order."""
    base = old or b""
    size = max(len(base), len(new)) if rng.random() < 0.8 else len(base)
    share = rng.random()
    parts = []
    for at in range(0, size, SECTOR):
        is_new = rng.random() < share
        part = (new if is_new else base)[at : at + SECTOR]
        parts.append(part.ljust(min(SECTOR, size - at), b"\0"))
    return b"".join(parts)


def flipped(content: bytes, at: int, bit: int) -> bytes:
    """One bit is another."""
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]


# --- what an image shows ------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What the next owner finds.

    Attributes:
        kind: `equal` (all that was acknowledged), `newer` (and what was not), `older` (less),
            `other` (what there never was), `refused`.
        why: of a refusal.
    """

    kind: str
    why: str = ""


def judge(files: Files, history: History, acknowledged: int, folder: Path) -> Verdict:
    """Open an image of a store.

    Args:
        files: the image.
        history: the store's.
        acknowledged: how many of its commits were.
        folder: where to put it.
    """
    store_file = folder / f"{history.name}.sqlite"
    files.put(store_file)

    async def main() -> Verdict:
        store: SqliteStore | None = None
        try:
            store = opened(store_file)
            shown = state_of(store)
            store.put("o", ROWS, ("judge", 0, None, b""))
            await store.flush()
        except REFUSALS as error:
            return Verdict("refused", f"{error.code}: {error}")
        finally:
            if store is not None:
                store.crash("lost")
        if shown == history.states[acknowledged]:
            return Verdict("equal")
        if shown not in history.states:
            return Verdict("other")
        return Verdict("newer" if history.states.index(shown) > acknowledged else "older")

    return asyncio.run(main())
