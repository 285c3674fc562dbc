"""Crashes at every boundary never make a good store look bad, and damage is noticed.

On real files (see `images`): a store that is opened shows all that was acknowledged, or is refused;
it never shows less. Each test counts what its images came to, so that none passes for want of them.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from tests.recovery.images import (
    LOG_HEAD,
    SECTOR,
    Files,
    History,
    Verdict,
    closed,
    cuts,
    flipped,
    in_use,
    judge,
    live,
    opened,
    torn,
)
from toque.runtime.errors import StoreFailed

few_and_many = pytest.mark.parametrize(
    "images",
    [40, pytest.param(1_500, marks=(pytest.mark.campaign, pytest.mark.timeout(1_200)))],
)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """A store that was killed with a long log, after several checkpoints."""
    return live(tmp_path_factory.mktemp("history"), commits=58)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Another shard's."""
    return live(tmp_path_factory.mktemp("other"), "d1", commits=30)


def judged(
    images: Iterable[Files], history: History, acknowledged: int, folder: Path
) -> Counter[str]:
    """What images came to, by kind."""
    return Counter(judge(image, history, acknowledged, folder).kind for image in images)


def overridden(files: Files, page: int) -> bool:
    """Whether a log has a page."""
    assert files.log is not None
    frames = range(32, in_use(files.log), 24 + 4096)
    return page in {int.from_bytes(files.log[at : at + 4], "big") for at in frames}


def whole(history: History) -> int:
    """A commit in the middle of a log, neither the first nor the last of it."""
    return next(
        n
        for n in range(history.commits - 1, 0, -1)
        if not {n - 1, n, n + 1} & {*history.resets, *history.checkpoints}
    )


def test_the_history_is_worth_it(history: History, tmp_path: Path) -> None:
    assert len(history.resets) >= 3
    assert len(history.checkpoints) >= 3
    assert len(set(history.states)) == history.commits + 1
    assert history.last.log is not None
    assert len(history.last.log) > 20 * 4096
    assert judge(history.last, history, history.commits, tmp_path) == Verdict("equal")


# --- crashes --------------------------------------------------------------------------------------


@few_and_many
def test_a_crash_while_a_commit_is_written(history: History, images: int, tmp_path: Path) -> None:
    """Its log is cut, or torn into sectors; the mark does not speak of it yet."""
    rng = random.Random(images)
    found: Counter[str] = Counter()
    chosen = [*history.resets[:2], whole(history)]
    while found.total() < images:
        number = chosen.pop() if chosen else rng.randrange(2, history.commits + 1)
        before, after = history.before[number], history.after[number]
        assert after.log is not None
        logs = list(cuts(before.log, after.log))
        logs = rng.sample(logs, min(len(logs), 10))
        synced = before.log
        if number in history.resets:  # SQLite syncs the head of a new log before all else
            synced = after.log[:LOG_HEAD] + (before.log or b"")[LOG_HEAD:]
            logs.append(synced)
        logs += [torn(synced, after.log, rng) for _ in range(4)] + [after.log]
        found += judged((before._replace(log=log) for log in logs), history, number - 1, tmp_path)
    assert set(found) == {"equal", "newer"}, found
    assert min(found.values()) > images // 15, found


@few_and_many
def test_a_crash_while_it_checkpoints(history: History, images: int, tmp_path: Path) -> None:
    """First pages of the main file are torn, then the checksums; the log has all pages whole, or
    is begun anew after both. The mark may be older."""
    rng = random.Random(images)
    found: Counter[str] = Counter()
    while found.total() < images:
        number = rng.choice(history.checkpoints)
        before, after = history.after[number], history.settled[number]
        assert after.main is not None
        assert after.sums is not None
        mark = rng.choice([before.mark, after.mark, history.before[number].mark])
        at = before._replace(mark=mark)
        copying = at._replace(main=torn(before.main, after.main, rng))
        copied = at._replace(main=after.main)
        summing = copied._replace(sums=torn(before.sums, after.sums, rng))
        summed = copied._replace(sums=after.sums)
        emptied = summed._replace(log=rng.choice((None, b"")))
        every = (copying, copied, summing, summed, emptied)
        found += judged(rng.sample(every, 3), history, number, tmp_path)
    assert set(found) == {"equal"}, found


