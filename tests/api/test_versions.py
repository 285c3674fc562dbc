"""Versions of a workflow: newest first, page by page, each with the graph of its own code."""

from __future__ import annotations

import ast
from typing import Any

import aiohttp
import pytest

from toque.api.versions import VersionInfo
from toque.gatekeeper.messages import VersionRecord
from toque.runtime.errors import InvalidArgument, VersionNotFound, WorkflowNotFound

SOURCE = "class Orders:\n    async def run(self, event, step):\n        await step.do('a', f)\n"


def deployed(plane: Any, count: int) -> None:
    plane.router.versions["orders"] = [
        VersionRecord(f"v{n}", f"hash{n}", "Orders", "shop.py", 1_700_000_000_000 + n)
        for n in range(count)
    ]


async def ids(plane: Any, page: int, per_page: int) -> tuple[list[str], int]:
    found, total = await plane.service.versions.page(
        "default", "orders", page=page, per_page=per_page
    )
    return [info.record.version_id for info in found], total


async def test_pages_of_versions_are_newest_first_and_end(plane: Any) -> None:
    deployed(plane, 5)
    assert await ids(plane, 1, 2) == (["v4", "v3"], 5)
    assert await ids(plane, 3, 2) == (["v0"], 5)
    assert await ids(plane, 4, 2) == ([], 5)
    with pytest.raises(InvalidArgument, match="page"):
        await ids(plane, 0, 2)
    await plane.service.close()


async def test_a_version_is_found_by_its_id(plane: Any) -> None:
    deployed(plane, 2)
    versions = plane.service.versions
    found: VersionInfo = await versions.get("default", "orders", "v1")
    assert (found.record.code_hash, found.graph) == ("hash1", None)
    with pytest.raises(VersionNotFound, match="'v9'"):
        await versions.get("default", "orders", "v9")
    with pytest.raises(WorkflowNotFound):
        await versions.get("default", "none", "v1")
    await plane.service.close()


async def test_a_graph_is_of_the_versions_own_code_and_made_once(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("the parser holds the interpreter's lock")

    monkeypatch.setattr(ast, "parse", never)
    deployed(plane, 2)
    versions = plane.service.versions
    asked: list[tuple[str, str]] = []

    async def sources(account: str, code_hash: str) -> dict[str, str] | None:
        asked.append((account, code_hash))
        return {"shop.py": SOURCE} if code_hash == "hash1" else None

    versions.sources = sources
    for _ in range(2):
        new, old = (await versions.page("default", "orders", page=1, per_page=9))[0]
        assert new.graph is not None
        assert [node["type"] for node in new.graph["workflow"]["nodes"]] == ["start", "step_do"]
        assert old.graph is None
    assert asked == [("default", "hash1"), ("default", "hash0"), ("default", "hash0")]
    await plane.service.close()


async def test_versions_over_http(plane: Any) -> None:
    deployed(plane, 1)

    async def sources(account: str, code_hash: str) -> dict[str, str] | None:
        return {"shop.py": SOURCE}

    plane.service.versions.sources = sources
    headers = {"Authorization": f"Bearer {plane.token}"}
    async with plane.serving() as server, aiohttp.ClientSession(headers=headers) as session:
        base = f"{server.url}/client/v4/accounts/default/workflows/orders/versions"
        found = await (await session.get(base)).json()
        assert found["result_info"] == {
            "count": 1, "per_page": 50, "total_count": 1, "page": 1, "total_pages": 1
        }  # fmt: skip
        (version,) = found["result"]
        assert version == {
            "id": "v0",
            "class_name": "Orders",
            "created_on": "2023-11-14T22:13:20.000Z",
            "modified_on": "2023-11-14T22:13:20.000Z",
            "workflow_id": "uuid-default-orders",
            "has_dag": True,
            "language": "python",
            "concurrency": {"limit": None},
            "default_retention": {"success_retention": None, "error_retention": None},
            "limits": {"steps": None},
        }
        assert (await (await session.get(f"{base}/v0")).json())["result"] == version
        graph = (await (await session.get(f"{base}/v0/graph")).json())["result"]
        assert graph.pop("graph")["workflow"]["class_name"] == "Orders"
        assert graph == version
        missing = await session.get(f"{base}/v1/graph")
        assert (missing.status, (await missing.json())["errors"][0]["code"]) == (404, 10202)
