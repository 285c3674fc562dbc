"""What every implementation of the `Store` port keeps. A backend is one entry of `BACKENDS`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toque.runtime import limits
from toque.runtime.errors import Fenced, InvalidArgument, Overloaded, StoreFailed
from toque.runtime.store import Store
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Index, Query, Row, Table

ROWS = Table(
    "rows",
    (
        ("entity", "TEXT"),
        ("n", "INTEGER"),
        ("status", "TEXT"),
        ("ratio", "REAL?"),
        ("payload", "BLOB?"),
    ),
    key_size=2,
    indexes=(Index("rows_status", ("status", "n")),),
)
WIDE_KEY = Table(
    "wide_key",
    (("kind", "TEXT"), ("key", "TEXT"), ("k", "TEXT"), ("v", "BLOB")),
    key_size=3,
    scope_size=2,
)
ONLY_KEY = Table("only_key", (("a", "TEXT"), ("b", "INTEGER")), key_size=2)
TABLES = [ROWS, WIDE_KEY, ONLY_KEY]
COUNT = Query("count", "SELECT count(*) FROM rows")
BY_STATUS = Query("by status", "SELECT entity, n FROM rows WHERE status = ? ORDER BY entity, n")

Opener = Callable[[Path], Store]


def open_thread(path: Path) -> Store:
    return SqliteStore.open(path, tables=TABLES, writer="thread")


def open_inline(path: Path) -> Store:
    return SqliteStore.open(path, tables=TABLES, writer="inline")


BACKENDS: dict[str, Opener] = {"sqlite-thread": open_thread, "sqlite-inline": open_inline}

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@asynccontextmanager
async def opened(backend: str, path: Path) -> AsyncIterator[Store]:
    store = BACKENDS[backend](path)
    try:
        yield store
    finally:
        await store.close()


def row(entity: str, n: int, status: str = "new", payload: bytes | None = None) -> Row:
    return (entity, n, status, None, payload)


class Told:
    """Collects what `when_durable` tells, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, BaseException | None]] = []

    def __call__(self, name: str) -> Callable[[BaseException | None], None]:
        return lambda error: self.events.append((name, error))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- reading one's writes ---