@few_and_many
def test_a_power_cut_leaves_an_older_mark(history: History, images: int, tmp_path: Path) -> None:
    """It is not synced with each commit, and may be torn where it was being written."""
    rng = random.Random(images)
    found: Counter[str] = Counter()
    while found.total() < images:
        number = rng.randrange(2, history.commits + 1)
        since = max([n for n in history.checkpoints if n < number], default=1)
        older = history.after[rng.randrange(since, number + 1)].mark
        assert older is not None
        newer = history.after[number].mark
        assert newer is not None
        half = rng.choice((0, 4096))
        mark = rng.choice((older, older[:half] + bytes(4096) + older[half + 4096 :]))
        if mark is older:
            mark = torn(older, newer, rng)
        found += judged([history.after[number]._replace(mark=mark)], history, number, tmp_path)
    assert set(found) == {"equal"}, found


def test_a_log_cut_at_every_sector_loses_only_what_nobody_was_told(
    history: History, tmp_path: Path
) -> None:
    """The last commit had not been acknowledged: if it is lost that is fine, and no more is."""
    number = whole(history)
    before, after = history.before[number], history.after[number]
    assert before.log is not None
    assert after.log is not None
    held, size = in_use(before.log), in_use(after.log)
    found: Counter[tuple[str, str]] = Counter()
    for at in range(0, size + SECTOR, SECTOR):
        log = after.log[:at]
        untold = judge(before._replace(log=log), history, number - 1, tmp_path).kind
        told = judge(after._replace(log=log), history, number, tmp_path).kind
        assert untold == ("refused" if at < held else "newer" if at >= size else "equal"), at
        assert told == ("equal" if at >= size else "refused"), at
        found[untold, told] += 1
    assert set(found) == {("refused", "refused"), ("equal", "refused"), ("newer", "equal")}, found


# --- damage ---------------------------------------------------------------------------------------


@few_and_many
def test_a_flipped_bit_in_the_log_is_noticed(history: History, images: int, tmp_path: Path) -> None:
    """SQLite drops the commit that it is in, and all later ones, and says ok."""
    rng = random.Random(images)
    last = history.last
    assert last.log is not None
    size = in_use(last.log)
    found = judged(
        (
            last._replace(log=flipped(last.log, rng.randrange(size), rng.randrange(8)))
            for _ in range(images)
        ),
        history,
        history.commits,
        tmp_path,
    )
    print(f"bits flipped in the log: {dict(found)}")
    assert set(found) <= {"equal", "refused"}, found
    assert found["refused"] > 0.9 * images, found


@few_and_many
def test_a_flipped_bit_in_the_main_file_is_noticed(
    history: History, images: int, tmp_path: Path
) -> None:
    """Where the log overrides the page it is no harm."""
    rng = random.Random(images)
    last = history.last
    assert last.main is not None
    found = judged(
        (
            last._replace(main=flipped(last.main, rng.randrange(len(last.main)), rng.randrange(8)))
            for _ in range(images)
        ),
        history,
        history.commits,
        tmp_path,
    )
    print(f"bits flipped in the main file: {dict(found)}")
    assert set(found) == {"equal", "refused"}, found


@few_and_many
def test_a_flipped_bit_in_the_main_file_of_a_closed_store_is_always_noticed(
    history: History, images: int, tmp_path: Path
) -> None:
    """There is no log that overrides a page."""
    rng = random.Random(images)
    last = closed(history.last, tmp_path / "d0.sqlite")
    assert last.log is None
    assert last.main is not None
    found = judged(
        (
            last._replace(main=flipped(last.main, rng.randrange(len(last.main)), rng.randrange(8)))
            for _ in range(images)
        ),
        history,
        history.commits,
        tmp_path,
    )
    print(f"bits flipped in the main file of a closed store: {dict(found)}")
    assert found == {"refused": images}, found


