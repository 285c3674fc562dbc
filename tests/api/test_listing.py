"""Lists: each instance once by cursor, pages by number come to an end, cursors can't be forged."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from toque.api.listing import ListQuery, decode_cursor, encode_cursor
from toque.api.service import NewInstance
from toque.runtime import limits
from toque.runtime.errors import InvalidArgument, InvalidId


async def fill(plane: Any, first: int, count: int, *, ms_apart: int = 0) -> list[str]:
    """Instances `i<n>`; by default all made in the same millisecond."""
    ids = [f"i{n:03d}" for n in range(first, first + count)]
    for instance_id in ids:
        await plane.service.create_instances("default", "orders", [NewInstance(instance_id)])
        plane.clock.advance(ms_apart)
    return ids


async def page(plane: Any, **query: Any) -> Any:
    found = await plane.service.list_instances("default", "orders", ListQuery(**query))
    return [row.id for row in found.page.rows], found


async def test_following_cursors_counts_once(plane: Any) -> None:
    await fill(plane, 0, 20)
    _, found = await page(plane, per_page=5)
    before = plane.router.calls["counts_at_least"]
    while found.cursor:
        _, found = await page(plane, per_page=5, cursor=found.cursor)
        assert found.total == 20
    assert plane.router.calls["counts_at_least"] == before


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("ms_apart", [0, 1])
async def test_by_cursor_each_instance_is_shown_once_while_more_are_made(
    plane: Any, newest_first: bool, ms_apart: int
) -> None:
    first = await fill(plane, 0, 30, ms_apart=ms_apart)
    plane.clock.advance(1)
    seen: list[str] = []
    cursor = None
    made = 30
    while True:
        ids, found = await page(plane, per_page=7, newest_first=newest_first, cursor=cursor)
        seen += ids
        cursor = found.cursor
        if cursor is None:
            break
        if made < 60:
            await fill(plane, made, 5, ms_apart=1)
            made += 5
    assert len(seen) == len(set(seen))
    assert set(first) <= set(seen)
    assert [i for i in seen if i in first] == sorted(first, reverse=newest_first)


async def test_pages_by_number_end_with_an_empty_one(plane: Any) -> None:
    ids = await fill(plane, 0, 23, ms_apart=1)
    seen: list[str] = []
    number = 1
    while True:
        rows, found = await page(plane, per_page=5, page=number, newest_first=False)
        assert found.page.page == number
        if not rows:
            break
        assert found.total == 23
        seen += rows
        number += 1
    assert (seen, number) == (ids, 6)
    for far in (7, 1000, 2**52):
        assert (await page(plane, per_page=500, page=far))[0] == []


async def test_asking_page_after_page_does_not_walk(plane: Any) -> None:
    await fill(plane, 0, 40, ms_apart=1)
    calls = plane.router.calls
    costs = []
    for number in range(1, 9):
        before = calls["list_page"]
        await page(plane, per_page=5, page=number)
        costs.append(calls["list_page"] - before)
    assert set(costs) == {3}  # one call to each of three shards


async def test_a_page_number_with_a_cursor_counts_from_it(plane: Any) -> None:
    ids = await fill(plane, 0, 20, ms_apart=1)
    rows, found = await page(plane, per_page=5, newest_first=False)
    cursor = found.cursor
    for number in (None, 1):
        rows, found = await page(plane, per_page=5, newest_first=False, cursor=cursor, page=number)
        assert (rows, found.page.page) == (ids[5:10], 2)
    # as the official SDK does: the same cursor again with page 2, 3, ... until it is empty
    seen = rows
    number = 2
    while rows:
        rows, found = await page(plane, per_page=5, newest_first=False, cursor=cursor, page=number)
        seen += rows
        number += 1
    assert (seen, number) == (ids[5:], 5)


async def test_filters(plane: Any) -> None:
    start_ms = plane.clock.now_ms()
    ids = await fill(plane, 0, 10, ms_apart=1)
    plane.router.finish("i003")
    assert (await page(plane, statuses=("complete",)))[0] == ["i003"]
    rows, found = await page(plane, statuses=("queued", "complete"), newest_first=False)
    assert (rows, found.total) == (ids, 10)
    rows, found = await page(
        plane, since_ms=start_ms + 2, until_ms=start_ms + 5, newest_first=False
    )
    assert (rows, found.total) == (ids[2:5], 3)
    rows, found = await page(plane, since_ms=start_ms + 2, per_page=3, newest_first=False)
    assert (rows, found.total) == (ids[2:5], 4)  # a lower bound


async def test_a_page_too_far_in_names_the_way_out(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAGE_WALK_ROWS_MAX", 10)
    monkeypatch.setattr(limits, "LIST_PAGE_ROWS_MAX", 5)
    await fill(plane, 0, 40)
    with pytest.raises(InvalidArgument, match="cursor"):
        await page(plane, per_page=4, page=8)


def _bent(cursor: str, change: Any) -> str:
    raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    fields = msgspec.msgpack.decode(raw)
    change(fields)
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(fields)).rstrip(b"=").decode()


async def test_forged_and_foreign_cursors_are_refused(plane: Any) -> None:
    plane.router.add_workflow("refunds")
    await fill(plane, 0, 9)
    _, found = await page(plane, per_page=4)
    cursor = found.cursor
    assert len((await page(plane, per_page=3, cursor=cursor))[0]) == 3  # per_page may change
    forged = [
        cursor[:-1],
        cursor + "A",
        cursor.swapcase(),
        "AAAA",
        "=" * 4,
        "x" * 5000,
        _bent(cursor, lambda f: f.__setitem__(2, f[2] + 1)),
        _bent(cursor, lambda f: f.__setitem__(3, "i000")),
        _bent(cursor, lambda f: f.__setitem__(4, 1)),
        _bent(cursor, lambda f: f.__setitem__(0, 2)),
        _bent(cursor, lambda f: f.append(1)),
        _bent(cursor, lambda f: f.pop()),
    ]
    for text in forged:
        with pytest.raises(InvalidArgument, match="cursor is not valid"):
            await page(plane, cursor=text)
    for other in ({"newest_first": False}, {"statuses": ("queued",)}, {"since_ms": 1}):
        with pytest.raises(InvalidArgument, match="cursor is not valid"):
            await page(plane, cursor=cursor, **other)
    with pytest.raises(InvalidArgument, match="cursor is not valid"):
        await plane.service.list_instances("default", "refunds", ListQuery(cursor=cursor))


def test_a_cursor_gives_back_its_position() -> None:
    cursor = encode_cursor(b"scope", (1_700_000_000_000, "a/b"), 3, 70)
    assert decode_cursor(b"scope", cursor) == ((1_700_000_000_000, "a/b"), 3, 70)


# --- by prefix ----------------------------------------------------------------------------------


@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_prefix_lists_its_ids_in_their_order_each_once(
    plane: Any, newest_first: bool
) -> None:
    under = [f"folder/7/{n}" for n in (5, 3, 9, 1)]
    for instance_id in [*under, "folder/70", "folder/6/1", "folder", "g"]:
        await plane.service.create_instances("default", "orders", [NewInstance(instance_id)])
        plane.clock.advance(1)
    query = {"prefix": "folder/7/", "per_page": 3, "newest_first": newest_first}
    ids, found = await page(plane, **query)
    assert found.total == 4
    await plane.service.create_instances("default", "orders", [NewInstance("folder/7/35")])
    more, found = await page(plane, **query, cursor=found.cursor)
    seen = [each for each in ids + more if each in under]
    assert seen == sorted(under, reverse=newest_first)
    assert found.cursor is None
    other = (await page(plane, per_page=2))[1].cursor
    with pytest.raises(InvalidArgument, match="cursor"):
        await page(plane, prefix="folder", cursor=other)


async def test_a_prefix_filters_with_the_rest(plane: Any) -> None:
    await fill(plane, 0, 4, ms_apart=1)
    await plane.service.change_status("default", "orders", "i001", "terminate")
    assert (await page(plane, prefix="i00", statuses=("terminated",)))[0] == ["i001"]
    assert (await page(plane, prefix="i1"))[0] == []


@pytest.mark.parametrize("prefix", ["/a", "a b", "é", "a%", "x" * 257, "a\n"])
async def test_a_prefix_that_no_id_has_is_refused(plane: Any, prefix: str) -> None:
    with pytest.raises(InvalidId, match="prefix"):
        await page(plane, prefix=prefix)
