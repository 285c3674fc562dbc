"""Limits of accounts and workflows over HTTP: what they are, changes, and what they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_walls import world
from toque.api.client_admin import ACCOUNT_LIMITS
from toque.engines.views import CreateRequest, Retention, retention_of
from toque.gatekeeper.messages import Settings
from toque.runtime import limits

LIMITS = "/toque/v1/accounts/default/limits"
OF_ORDER = "/toque/v1/accounts/default/workflows/Order/limits"
CREATE = "/client/v4/accounts/default/workflows/Order/instances"
DAY = 24 * 3_600_000


async def test_limits_are_told_and_changed_one_by_one(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        status, found = await call("GET", LIMITS, "read")
        before = found["result"]
        assert status == 200
        assert {**before, "generation": 0} == {
            "running_max": 0, "creates_per_second": 300, "success_retention": None,
            "error_retention": None, "generation": 0,
        }  # fmt: skip
        change = {"creates_per_second": 7, "success_retention": "3 days", "error_retention": 5}
        _, found = await call("PATCH", LIMITS, "admin", change)
        after = found["result"]
        assert after == {
            **before, "creates_per_second": 7, "success_retention": 3 * DAY, "error_retention": 5,
            "generation": before["generation"] + 1,
        }  # fmt: skip
        _, found = await call("PATCH", LIMITS, "admin", {})
        assert found["result"] == after
        nothing = {"creates_per_second": None, "success_retention": None}
        _, found = await call("PATCH", LIMITS, "admin", nothing)
        assert found["result"] == {
            **before,
            "error_retention": 5,
            "generation": after["generation"] + 1,
        }
        assert (await call("GET", LIMITS, "read"))[1] == found
        # and another account's are as they were
        _, other = await call("GET", "/toque/v1/accounts/other/limits", "other read")
        assert other["result"]["error_retention"] is None


async def test_a_workflow_has_limits_of_its_own(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        _, found = await call("GET", OF_ORDER, "read")
        before = found["result"]
        assert before == {
            "running_max": 0, "weight": 1, "creates_per_second": 100, "souschefs": 1,
            "steps": None, "success_retention": None, "error_retention": None,
            "queued_max": 2_000_000, "souschefs_auto": True,
        }  # fmt: skip
        change = {"running_max": 5, "weight": 3, "creates_per_second": 9, "souschefs": 4,
                  "steps": 50, "success_retention": 0, "error_retention": "1 hour",
                  "queued_max": 700}  # fmt: skip
        _, found = await call("PATCH", OF_ORDER, "admin", change)
        told = {**change, "error_retention": 3_600_000, "souschefs_auto": False}
        assert found["result"] == told
        _, found = await call("PATCH", OF_ORDER, "admin", {"steps": None, "weight": 1})
        assert found["result"] == {**told, "steps": None, "weight": 1}
        _, found = await call("PATCH", OF_ORDER, "admin", {"souschefs": "auto"})
        assert (found["result"]["souschefs"], found["result"]["souschefs_auto"]) == (1, True)
        assert (await call("GET", OF_ORDER, "read"))[1] == found
        status, _ = await call("PATCH", OF_ORDER.replace("Order", "None"), "admin", {})
        assert status == 404


REFUSED: list[tuple[str, dict[str, Any]]] = [
    (LIMITS, {"running_max": -1}),
    (LIMITS, {"running_max": 10**7 + 1}),
    (LIMITS, {"running_max": 2**63}),
    (LIMITS, {"running_max": 2**64}),
    (LIMITS, {"error_retention": -(10**20)}),
    (LIMITS, {"running_max": "many"}),
    (LIMITS, {"creates_per_second": 0}),
    (LIMITS, {"creates_per_second": 1_000_001}),
    (LIMITS, {"success_retention": -1}),
    (LIMITS, {"success_retention": "31 days"}),
    (LIMITS, {"success_retention": "soon"}),
    (LIMITS, {"weight": 2}),
    (LIMITS, {"generation": 2}),
    (LIMITS, {"creates_per_second": 5, "error_retention": 31 * DAY}),
    (OF_ORDER, {"weight": 0}),
    (OF_ORDER, {"souschefs": 65}),
    (OF_ORDER, {"souschefs": "many"}),
    (OF_ORDER, {"queued_max": 0}),
    (OF_ORDER, {"queued_max": 10_000_001}),
    (LIMITS, {"queued_max": 5}),
    (OF_ORDER, {"steps": 25_001}),
    (OF_ORDER, {"weight": 2, "steps": 0}),
]


async def test_null_is_the_default_again_of_every_limit(tmp_path: Path) -> None:
    changed = {"running_max": 5, "weight": 3, "creates_per_second": 9, "souschefs": 4,
               "steps": 50, "success_retention": 0, "error_retention": 7,
               "queued_max": 9}  # fmt: skip
    async with world(tmp_path) as call:
        _, found = await call("GET", OF_ORDER, "read")
        await call("PATCH", OF_ORDER, "admin", changed)
        assert await call("PATCH", OF_ORDER, "admin", dict.fromkeys(changed)) == (200, found)
        of_account = {name: value for name, value in changed.items() if name in ACCOUNT_LIMITS}
        await call("PATCH", LIMITS, "admin", of_account)
        _, found = await call("PATCH", LIMITS, "admin", dict.fromkeys(of_account))
        assert {**found["result"], "generation": 0} == {
            "running_max": limits.RUNNING_PER_ACCOUNT_DEFAULT, "creates_per_second": 300,
            "success_retention": None, "error_retention": None, "generation": 0,
        }  # fmt: skip


async def test_bad_changes_are_refused_whole(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        before = [await call("GET", path, "read") for path in (LIMITS, OF_ORDER)]
        for path, change in REFUSED:
            status, answer = await call("PATCH", path, "admin", change)
            assert (status, answer["errors"][0]["toque"]["code"]) == (
                400,
                "request.invalid_argument",
            ), change
        assert [await call("GET", path, "read") for path in (LIMITS, OF_ORDER)] == before


async def test_creates_over_the_rate_are_refused_and_told_when(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        await call("PATCH", OF_ORDER, "admin", {"creates_per_second": 1})
        found = [await call("POST", CREATE, "write", {"instance_id": f"i{n}"}) for n in range(3)]
        assert [status for status, _ in found] == [200, 429, 429]
        error = found[1][1]["errors"][0]
        assert (error["code"], error["toque"]["code"]) == (10605, "rate.limited")
        assert error["toque"]["data"]["of"] == "workflow"
        headers = {"Authorization": f"Bearer {call.tokens['write']}"}
        url = f"{call.session.base}{CREATE}"
        async with call.session.post(url + "/batch", headers=headers, json=[{}]) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        restart = {"status": "restart"}
        assert (await call("PATCH", f"{CREATE}/i0/status", "write", restart))[0] == 429
        _, listed = await call("GET", CREATE, "read")
        assert {row["id"] for row in listed["result"]} == {"mine", "i0"}
        # others are not held up
        theirs = CREATE.replace("default", "other")
        assert (await call("POST", theirs, "other write", {}))[0] == 200


async def test_a_create_that_is_wrong_costs_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        await call("PATCH", OF_ORDER, "admin", {"creates_per_second": 1})
        for _ in range(5):
            assert (await call("POST", CREATE, "write", {"instance_id": "a b"}))[0] == 400
            assert (await call("POST", CREATE, "read", {}))[0] == 403
        assert (await call("POST", CREATE, "write", {}))[0] == 200


async def test_creates_carry_what_is_set(plane: Any) -> None:
    client = plane.embedded()
    for settings, expected in (
        ({}, (None, None)),
        ({"": Settings(success_retention_ms=1, error_retention_ms=2)}, (1, 2)),
        (
            {
                "": Settings(success_retention_ms=1, error_retention_ms=2),
                "uuid-default-orders": Settings(error_retention_ms=3, steps=9),
            },
            (1, 3),
        ),
    ):
        plane.router.settings = settings
        plane.router.generation += 1
        plane.service._cache.forget("default")
        made = await client.create_instance("orders")
        engine = plane.router.engine(made.id)
        assert engine.default_retention == expected
        assert engine.steps_max == (9 if len(settings) == 2 else 0)
    await plane.service.close()


@pytest.mark.parametrize(
    ("given", "default", "kept"),
    [
        (None, None, (7, 8)),
        (None, (1, None), (1, 8)),
        ((3, 4), (1, 2), (3, 4)),
        ((None, 0), (1, 2), (1, 0)),
        ((0, None), None, (0, 8)),
    ],
    ids=["none", "default", "given", "part", "zero"],
)
def test_what_a_create_says_goes_before_what_is_set(
    given: Retention | None, default: Retention | None, kept: tuple[int, int]
) -> None:
    request = CreateRequest("w", "W", "v", "h", b"null", "r", 1, "api", 0, given, 0, default)
    assert retention_of(request, (7, 8)) == kept


async def test_an_unknown_accounts_limits_are_not_made_by_asking(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        for method in ("GET", "PATCH"):
            path = "/toque/v1/accounts/nobody/limits"
            status, answer = await call(method, path, "operator admin", {})
            assert (status, answer["errors"][0]["toque"]["code"]) == (404, "account.not_found")
        assert "nobody" not in json.dumps(
            (await call("GET", "/toque/v1/accounts", "operator read"))[1]
        )
