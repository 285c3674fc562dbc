"""How long an Idempotency-Key is remembered, and that it is one account's and one instance's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.test_walls import World, world
from toque.runtime import limits

CREATE = "/client/v4/accounts/default/workflows/Order/instances"
MINE = f"{CREATE}/mine"


async def keyed(
    call: World, method: str, path: str, key: str, body: Any = None, token: str = "admin"
) -> tuple[int, Any]:
    """A request with a key; gives status and the decoded answer."""
    headers = {"Authorization": f"Bearer {call.tokens[token]}", "Idempotency-Key": key}
    url = f"{call.session.base}{path}"
    async with call.session.request(method, url, headers=headers, json=body) as answer:
        return answer.status, await answer.json()


async def test_a_creates_key_lasts_as_long_as_its_instance_and_is_one_accounts(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as call:
        status, first = await keyed(call, "POST", CREATE, "k", {"params": 1})
        assert status == 200
        assert await keyed(call, "POST", CREATE, "k", {"params": 1}) == (status, first)
        status, refused = await keyed(call, "POST", CREATE, "k", {"params": 2})
        assert (status, refused["errors"][0]["toque"]["code"]) == (422, "request.id_reused")
        theirs = CREATE.replace("default", "other")
        status, other = await keyed(call, "POST", theirs, "k", {"params": 1}, "other admin")
        assert status == 200
        assert other["result"]["id"] != first["result"]["id"]
        where = f"{CREATE}/{first['result']['id']}"
        assert (await call("DELETE", where, "admin"))[0] == 200
        status, refused = await keyed(call, "POST", CREATE, "k", {"params": 1})
        assert (status, refused["errors"][0]["toque"]["code"]) == (404, "instance.not_found")


async def test_of_changes_an_instance_remembers_the_last_keys(tmp_path: Path) -> None:
    async with world(tmp_path) as call:

        async def buffered() -> int:
            _, found = await call("GET", f"{MINE}/waiting", "read")
            return sum(entry["count"] for entry in found["result"]["buffered"])

        number = limits.REQUEST_IDS_KEPT_MAX + 1
        for n in range(number):
            assert (await keyed(call, "POST", f"{MINE}/events/go", f"k{n}", n))[0] == 200
        assert await buffered() == number
        for n in (number - 1, 1):  # the newest and the oldest that are remembered
            assert (await keyed(call, "POST", f"{MINE}/events/go", f"k{n}", n))[0] == 200
        assert await buffered() == number
        assert (await keyed(call, "POST", f"{MINE}/events/go", "k0", 0))[0] == 200
        assert await buffered() == number + 1


async def test_accounts_and_tokens_are_made_once_by_a_key(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        path = "/toque/v1/accounts"
        made = await keyed(call, "POST", path, "k", {"name": "New"}, "operator admin")
        assert made[0] == 200
        assert await keyed(call, "POST", path, "k", {"name": "New"}, "operator admin") == made
        path = "/toque/v1/accounts/default/tokens"
        body = {"name": "ci", "scope": "read"}
        _, first = await keyed(call, "POST", path, "k", body)
        _, again = await keyed(call, "POST", path, "k", body)
        assert first["result"]["id"] == again["result"]["id"]
        assert first["result"]["token"] != again["result"]["token"]
        assert (await call("GET", "/toque/v1/whoami", first["result"]["token"]))[0] == 401
        # the answer shows no token's text, so `call` may be asked with it
        assert (await call("GET", "/toque/v1/whoami", again["result"]["token"]))[0] == 200
        # another caller's key of that text is another key
        _, other = await keyed(call, "POST", path, "k", body, "operator admin")
        assert other["result"]["id"] != again["result"]["id"]
        _, listed = await call("GET", path, "admin")
        assert [row["name"] for row in listed["result"]].count("ci") == 2


async def test_a_key_that_was_used_for_another_account_or_token_is_refused(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as call:
        accounts, tokens = "/toque/v1/accounts", "/toque/v1/accounts/default/tokens"
        account = {"id": "new", "name": "New"}
        token = {"name": "ci", "scope": "read", "expires_in": 3_600}
        for path, body, others in (
            (accounts, account, [{"name": "Newer"}, {"control_plane": "v1"}]),
            (
                tokens,
                token,
                [{"name": "cd"}, {"scope": "write"}, {"expires_in": 7_200}, {"expires_in": None}],
            ),
        ):
            status, first = await keyed(call, "POST", path, "k", body, "operator admin")
            assert status == 200
            for other in others:
                changed = {**body, **other}
                status, refused = await keyed(call, "POST", path, "k", changed, "operator admin")
                assert (status, refused["errors"][0]["toque"]["code"]) == (
                    422, "request.id_reused",
                ), other  # fmt: skip
            _, listed = await call("GET", path, "operator admin")
            (kept,) = [row for row in listed["result"] if row["id"] == first["result"]["id"]]
            assert kept == {name: first["result"][name] for name in kept}


async def test_a_repeated_token_ends_when_the_first_would_have(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        path = "/toque/v1/accounts/default/tokens"
        body = {"name": "ci", "scope": "read", "expires_in": 3_600}
        _, first = await keyed(call, "POST", path, "k", body)
        _, again = await keyed(call, "POST", path, "k", body)
        assert again["result"]["expires_on"] == first["result"]["expires_on"]
        assert again["result"]["created_on"] == first["result"]["created_on"]


async def test_a_token_is_revoked_once_and_its_repeat_finds_it_done(tmp_path: Path) -> None:
    async with world(tmp_path) as call:
        token_id = call.tokens["read"].split("_")[1]
        where = f"/toque/v1/accounts/default/tokens/{token_id}"
        assert (await call("DELETE", where, "other admin"))[0] == 403
        elsewhere = where.replace("default", "other")
        assert (await call("DELETE", elsewhere, "other admin"))[0] == 404
        assert (await call("GET", "/toque/v1/whoami", "read"))[0] == 200
        for _ in range(2):
            assert (await call("DELETE", where, "admin"))[0] == 200
        assert (await call("GET", "/toque/v1/whoami", "read"))[0] == 401