async def test_a_write_is_read_in_every_phase(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        store.put("a", ROWS, row("a", 1))
        for _ in range(6):  # open, in flight, committed
            assert store.get(ROWS, ("a", 1)) == row("a", 1)
            assert store.scan(ROWS, ("a",)) == [row("a", 1)]
            await turns(1)
        await store.flush()
        assert store.get(ROWS, ("a", 1)) == row("a", 1)
        store.put("a", ROWS, row("a", 1, "changed"))
        assert store.get(ROWS, ("a", 1)) == row("a", 1, "changed")
        store.delete("a", ROWS, ("a", 1))
        for _ in range(6):
            assert store.get(ROWS, ("a", 1)) is None
            assert store.scan(ROWS) == []
            await turns(1)
        await store.flush()
        assert store.get(ROWS, ("a", 1)) is None


async def test_deleting_what_is_not_there_is_fine(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        store.delete("a", ROWS, ("a", 1))
        await store.flush()
        assert store.get(ROWS, ("a", 1)) is None


async def test_values_come_back_as_they_were(backend: str, tmp_path: Path) -> None:
    values: list[Row] = [
        ("", 0, "", None, None),
        ("\U0001f600\x00é", -(2**63), "007", 0.1, b""),
        ("z" * 512, 2**63 - 1, "x", -1.5e300, bytes(range(256)) * 4096),
    ]
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        for value in values:
            store.put("o", ROWS, value)
        await store.flush()
        for value in values:
            assert store.get(ROWS, value[:2]) == value


async def test_a_table_of_nothing_but_key(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        for _ in range(2):
            store.put("o", ONLY_KEY, ("a", 1))
            await store.flush()
        assert store.scan(ONLY_KEY) == [("a", 1)]


async def test_scans_merge_pending_rows(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        for n in range(0, 20, 2):
            store.put("a", ROWS, row("a", n))
        store.put("b", ROWS, row("b", 1))
        await store.flush()
        for n in (0, 4, 6, 18):
            store.delete("a", ROWS, ("a", n))
        for n in (1, 5, 19):
            store.put("a", ROWS, row("a", n, "pending"))

        def keys(**options: Any) -> list[int]:
            return [r[1] for r in store.scan(ROWS, ("a",), **options)]

        expected = [1, 2, 5, 8, 10, 12, 14, 16, 19]
        assert keys() == expected
        assert keys(reverse=True) == expected[::-1]
        for limit in range(1, 11):
            assert keys(limit=limit) == expected[:limit]
            assert keys(limit=limit, reverse=True) == expected[::-1][:limit]
        assert keys(after=("a", 5)) == [8, 10, 12, 14, 16, 19]
        assert keys(after=("a", 6), limit=2) == [8, 10]
        assert keys(after=("a", 8), reverse=True) == [5, 2, 1]
        assert keys(after=("a", 19)) == []
        assert [r[:2] for r in store.scan(ROWS, after=("a", 16))] == [("a", 19), ("b", 1)]
        assert store.scan(ROWS, ("a", 5)) == [row("a", 5, "pending")]
        assert store.scan(ROWS, ("a", 4)) == []
        assert store.scan(ROWS, ("a", 5), after=("a", 5)) == []


async def test_scans_by_any_prefix_of_a_long_key(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        everything = [(kind, key, k, b"v") for kind in "AB" for key in "xy" for k in "123"]
        for number, item in enumerate(everything):
            store.put(item[:2], WIDE_KEY, item)
            if number == 6:
                await store.flush()
        assert store.scan(WIDE_KEY) == everything
        assert store.scan(WIDE_KEY, ("A",)) == everything[:6]
        assert store.scan(WIDE_KEY, ("B", "y")) == everything[9:]
        assert store.scan(WIDE_KEY, ("B",), after=("B", "x", "2"), limit=2) == everything[8:10]
        assert store.scan(WIDE_KEY, ("B", "x"), after=("B", "x", "2")) == everything[8:9]


async def test_queries_see_committed_rows_only(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        store.put("a", ROWS, row("a", 1))
        assert store.query_now(COUNT) == [(0,)]
        await store.flush()
        assert store.query_now(COUNT) == [(1,)]
        assert await store.query(COUNT) == [(1,)]
        assert await store.query(BY_STATUS, ("new",)) == [("a", 1)]
        both = await asyncio.gather(store.query(COUNT), store.query(BY_STATUS, ("old",)))
        assert both == [[(1,)], []]


async def test_a_failed_query_breaks_nothing(backend: str, tmp_path: Path) -> None:
    wrong = Query("wrong", "SELECT nothing FROM nowhere")
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        with pytest.raises(StoreFailed):
            store.query_now(wrong)
        with pytest.raises(StoreFailed):
            await store.query(wrong)
        for bad in (2**64, "\ud800", object()):
            with pytest.raises(InvalidArgument):
                store.query_now(BY_STATUS, (bad,))
            with pytest.raises(InvalidArgument):
                await store.query(BY_STATUS, (bad,))
        assert store.broken is None
        assert await store.query(COUNT) == [(0,)]


# --- batches ---


async def test_one_commit_per_turn(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        assert (store.write_seq, store.durable_seq) == (0, 0)
        seqs = {store.put(e, ROWS, row(e, n)) for e in "abc" for n in range(10)}
        assert seqs == {1}
        assert (store.write_seq, store.durable_seq) == (1, 0)
        await store.flush()
        assert (store.write_seq, store.durable_seq) == (1, 1)
        assert store.statistics()["commits"] == 1
        assert store.statistics()["rows"] == 30
        assert store.put("a", ROWS, row("a", 1)) == 2
        await store.flush()
        assert store.statistics()["commits"] == 2


async def test_a_row_that_changes_twice_is_written_once(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        for n in range(100):
            store.put("a", ROWS, row("a", 1, f"s{n}"))
        store.put("a", ROWS, row("a", 2))
        store.delete("a", ROWS, ("a", 2))
        store.delete("a", ROWS, ("a", 3))
        store.put("a", ROWS, row("a", 3))
        await store.flush()
        assert store.statistics()["rows"] == 3
        assert store.scan(ROWS) == [row("a", 1, "s99"), row("a", 3)]


async def test_many_rows_in_one_batch(backend: str, tmp_path: Path) -> None:
    count = 2 * limits.STATEMENT_ROWS_MAX + 77
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        for n in range(count):
            store.put("a", ROWS, row("a", n, payload=b"%d" % n))
        await store.flush()
        assert store.query_now(COUNT) == [(count,)]
        assert store.get(ROWS, ("a", count - 1)) == row("a", count - 1, payload=b"%d" % (count - 1))
        for n in range(0, count, 2):
            store.delete("a", ROWS, ("a", n))
        await store.flush()
        assert [r[1] for r in store.scan(ROWS)] == list(range(1, count, 2))


async def test_callbacks_come_in_order_and_once(backend: str, tmp_path: Path) -> None:
    told = Told()
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        first = store.put("a", ROWS, row("a", 1))
        store.when_durable(first, told("1"), "a")
        store.when_durable(first, told("2"), "b")
        assert told.names == []
        await turns(1)
        second = store.put("b", ROWS, row("b", 1))
        store.when_durable(second, told("4"), "b")
        store.when_durable(first, told("3"))
        await store.flush()
        assert told.events == [("1", None), ("2", None), ("3", None), ("4", None)]
        store.when_durable(first, told("now"))
        store.when_durable(0, told("nothing written"))
        assert told.names[4:] == ["now", "nothing written"]
        with pytest.raises(InvalidArgument):
            store.when_durable(second + 1, told("never"))


async def test_a_callback_runs_after_its_commit(backend: str, tmp_path: Path) -> None:
    seen: list[tuple[int, list[Row]]] = []
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        seq = store.put("a", ROWS, row("a", 1))
        store.when_durable(
            seq, lambda _error: seen.append((store.durable_seq, store.query_now(COUNT)))
        )
        await store.flush()
        assert seen == [(seq, [(1,)])]


async def test_callbacks_may_write(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:

        def again(n: int) -> None:
            seq = store.put("a", ROWS, row("a", n))
            if n < 20:
                store.when_durable(seq, lambda _error: again(n + 1))

        again(1)
        while store.durable_seq < 20:
            await store.flush()
        assert store.query_now(COUNT) == [(20,)]


async def test_a_batch_is_bounded(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        for n in range(limits.BATCH_ROWS_MAX):
            store.put("a", ROWS, ("a", n, "s", None, None))
        with pytest.raises(Overloaded):
            store.put("b", ROWS, row("b", 1))
        store.put("a", ROWS, row("a", 1, "changed"))  # a row that is in it already
        await store.flush()
        assert store.get(ROWS, ("b", 1)) is None
        blob = bytes(limits.BATCH_BYTES_MAX // 4)
        for n in range(3):
            store.put("c", ROWS, row("c", n, payload=blob))
        with pytest.raises(Overloaded):
            store.put("c", ROWS, row("c", 3, payload=blob))
        await store.flush()
        store.put("c", ROWS, row("c", 3, payload=blob))
        await store.flush()
        assert len(store.scan(ROWS, ("c",))) == 4


# --- what is refused ---


async def test_ill_formed_arguments_change_nothing(backend: str, tmp_path: Path) -> None:
    unknown = Table("unknown", (("a", "TEXT"),), key_size=1)
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        refused: list[Callable[[], object]] = [
            lambda: store.put("a", unknown, ("x",)),
            lambda: store.get(unknown, ("x",)),
            lambda: store.scan(unknown),
            lambda: store.put("a", ROWS, ("a", 1)),
            lambda: store.put("a", ROWS, ("a", "1", "s", None, None)),
            lambda: store.put("a", ROWS, (None, 1, "s", None, None)),
            lambda: store.delete("a", ROWS, ("a",)),
            lambda: store.delete("a", ROWS, ("a", None)),
            lambda: store.get(ROWS, ("a",)),
            lambda: store.get(ROWS, ("\ud800", 1)),
            lambda: store.get(ROWS, ("a", 2**63)),
            lambda: store.scan(ROWS, ("a", 1, 2)),
            lambda: store.scan(ROWS, (1,)),
            lambda: store.scan(ROWS, ("a",), after=("b", 1)),
            lambda: store.scan(ROWS, ("a",), after=("a",)),
            lambda: store.scan(ROWS, limit=limits.SCAN_ROWS_MAX + 1),
            lambda: store.scan(ROWS, limit=0),
        ]
        for call in refused:
            with pytest.raises(InvalidArgument):
                call()
        assert (store.write_seq, store.broken) == (0, None)


BAD_ROWS: dict[str, Row] = {
    "int of 65 bits": ("bad", 1, "s", None, 2**64),
    "lone surrogate": ("bad", 1, "\ud800", None, None),
    "surrogate in the key": ("\ud800", 1, "s", None, None),
    "text in a blob": ("bad", 1, "s", None, "text"),
    "null": ("bad", 1, None, None, None),
    "nan": ("bad", 1, "s", "half", None),
    "a list": ("bad", 1, "s", None, ["x"]),
    "an object": ("bad", 1, object(), None, None),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
async def test_a_bad_row_fails_its_owner_alone(backend: str, tmp_path: Path, kind: str) -> None:
    told = Told()
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        store.put("good", ROWS, row("good", 1))
        store.put("bad", ROWS, row("bad", 7))  # in the same batch: it falls too
        store.put("bad", ROWS, BAD_ROWS[kind])
        seq = store.put("late", ROWS, row("late", 1))
        for owner in ("good", "bad", "late"):
            store.when_durable(seq, told(owner), owner)
        with pytest.raises(StoreFailed):
            await store.flush()
        assert told.names == ["good", "bad", "late"]
        failed = dict(told.events)
        assert failed["good"] is None
        assert failed["late"] is None
        error = failed["bad"]
        assert isinstance(error, StoreFailed)
        assert error.data["table"] == "rows"
        assert store.broken is None
        assert store.durable_seq == seq
        store.when_durable(seq, told("bad"), "bad")  # asked later, the answer is the same
        assert told.events[-1][1] is error
        rest = [r[:2] for r in store.scan(ROWS)]
        assert rest == [("good", 1), ("late", 1)]
        store.put("bad", ROWS, row("bad", 1))
        await store.flush()
        assert store.get(ROWS, ("bad", 1)) == row("bad", 1)


async def test_what_builds_on_a_failed_write_falls_with_it(backend: str, tmp_path: Path) -> None:
    told = Told()
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        first = store.put("bad", ROWS, ("bad", 1, "\ud800", None, None))
        store.when_durable(first, told("first"), "bad")
        await turns(1)  # handed over
        second = store.put("bad", ROWS, row("bad", 2))
        store.put("good", ROWS, row("good", 2))
        if second == first:
            pytest.skip("this backend does not gather while it commits")
        store.when_durable(second, told("second"), "bad")
        store.when_durable(second, told("good"), "good")
        while store.durable_seq < second:
            try:
                await store.flush()
            except StoreFailed:
                continue
        assert told.names == ["first", "second", "good"]
        assert [error is None for _, error in told.events] == [False, False, True]
        assert [r[:2] for r in store.scan(ROWS)] == [("good", 2)]


async def test_owners_of_one_row_share_its_fate(backend: str, tmp_path: Path) -> None:
    told = Told()
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        store.put("a", ROWS, row("shared", 1))
        store.put("a", ROWS, row("a", 1))
        store.put("b", ROWS, ("shared", 1, "\ud800", None, None))
        seq = store.put("c", ROWS, row("c", 1))
        for owner in "abc":
            store.when_durable(seq, told(owner), owner)
        with pytest.raises(StoreFailed):
            await store.flush()
        assert [error is None for _, error in told.events] == [False, False, True]
        assert store.scan(ROWS) == [row("c", 1)]


# --- owners of the file ---


async def test_rows_stay_and_epochs_grow(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "d0.sqlite"
    for opening in range(1, 4):
        async with opened(backend, path) as store:
            assert store.epoch == opening
            assert (store.write_seq, store.durable_seq) == (0, 0)
            assert len(store.scan(ROWS)) == opening - 1
            store.verify_owner()
            store.put("a", ROWS, row("a", opening))
            # closing commits what is pending
    async with opened(backend, path) as store:
        assert [r[1] for r in store.scan(ROWS)] == [1, 2, 3]


async def test_a_second_opener_fences_the_first(backend: str, tmp_path: Path) -> None:
    told = Told()
    async with opened(backend, tmp_path / "d0.sqlite") as first:
        first.put("a", ROWS, row("a", 1))
        await first.flush()
        async with opened(backend, tmp_path / "d0.sqlite") as second:
            seq = first.put("a", ROWS, row("a", 2))
            first.when_durable(seq, told("zombie"), "a")
            with pytest.raises(Fenced):
                await first.flush()
            assert isinstance(told.events[0][1], Fenced)
            assert isinstance(first.broken, Fenced)
            for call in (
                lambda: first.put("a", ROWS, row("a", 3)),
                lambda: first.delete("a", ROWS, ("a", 1)),
                lambda: first.get(ROWS, ("a", 1)),
                lambda: first.scan(ROWS),
                lambda: first.query_now(COUNT),
                first.verify_owner,
            ):
                with pytest.raises(Fenced):
                    call()
            with pytest.raises(Fenced):
                await first.query(COUNT)
            assert second.scan(ROWS) == [row("a", 1)]
            second.verify_owner()
            second.put("a", ROWS, row("a", 9))
            await second.flush()


async def test_a_fenced_owner_notices_without_a_commit(backend: str, tmp_path: Path) -> None:
    told = Told()
    async with opened(backend, tmp_path / "d0.sqlite") as first:
        first.verify_owner()
        async with opened(backend, tmp_path / "d0.sqlite"):
            seq = first.put("a", ROWS, row("a", 1))
            first.when_durable(seq, told("a"), "a")
            with pytest.raises(Fenced):
                first.verify_owner()
            assert isinstance(first.broken, Fenced)
            assert told.names == []  # never from within a caller's read
            await turns(2)
            assert isinstance(told.events[0][1], Fenced)


async def test_a_closed_store_answers_nothing(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "d0.sqlite") as store:
        store.put("a", ROWS, row("a", 1))
        await asyncio.gather(store.close(), store.close())
        await store.close()
        assert store.durable_seq == 1
        with pytest.raises(StoreFailed):
            store.put("a", ROWS, row("a", 2))
        with pytest.raises(StoreFailed):
            store.get(ROWS, ("a", 1))
        with pytest.raises(StoreFailed):
            await store.query(COUNT)


# --- against a model ---

ENTITIES = st.sampled_from("abc")
NUMBERS = st.integers(0, 5)
ACTIONS = st.one_of(
    st.tuples(st.just("put"), ENTITIES, NUMBERS, st.integers(0, 99)),
    st.tuples(st.just("delete"), ENTITIES, NUMBERS),
    st.tuples(st.just("turn"), st.integers(1, 3)),
    st.tuples(st.just("flush")),
    st.tuples(
        st.just("scan"),
        st.one_of(st.just(()), st.tuples(ENTITIES), st.tuples(ENTITIES, NUMBERS)),
        st.one_of(st.none(), st.tuples(ENTITIES, NUMBERS)),
        st.integers(1, 8),
        st.booleans(),
    ),
)


def scan_model(
    model: dict[tuple[str, int], Row],
    prefix: tuple[Any, ...],
    after: tuple[str, int] | None,
    limit: int,
    reverse: bool,
) -> list[Row]:
    keys = sorted((key for key in model if key[: len(prefix)] == prefix), reverse=reverse)
    if after is not None:
        keys = [key for key in keys if (key < after if reverse else key > after)]
    return [model[key] for key in keys[:limit]]


async def check_against_model(backend: str, path: Path, actions: list[tuple[Any, ...]]) -> None:
    model: dict[tuple[str, int], Row] = {}
    async with opened(backend, path) as store:
        for action in actions:
            match action:
                case ("put", entity, n, value):
                    model[entity, n] = row(entity, n, f"s{value}")
                    store.put(entity, ROWS, model[entity, n])
                case ("delete", entity, n):
                    model.pop((entity, n), None)
                    store.delete(entity, ROWS, (entity, n))
                case ("turn", count):
                    await turns(count)
                case ("flush",):
                    await store.flush()
                    assert store.query_now(COUNT) == [(len(model),)]
                case ("scan", prefix, after, limit, reverse):
                    if after is not None and after[: len(prefix)] != prefix:
                        after = None
                    found = store.scan(ROWS, prefix, after=after, limit=limit, reverse=reverse)
                    assert found == scan_model(model, prefix, after, limit, reverse)
            for entity in "abc":
                for n in range(6):
                    assert store.get(ROWS, (entity, n)) == model.get((entity, n))
    async with opened(backend, path) as store:
        assert store.scan(ROWS) == [model[key] for key in sorted(model)]


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=40))
def test_any_interleaving_reads_like_a_dict(backend: str, actions: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        runner.run(check_against_model(backend, Path(folder) / "d0.sqlite", actions))


async def test_what_is_pending_of_a_table_is_what_no_query_shows(
    backend: str, tmp_path: Path
) -> None:
    store = BACKENDS[backend](tmp_path / "d0.sqlite")
    store.put("e", ONLY_KEY, ("a", 1))
    store.put("e", ONLY_KEY, ("a", 2))
    await store.flush()
    assert store.pending(ONLY_KEY) == {}
    store.delete("e", ONLY_KEY, ("a", 1))
    store.put("f", ONLY_KEY, ("b", 3))
    store.put("f", WIDE_KEY, ("k", "x", "y", b""))
    assert store.pending(ONLY_KEY) == {("a", 1): None, ("b", 3): ("b", 3)}
    await store.flush()
    assert store.pending(ONLY_KEY) == {}
    await store.close()
