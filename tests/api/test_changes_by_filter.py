"""Changes of all instances that a filter finds: page by page, each by itself, none twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.test_http_client import both, reached
from tests.api.test_http_refusals import BAD_ID, CREATE, INVALID, calling
from toque.runtime.errors import InvalidArgument, InvalidTransition

BULK = f"{CREATE}/batch/status"
DELETIONS = f"{CREATE}/batch/delete"


async def change(call: Any, key: str = "k", **body: Any) -> Any:
    headers = {"Authorization": "Bearer dev-token", "Idempotency-Key": key}
    _, found, _ = await call("POST", BULK, json.dumps(body), headers=headers)
    return found["result"]


async def test_a_filter_is_followed_by_its_cursor_to_the_end(plane: Any) -> None:
    async with calling(plane) as call:
        for n in range(7):
            await call("POST", CREATE, json.dumps({"instance_id": f"in/{n}"}))
        await call("POST", CREATE, b'{"instance_id": "out"}')
        asked: dict[str, Any] = {"filter": {"prefix": "in/"}, "status": "pause", "limit": 3}
        first = await change(call, **asked)
        assert first["changed"] == [{"id": f"in/{n}", "status": "paused"} for n in range(3)]
        assert first["errors"] == []
        again = await change(call, **asked)
        assert (again["changed"], again["cursor"]) == (first["changed"], first["cursor"])
        seen = [each["id"] for each in first["changed"]]
        cursor = first["cursor"]
        while cursor is not None:
            found = await change(call, **asked, cursor=cursor)
            seen += [each["id"] for each in found["changed"]]
            cursor = found["cursor"]
        assert seen == [f"in/{n}" for n in range(7)]
        assert plane.router.engine("out").done == []


async def test_a_filter_by_status_and_dates(plane: Any) -> None:
    async with calling(plane) as call:
        for n in range(4):
            await call("POST", CREATE, json.dumps({"instance_id": f"i{n}"}))
            plane.clock.advance(1000)
        plane.router.finish("i1")
        start = "2023-11-14T22:13:20Z"
        view = plane.router.engine("i2").view
        assert view.created_ms == 1_700_000_002_000
        found = await change(
            call,
            filter={"status": ["queued"], "date_start": start, "date_end": "2023-11-14T22:13:22Z"},
            status="terminate",
        )
        assert [each["id"] for each in found["changed"]] == ["i0", "i2"]
        assert found["cursor"] is None
        found = await change(call, "other", filter={}, status="terminate")
        assert [each["id"] for each in found["changed"]] == ["i3"]
        assert [(e["id"], e["code"]) for e in found["errors"]] == [
            (each, InvalidTransition.number) for each in ("i0", "i1", "i2")
        ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"status": "pause"}, INVALID),
        ({"status": "pause", "filter": {}, "instances": ["a"]}, INVALID),
        ({"status": "pause", "filter": {"state": "queued"}}, INVALID),
        ({"status": "pause", "filter": {"status": []}}, INVALID),
        ({"status": "pause", "filter": {"status": ""}}, INVALID),
        ({"status": "pause", "filter": {"status": " , "}}, INVALID),
        ({"status": "pause", "filter": {"status": "lost"}}, INVALID),
        ({"status": "explode", "filter": {}}, INVALID),
        ({"status": "pause", "filter": {}, "limit": 0}, INVALID),
        ({"status": "pause", "filter": {}, "limit": 101}, INVALID),
        ({"status": "pause", "filter": {}, "cursor": "x"}, INVALID),
        ({"status": "pause", "filter": {"date_end": "soon"}}, INVALID),
        ({"status": "pause", "filter": {"prefix": "a b"}}, BAD_ID),
    ],
    ids=lambda given: json.dumps(given)[:60].replace(" ", ""),
)
async def test_a_wrong_filter_changes_nothing(plane: Any, body: Any, expected: Any) -> None:
    async with calling(plane) as call:
        await call("POST", CREATE, b'{"instance_id": "a"}')
        assert await call.refused("POST", BULK, json.dumps(body)) == expected
        assert plane.router.engine("a").done == []


async def test_a_filter_deletes_to_the_end(plane: Any) -> None:
    async with calling(plane) as call:
        for n in range(5):
            await call("POST", CREATE, json.dumps({"instance_id": f"in/{n}"}))
        await call("POST", CREATE, b'{"instance_id": "out"}')
        asked: dict[str, Any] = {"filter": {"prefix": "in/"}, "limit": 2, "cursor": None}
        seen = []
        while True:
            _, found, _ = await call("POST", DELETIONS, json.dumps(asked))
            seen.append([each["id"] for each in found["result"]["deleted"]])
            asked["cursor"] = found["result"]["cursor"]
            if asked["cursor"] is None:
                break
        assert seen == [["in/0", "in/1"], ["in/2", "in/3"], ["in/4"]]
        assert list(plane.router.engines) == [key for key in plane.router.engines if "out" in key]


@pytest.mark.parametrize(
    "body",
    [{}, {"filter": {}, "instances": ["a"]}, {"filter": {}, "limit": 101}, {"filter": {"a": 1}}],
    ids=json.dumps,
)
async def test_a_wrong_filter_deletes_nothing(plane: Any, body: Any) -> None:
    async with calling(plane) as call:
        await call("POST", CREATE, b'{"instance_id": "a"}')
        assert await call.refused("POST", DELETIONS, json.dumps(body)) == INVALID
        assert plane.router.engine("a").done == []


@both
async def test_the_client_deletes_all_that_match(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        for n in range(5):
            await client.create_instance("orders", f"in/{n}")
        await client.create_instance("orders", "out")
        done = [part async for part in client.delete_matching("orders", prefix="in/", limit=2)]
        assert [[each for each, _ in part.changed] for part in done] == [
            ["in/0", "in/1"], ["in/2", "in/3"], ["in/4"]
        ]  # fmt: skip
        assert [line.id async for line in client.list_instances("orders")] == ["out"]
        with pytest.raises(InvalidArgument, match="limit"):
            await anext(aiter(client.delete_matching("orders", limit=0)))


@both
async def test_the_client_changes_all_that_match(plane: Any, how: str) -> None:
    async with reached(plane, how) as client:
        for n in range(5):
            await client.create_instance("orders", f"in/{n}")
        await client.create_instance("orders", "out")
        done = [
            part async for part in client.change_matching("orders", "cancel", prefix="in/", limit=2)
        ]
        assert [[each for each, _ in part.changed] for part in done] == [
            ["in/0", "in/1"], ["in/2", "in/3"], ["in/4"]
        ]  # fmt: skip
        listed = [line.id async for line in client.list_instances("orders", prefix="in/")]
        assert listed == [f"in/{n}" for n in reversed(range(5))]
        with pytest.raises(InvalidArgument, match="not supported"):
            await anext(aiter(client.change_matching("orders", "explode")))
