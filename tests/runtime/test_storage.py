"""The key-value storage of entities: order, ranges, transactions, bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.shards import Cluster
from toque.runtime import limits
from toque.runtime.entity import DurableObject
from toque.runtime.errors import InvalidArgument, Overloaded, UnencodableValue
from toque.runtime.ids import EntityRef
from toque.runtime.simloop import VirtualTimeLoop

pytestmark = pytest.mark.loop(factory=VirtualTimeLoop)


class Box(DurableObject):
    """Hands its storage out to the test."""


def storage_of(cluster: Cluster, key: str = "a") -> Any:
    return cluster.hosts["d0"].local(EntityRef("Box", key)).ctx.storage


@pytest.fixture
def folder(tmp_path):
    return tmp_path


async def test_values_keep_their_types_and_entities_are_apart(folder):
    cluster = Cluster(folder, {"Box": Box})
    a, b = storage_of(cluster, "a"), storage_of(cluster, "b")
    value = {"n": None, "t": True, "i": 2**62, "f": 0.5, "s": "ä", "b": b"\0", "l": [1, [2]]}
    await a.put("k", value)
    assert await a.get("k") == value
    assert await b.get("k", "none") == "none"
    cluster.crash("d0", "kept")
    await cluster.close()


async def test_lists_are_in_order_and_respect_all_bounds(folder):
    cluster = Cluster(folder, {"Box": Box})
    box = storage_of(cluster)
    await box.put_many({key: key for key in ("b", "a", "aa", "ab", "c", "ä", "b/1", "b/2")})
    await asyncio.sleep(1)  # some committed ...
    await box.put("ac", 1)
    await box.delete("aa")  # ... some pending
    assert list(await box.list()) == ["a", "ab", "ac", "b", "b/1", "b/2", "c", "ä"]
    assert list(await box.list(prefix="a")) == ["a", "ab", "ac"]
    assert list(await box.list(prefix="b/")) == ["b/1", "b/2"]
    assert list(await box.list(start="ab", end="b/1")) == ["ab", "ac", "b"]
    assert list(await box.list(start="b", end="c", reverse=True)) == ["b/2", "b/1", "b"]
    assert list(await box.list(prefix="b", reverse=True, limit=2)) == ["b/2", "b/1"]
    assert list(await box.list(limit=2)) == ["a", "ab"]
    with pytest.raises(InvalidArgument):
        await box.list(limit=0)
    await cluster.close()


KEYS = st.text(st.sampled_from("ab/é"), min_size=1, max_size=4)


@settings(max_examples=60)
@given(
    keys=st.lists(KEYS, max_size=12),
    prefix=st.text(st.sampled_from("ab/"), max_size=2),
    start=st.none() | KEYS,
    end=st.none() | KEYS,
    reverse=st.booleans(),
    limit=st.integers(1, 5),
)
def test_a_list_gives_what_a_sorted_dict_would(
    tmp_path_factory, keys, prefix, start, end, reverse, limit
):
    async def check() -> None:
        cluster = Cluster(tmp_path_factory.mktemp("kv"), {"Box": Box})
        box = storage_of(cluster)
        await box.put_many(dict.fromkeys(keys, 1))
        expected = [
            key
            for key in sorted(set(keys), reverse=reverse)
            if key.startswith(prefix)
            and (start is None or key >= start)
            and (end is None or key < end)
        ][:limit]
        found = await box.list(prefix=prefix, start=start, end=end, reverse=reverse, limit=limit)
        assert list(found) == expected
        await cluster.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(check())


@pytest.mark.parametrize("key", ["", "a\0", "\ud800", "x" * (limits.KV_KEY_BYTES_MAX + 1), 1, None])
async def test_bad_keys_are_refused(folder, key):
    cluster = Cluster(folder, {"Box": Box})
    with pytest.raises(InvalidArgument):
        await storage_of(cluster).put(key, 1)
    await cluster.close()


async def test_a_value_that_cannot_be_stored_is_refused_and_nothing_is_written(folder):
    cluster = Cluster(folder, {"Box": Box})
    box = storage_of(cluster)
    for bad in (object(), {1: object()}, lambda: 1):
        with pytest.raises(UnencodableValue):
            await box.put("k", bad)
    with pytest.raises(InvalidArgument):
        await box.put("k", b"x" * (limits.KV_VALUE_BYTES_MAX + 1))
    with pytest.raises(UnencodableValue):
        await box.put_many({"good": 1, "bad": object()})
    assert await box.list() == {}
    await cluster.close()


async def test_a_transaction_writes_all_or_nothing(folder):
    cluster = Cluster(folder, {"Box": Box})
    box = storage_of(cluster)
    await box.put_many({"a": 1, "b": 2})

    async def move(txn: Any) -> int:
        await txn.put("a", await txn.get("a") - 1)
        await txn.put("b", await txn.get("b") + 1)
        await txn.delete("none")
        assert await txn.get("a") == 0
        assert await box.get("a") == 1  # not before the end
        return 7

    assert await box.transaction(move) == 7
    assert await box.list() == {"a": 0, "b": 3}

    async def fail(txn: Any) -> None:
        await txn.put("a", 99)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await box.transaction(fail)

    async def take_back(txn: Any) -> None:
        await txn.put("a", 99)
        txn.rollback()

    await box.transaction(take_back)
    assert await box.list() == {"a": 0, "b": 3}
    await cluster.close()


async def test_many_writes_for_which_there_is_no_room_write_nothing(folder):
    cluster = Cluster(folder, {"Box": Box})
    box = storage_of(cluster)
    store = cluster.stores["d0"]
    values = {f"k{number}": number for number in range(10)}

    async def move(txn: Any) -> None:
        for key, value in values.items():
            await txn.put(key, value)

    room, store._group._rows_max = store._group._rows_max, 5
    with pytest.raises(Overloaded):
        await box.transaction(move)
    with pytest.raises(Overloaded):
        await box.put_many(values)
    assert await box.list() == {}
    store._group._rows_max = room
    await box.transaction(move)
    assert len(await box.list()) == 10
    with pytest.raises(InvalidArgument, match="20001 storage keys"):
        await box.put_many({f"m{number}": 0 for number in range(20_001)})
    assert len(await box.list()) == 10
    await cluster.close()


async def test_a_transaction_that_was_overtaken_writes_nothing(folder):
    cluster = Cluster(folder, {"Box": Box})
    box = storage_of(cluster)

    async def slow(txn: Any) -> None:
        seen = await txn.get("n", 0)
        await asyncio.sleep(1)
        await txn.put("n", seen + 1)

    first, second = (asyncio.ensure_future(box.transaction(slow)) for _ in range(2))
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert results[0] is None
    assert isinstance(results[1], InvalidArgument)
    assert await box.get("n") == 1
    await cluster.close()


async def test_delete_tells_whether_it_was_there_and_delete_all_clears(folder):
    cluster = Cluster(folder, {"Box": Box})
    box = storage_of(cluster)
    await box.put_many({f"k{n}": n for n in range(limits.SCAN_ROWS_MAX + 10)})
    assert await box.delete("k0")
    assert not await box.delete("k0")
    assert await box.get_many(["k0", "k1"]) == {"k1": 1}
    await box.delete_all()
    assert await box.list() == {}
    await cluster.close()


async def test_delete_all_clears_more_than_a_commit_holds(folder):
    cluster = Cluster(folder, {"Box": Box})
    box = storage_of(cluster)
    for part in range(5):
        await box.put_many({f"{part}/{n}": n for n in range(9_000)})
        await asyncio.sleep(1)
    clearing = asyncio.ensure_future(box.delete_all())
    await asyncio.sleep(0)
    await box.put("z", "set meanwhile")
    await clearing
    await asyncio.sleep(1)
    assert await box.list() == {}
    await cluster.close()
