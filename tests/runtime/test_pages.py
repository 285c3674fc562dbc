"""Where checksums stand, what the log's index says, and which pages are compared when."""

from __future__ import annotations

import random
import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from toque.runtime import limits
from toque.runtime.log_index import bytes_needed, log_index
from toque.runtime.page_sums import (
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
from toque.runtime.scrub import Scrub

HEAD = Head(4096, 70_000, 3, 1 << 40, 12)


def test_each_page_has_its_place() -> None:
    assert [block_of(page) for page in (1, PAGES_PER_BLOCK, PAGES_PER_BLOCK + 1)] == [0, 0, 1]
    assert (place_of(0), place_of(2)) == (BLOCK_BYTES, 3 * BLOCK_BYTES)
    content = bytes(range(256)) * 32
    sums = sums_of(memoryview(content), 4096)
    assert sums == [zlib.crc32(content[:4096]), zlib.crc32(content[4096:])]
    assert sums_in(packed_block(7, sums))[:3] == [*sums, 0]
    assert len(packed_block(7, sums)) == BLOCK_BYTES


def test_a_head_is_whole_or_none() -> None:
    raw = HEAD.packed()
    assert (len(raw), head_from(raw)) == (BLOCK_BYTES, HEAD)
    for at in range(44):
        for bit in range(8):
            assert head_from(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]) is None
    assert head_from(b"") is None


def test_a_block_tells_whether_it_is_whole_and_what_it_was() -> None:
    rng = random.Random(1)
    sums = [rng.getrandbits(32) for _ in range(PAGES_PER_BLOCK)]
    raw = packed_block(5, sums)
    assert is_whole(5, raw)
    assert not is_whole(6, raw)
    for at in (3, 4, 2_000, BLOCK_BYTES - 1):
        damaged = raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :]
        assert not is_whole(5, damaged)
        assert (mended(5, damaged, sums) == raw) is (
            at > 3
        )  # its own checksum can't tell of itself
    assert mended(5, raw, [sums[0] ^ 1, *sums[1:]]) is None


@pytest.mark.parametrize(
    ("pages", "shown"),
    [
        ([4], "page 4"),
        ([1, 2], "pages 1, 2"),
        ([1, 2, 3, 4, 5, 6], "pages 1, 2, 3, 4, 5 and 1 more"),
    ],
)
def test_pages_are_shown(pages: list[int], shown: str) -> None:
    assert pages_shown(pages) == shown


@pytest.mark.parametrize("rows", [1, 4_000, 4_100, 9_000])
def test_the_index_names_the_last_frame_of_each_page(tmp_path: Path, rows: int) -> None:
    """Against the log itself, over several parts of the index."""
    path = tmp_path / "store"
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("PRAGMA journal_mode=WAL").close()
        store.execute("PRAGMA wal_autocheckpoint=0").close()
        store.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY, value BLOB)")
        store.execute("BEGIN")
        many = ((n, bytes(3_000)) for n in range(rows))
        store.executemany("INSERT INTO rows VALUES (?, ?)", many)
        store.execute("COMMIT")
        store.execute("UPDATE rows SET value = x'01' WHERE n % 7 = 0")
        raw, log = Path(f"{path}-shm").read_bytes(), Path(f"{path}-wal").read_bytes()
        found = log_index(raw)
        assert found is not None
        assert bytes_needed(raw[:4096]) == len(raw)
        assert (found.frames, found.page_bytes) == ((len(log) - 32) // 4120, 4096)
        heads = [struct.unpack_from(">II", log, found.place_of(n)) for n in range(found.frames)]
        assert found.latest == {page: n for n, (page, _) in enumerate(heads)}
        assert found.pages == heads[-1][1]
        assert not found.is_copied
        store.execute("PRAGMA wal_checkpoint(PASSIVE)").close()
        copied = log_index(Path(f"{path}-shm").read_bytes())
        assert copied == found._replace(is_copied=True)


def test_an_index_that_is_not_in_order_is_none() -> None:
    head = struct.pack("=IIIBBHII24x", 3_007_000, 0, 0, 1, 0, 4096, 5_000, 9)
    index = (2 * head).ljust(2 * 32_768, b"\0")
    assert log_index(index) is not None
    assert log_index(index[:-1]) is None
    assert log_index(head + bytes(48) + index[96:]) is None
    assert log_index(b"") is None
    assert log_index(bytes(32_768)) is None


def test_what_was_left_comes_soon_and_all_comes_again() -> None:
    step = limits.SCRUB_PAGES
    scrub = Scrub(step + 1, now_s=100.0)
    assert scrub.left_s(100.0) == 0
    assert scrub.take(3 * step, 100.0) == (step + 1, step)
    assert scrub.left_s(100.0) == pytest.approx(limits.SCRUB_FIRST_MS / 1000)
    assert scrub.take(3 * step, 101.0) == (2 * step + 1, step)
    assert scrub.left_s(101.0) == pytest.approx(limits.SCRUB_REST_MS / 1000)
    assert scrub.take(3 * step, 200.0) == (1, step)
    assert scrub.left_s(200.0) == pytest.approx(limits.SCRUB_EVERY_MS / 1000)
    assert scrub.take(step, 300.0) == (step + 1, step)  # the file has what it had, or more
    assert scrub.left_s(300.0) == pytest.approx(limits.SCRUB_REST_MS / 1000)
