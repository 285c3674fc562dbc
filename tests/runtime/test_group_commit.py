"""The batches alone: what gathers, what overlays, who is told, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from toque.runtime.errors import InvalidArgument, Overloaded, PayloadTooLarge, StoreFailed
from toque.runtime.group_commit import EVERY_OWNER, GroupCommit, merge
from toque.runtime.tables import Row, Table

ROWS = Table("rows", (("entity", "TEXT"), ("n", "INTEGER"), ("v", "BLOB?")), key_size=2)
SCOPED = Table(
    "scoped",
    (("kind", "TEXT"), ("key", "TEXT"), ("k", "TEXT"), ("ratio", "REAL")),
    key_size=3,
    scope_size=2,
)


class Rig:
    """A `GroupCommit` that counts first writes and keeps what was told."""

    def __init__(self, **bounds: int) -> None:
        self.first_writes = 0
        self.told: list[tuple[str, BaseException | None]] = []
        self.group = GroupCommit([ROWS, SCOPED], self._first, **bounds)

    def _first(self) -> None:
        self.first_writes += 1

    def put(self, owner: object, *row: Any) -> int:
        return self.group.put(owner, ROWS, (*row, None) if len(row) == 2 else row)

    def wait(self, seq: int, name: str, owner: object = None) -> None:
        self.group.when_durable(seq, lambda error: self.told.append((name, error)), owner)

    def finish(self, failures: dict[Any, BaseException] | None = None) -> None:
        for callback, error in self.group.finish({} if failures is None else failures):
            callback(error)

    def pending(self, *prefix: Any) -> dict[Any, Row | None]:
        return self.group.matching(ROWS, prefix)


def test_batches_are_numbered_from_one() -> None:
    rig = Rig()
    group = rig.group
    assert (group.write_seq, group.durable_seq, group.take()) == (0, 0, None)
    assert rig.put("a", "a", 1) == 1
    assert rig.put("a", "a", 2) == 1
    assert rig.first_writes == 1
    batch = group.take()
    assert batch is not None
    assert (batch.seq, batch.rows) == (1, 2)
    assert group.take() is None  # one at a time
    assert rig.put("a", "a", 3) == 2
    assert (rig.first_writes, group.write_seq, group.durable_seq) == (2, 2, 0)
    assert group.take() is None
    rig.finish()
    assert (group.write_seq, group.durable_seq) == (2, 1)
    batch = group.take()
    assert batch is not None
    assert (batch.seq, batch.rows) == (2, 1)


def test_the_last_write_of_a_key_wins() -> None:
    rig = Rig()
    rig.put("a", "a", 1, b"first")
    rig.put("a", "a", 1, b"second")
    rig.put("a", "a", 2)
    rig.group.delete("a", ROWS, ("a", 2))
    batch = rig.group.take()
    assert batch is not None
    assert batch.rows == 2
    assert list(batch.changes()) == [("rows", [("a", 1, b"second")], [("a", 2)])]


def test_the_overlay_is_both_batches_the_newest_first() -> None:
    rig = Rig()
    group = rig.group
    rig.put("a", "a", 1, b"old")
    rig.put("a", "a", 2)
    group.take()
    assert group.find(ROWS, ("a", 1)) == ("a", ("a", 1, b"old"), 100 + len("a" + "old"))
    rig.put("a", "a", 1, b"new")
    group.delete("a", ROWS, ("a", 2))
    rig.put("b", "b", 1)
    assert rig.pending("a") == {("a", 1): ("a", 1, b"new"), ("a", 2): None}
    assert rig.pending("a", 2) == {("a", 2): None}
    assert set(rig.pending()) == {("a", 1), ("a", 2), ("b", 1)}
    entry = group.find(ROWS, ("a", 2))
    assert entry is not None
    assert entry[1] is None
    assert group.find(ROWS, ("a", 3)) is None
    rig.finish()
    group.take()
    rig.finish()
    assert rig.pending() == {}
    assert group.find(ROWS, ("a", 1)) is None


def test_scopes_of_two_columns() -> None:
    rig = Rig()
    for key in "xy":
        for k in "12":
            rig.group.put("o", SCOPED, ("A", key, k, 1.0))
    rig.group.put("o", SCOPED, ("A", "x", "3", 2))  # an int is a number too
    assert len(rig.group.matching(SCOPED, ("A",))) == 5
    assert len(rig.group.matching(SCOPED, ("A", "x"))) == 3
    assert len(rig.group.matching(SCOPED, ("A", "x", "3"))) == 1
    assert rig.group.matching(SCOPED, ("B", "x")) == {}


def test_waiters_are_told_by_batch_in_order() -> None:
    rig = Rig()
    rig.wait(0, "nothing")
    rig.put("a", "a", 1)
    rig.wait(1, "1")
    rig.group.take()
    rig.put("a", "a", 2)
    rig.wait(2, "3")
    rig.wait(1, "2")
    assert rig.told == [("nothing", None)]
    rig.finish()
    assert rig.told[1:] == [("1", None), ("2", None)]
    rig.group.take()
    rig.wait(2, "4")
    rig.finish()
    assert rig.told[3:] == [("3", None), ("4", None)]
    with pytest.raises(InvalidArgument):
        rig.wait(3, "not written")


def test_rows_past_the_bound_are_refused() -> None:
    rig = Rig(rows_max=2)
    rig.put("a", "a", 1)
    rig.put("a", "a", 2)
    with pytest.raises(Overloaded):
        rig.put("a", "a", 3)
    with pytest.raises(Overloaded):
        rig.group.delete("a", ROWS, ("a", 4))
    rig.put("a", "a", 2, b"in it already")
    assert set(rig.pending()) == {("a", 1), ("a", 2)}
    rig.group.take()
    rig.put("a", "a", 3)


def test_bytes_past_the_bound_are_refused() -> None:
    rig = Rig(bytes_max=1_000)
    rig.put("a", "a", 1, bytes(600))
    with pytest.raises(Overloaded):
        rig.put("a", "a", 2, bytes(600))
    for _ in range(5):
        rig.put("a", "a", 1, bytes(700))  # counted once, at its newest size
    rig.put("a", "a", 2, bytes(50))
    with pytest.raises(Overloaded):
        rig.put("a", "a", 1, bytes(850))
    with pytest.raises(PayloadTooLarge):
        rig.put("a", "a", 3, bytes(1_000))
    assert rig.group.find(ROWS, ("a", 1)) == ("a", ("a", 1, bytes(700)), 801)
    rig.put("a", "a", 1, b"")
    rig.put("a", "a", 2, bytes(600))
    batch = rig.group.take()
    assert batch is not None
    assert batch.bytes == 2 * 101 + 600


def test_unusual_values_are_measured() -> None:
    rig = Rig(bytes_max=1_000)
    with pytest.raises(PayloadTooLarge):
        rig.put("a", "a", 1, memoryview(bytes(2_000)))
    rig.put("a", "a", 1, object())  # the commit refuses it, not the measuring


def test_parts_stand_alone() -> None:
    rig = Rig()
    rig.put("a", "a", 1)
    rig.put("b", "b", 1)
    rig.group.delete("a", ROWS, ("a", 2))
    batch = rig.group.take()
    assert batch is not None
    parts = {frozenset(owners): [w.key for w in writes] for owners, writes in batch.parts()}
    assert parts == {frozenset("a"): [("a", 1), ("a", 2)], frozenset("b"): [("b", 1)]}


def test_owners_of_one_row_are_one_part() -> None:
    rig = Rig()
    for owner, key in (("a", 1), ("b", 1), ("b", 2), ("c", 2), ("d", 3), ("a", 4)):
        rig.put(owner, "shared", key)
    batch = rig.group.take()
    assert batch is not None
    parts = {frozenset(owners): len(writes) for owners, writes in batch.parts()}
    assert parts == {frozenset("abc"): 3, frozenset("d"): 1}


def test_a_failed_owner_loses_what_it_wrote_since() -> None:
    rig = Rig()
    group = rig.group
    rig.put("bad", "bad", 1)
    rig.put("good", "good", 1)
    for owner in ("bad", "good"):
        rig.wait(1, f"{owner} 1", owner)
    rig.wait(1, "all 1", EVERY_OWNER)
    group.take()
    rig.put("bad", "bad", 2)
    rig.put("linked", "linked", 1)
    rig.put("bad", "linked", 1)
    rig.put("good", "good", 2)
    for owner in ("bad", "linked", "good"):
        rig.wait(2, f"{owner} 2", owner)
    rig.wait(2, "all 2", EVERY_OWNER)
    error = StoreFailed("bad row")
    failures: dict[Any, BaseException] = {"bad": error}
    rig.finish(failures)
    assert rig.told == [
        ("bad 1", error),
        ("good 1", None),
        ("all 1", error),
        ("bad 2", error),
        ("linked 2", error),
        ("all 2", error),
    ]
    assert set(failures) == {"bad", "linked"}
    assert set(rig.pending()) == {("good", 2)}
    rig.wait(1, "bad, asked late", "bad")
    rig.wait(1, "good, asked late", "good")
    assert rig.told[6:] == [("bad, asked late", error), ("good, asked late", None)]
    batch = group.take()
    assert batch is not None
    assert (batch.rows, batch.bytes) == (1, 100 + len("good"))
    rig.finish()
    assert rig.told[8:] == [("good 2", None)]


def test_a_batch_that_lost_all_rows_is_still_finished() -> None:
    rig = Rig()
    rig.put("bad", "bad", 1)
    rig.group.take()
    rig.put("bad", "bad", 2)
    rig.wait(2, "nobody's", None)
    rig.finish({"bad": StoreFailed("bad row")})
    batch = rig.group.take()
    assert batch is not None
    assert batch.rows == 0
    rig.finish()
    assert rig.told == [("nobody's", None)]
    assert rig.group.durable_seq == rig.group.write_seq == 2


def test_a_broken_store_tells_everyone_and_takes_nothing() -> None:
    rig = Rig()
    group = rig.group
    rig.put("a", "a", 1)
    rig.wait(1, "in flight")
    group.take()
    rig.put("a", "a", 2)
    rig.wait(2, "open")
    error = StoreFailed("disk")
    for callback, told in group.fail(error):
        callback(told)
    assert rig.told == [("in flight", error), ("open", error)]
    with pytest.raises(StoreFailed):
        rig.put("a", "a", 3)
    with pytest.raises(StoreFailed):
        group.delete("a", ROWS, ("a", 1))
    rig.wait(2, "late")
    rig.wait(0, "before")
    assert rig.told[2:] == [("late", error), ("before", None)]
    assert group.take() is None
    assert (group.write_seq, group.durable_seq) == (2, 0)


def test_merging_keeps_key_order() -> None:
    committed = [("a", 1, b""), ("a", 3, b""), ("a", 5, b"")]
    pending: dict[Any, Row | None] = {("a", 3): None, ("a", 4): ("a", 4, b"new")}
    assert [r[1] for r in merge(committed, pending, 2, False)] == [1, 4, 5]
    assert [r[1] for r in merge(committed[::-1], pending, 2, True)] == [5, 4, 1]


def test_declarations_are_checked() -> None:
    columns = (("entity", "TEXT"), ("n", "INTEGER"))
    with pytest.raises(ValueError, match="scope_size"):
        Table("t", columns, key_size=1, scope_size=2)
    with pytest.raises(ValueError, match="key column"):
        GroupCommit([Table("t", (("entity", "TEXT?"),), key_size=1)], lambda: None)


def test_room_is_what_a_batch_still_takes() -> None:
    rig = Rig(rows_max=3, bytes_max=1_000)
    assert rig.group.has_room(3, 0)
    assert not rig.group.has_room(4, 0)
    assert rig.group.has_room(1, 900)
    assert not rig.group.has_room(1, 901)
    rig.put("a", "a", 1, bytes(499))  # 600 bytes in all
    assert rig.group.has_room(2, 200)
    assert not rig.group.has_room(2, 201)
    rig.put("a", "a", 2, bytes(99))
    rig.put("a", "a", 3, bytes(99))  # exactly what was promised
    assert not rig.group.has_room(1, 0)