@few_and_many
def test_a_flipped_bit_in_the_checksums_is_mended(
    history: History, images: int, tmp_path: Path
) -> None:
    """A block says whether it is whole, and what would make it whole."""
    rng = random.Random(images)
    last = history.last
    assert last.sums is not None
    assert last.main is not None
    used = [*range(48), *range(4096, 4100 + len(last.main) // 1024)]
    found = judged(
        (
            last._replace(sums=flipped(last.sums, rng.choice(used), rng.randrange(8)))
            for _ in range(images)
        ),
        history,
        history.commits,
        tmp_path,
    )
    assert found == {"equal": images}, found


def test_damaged_checksums_hide_no_damaged_page(history: History, tmp_path: Path) -> None:
    last = history.last
    assert last.main is not None
    assert last.sums is not None
    page = next(n for n in range(2, 40) if not overridden(last, n))
    main = flipped(last.main, 4096 * page - 100, 3)
    for at in (4096, 4100 + 4 * (page - 1), 4100 + 4 * page, 8):
        image = last._replace(main=main, sums=flipped(last.sums, at, 1))
        verdict = judge(image, history, history.commits, tmp_path)
        assert verdict.kind == "refused", at
        assert "is damaged: page" in verdict.why
        assert f" {page}" in verdict.why


def test_a_flipped_bit_in_the_mark_is_no_harm_or_noticed(history: History, tmp_path: Path) -> None:
    """The other slot is whole, and one commit older at most."""
    mark = history.last.mark
    assert mark is not None
    used = [n for n in range(len(mark)) if n % 4096 < 56]
    images = [history.last._replace(mark=flipped(mark, at, at % 8)) for at in used]
    assert judged(images, history, history.commits, tmp_path) == {"equal": len(used)}
    for content in (b"", mark[:20], bytes(len(mark)), b"garbage " * 2_000):
        verdict = judge(history.last._replace(mark=content), history, history.commits, tmp_path)
        assert verdict.kind == "refused"
        assert "mark is damaged" in verdict.why


def test_a_replaced_or_missing_file_is_noticed(history: History, tmp_path: Path) -> None:
    last, commits = history.last, history.commits
    first, latest = history.checkpoints[0], history.checkpoints[-1]
    older = history.after[first]
    assert last.log is not None
    assert last.sums is not None
    for what, image in {
        "main and log of an older copy": older._replace(mark=last.mark),
        "main of an older copy": last._replace(main=older.main),
        "log of an older copy": last._replace(log=older.log),
        "main of an older copy, no log": last._replace(main=older.main, log=None),
        "no log": last._replace(log=None),
        "an empty log": last._replace(log=b""),
        "no main": last._replace(main=None),
        "an empty main": last._replace(main=b""),
        "no mark": last._replace(mark=None),
        "nothing but the mark": Files(None, None, last.mark, None),
        "nothing but mark and checksums": Files(None, None, last.mark, last.sums),
        "a log of garbage": last._replace(log=b"garbage " * 9_000),
        "a main of garbage": last._replace(main=b"garbage " * 9_000),
        "no checksums": last._replace(sums=None),
        "no checksums in their file": last._replace(sums=b""),
        "checksums that were cut": last._replace(sums=last.sums[:4_096]),
        "checksums of garbage": last._replace(sums=b"garbage " * 9_000),
        "checksums of an older copy": last._replace(sums=older.sums),
    }.items():
        verdict = judge(image, history, commits, tmp_path)
        assert verdict.kind == "refused", what
        assert "d0.sqlite" in verdict.why, what
    # the main file of any copy since the log was begun is as good as the newest
    assert judge(
        last._replace(main=history.settled[latest].main), history, commits, tmp_path
    ) == Verdict("equal")
    # and a whole backup is what it is
    assert judge(older, history, first, tmp_path) == Verdict("equal")


def test_truncated_files_are_noticed(history: History, tmp_path: Path) -> None:
    last = history.last
    assert last.main is not None
    found: Counter[str] = Counter()
    for size in range(0, len(last.main), len(last.main) // 40):
        verdict = judge(last._replace(main=last.main[:size]), history, history.commits, tmp_path)
        assert verdict.kind in ("refused", "equal"), size
        found[verdict.kind] += 1
    assert found["refused"] > 20


def test_files_of_another_shard_are_noticed(
    history: History, other: History, tmp_path: Path
) -> None:
    last, foreign = history.last, other.last
    for what, image in {
        "all": foreign,
        "main": last._replace(main=foreign.main),
        "log": last._replace(log=foreign.log),
        "main and log": foreign._replace(mark=last.mark),
        "mark": last._replace(mark=foreign.mark),
        "checksums": last._replace(sums=foreign.sums),
    }.items():
        assert judge(image, history, history.commits, tmp_path).kind == "refused", what


def test_a_copy_that_went_its_own_way_is_noticed(history: History, tmp_path: Path) -> None:
    """Put back, it has as many commits and as many openings as the mark speaks of."""
    number = whole(history)
    mine, yours = tmp_path / "mine", tmp_path / "yours"
    mine.mkdir()
    yours.mkdir()
    assert judge(history.after[number], history, number, mine).kind == "equal"
    assert judge(history.after[number], history, number, yours).kind == "equal"
    store = "d0.sqlite"
    mixed = Files.of(mine / store)._replace(mark=Files.of(yours / store).mark)
    verdict = judge(mixed, history, number, tmp_path)
    assert verdict.kind == "refused"
    assert "another one" in verdict.why


def test_garbage_beside_a_store_is_no_harm_and_in_place_of_its_files_is_noticed(
    history: History, tmp_path: Path
) -> None:
    for name in ("d0.sqlite-mark.tmp", "d0.sqlite-mark~", "d0", "x.sqlite"):
        (tmp_path / name).write_bytes(b"garbage " * 600)
    (tmp_path / "d1.sqlite").mkdir()
    assert judge(history.last, history, history.commits, tmp_path) == Verdict("equal")
    journal = tmp_path / "d0.sqlite-journal"  # SQLite would play back what it takes for one
    journal.write_bytes(b"garbage " * 600)
    verdict = judge(history.last, history, history.commits, tmp_path)
    assert verdict.kind == "refused"
    assert "move it away" in verdict.why
    journal.unlink()
    mark = tmp_path / "d0.sqlite-mark"
    mark.unlink()
    mark.mkdir()
    with pytest.raises(StoreFailed, match=r"d0\.sqlite-mark can't be read"):
        opened(tmp_path / "d0.sqlite")


def test_a_crash_while_a_store_is_made_is_no_obstacle(history: History, tmp_path: Path) -> None:
    """It is made with a rollback journal, before it has a log."""
    first = tmp_path / "first"
    with closing(sqlite3.connect(first, isolation_level=None)) as writer:
        writer.execute("VACUUM")
        writer.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("CREATE TABLE half (made)")
        writer.executemany("INSERT INTO half VALUES (?)", [(bytes(3_000),)] * 50)
        main, journal = first.read_bytes(), Path(f"{first}-journal").read_bytes()
        writer.execute("ROLLBACK")
    assert len(main) > 100_000
    assert journal[0]
    (tmp_path / "d0.sqlite-journal").write_bytes(journal)
    verdict = judge(Files(main, None, None, None), history, 0, tmp_path)
    assert verdict == Verdict("equal")
    assert not (tmp_path / "d0.sqlite-journal").exists()


def test_what_is_refused_is_left_as_it_is(history: History, tmp_path: Path) -> None:
    """Its log, too, so that what is in it can be saved."""
    last = history.last
    assert last.log is not None
    image = last._replace(log=flipped(last.log, in_use(last.log) // 2, 3))
    for _ in range(2):
        assert judge(image, history, history.commits, tmp_path).kind == "refused"
        assert Files.of(tmp_path / "d0.sqlite") == image
