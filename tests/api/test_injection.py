"""SQL in every field that a caller fills: refused, or taken as the text that it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from tests.conformance.served import ACCOUNT, TOKEN, Served, live_server

PAYLOADS = (
    "' OR '1'='1",
    "'; DROP TABLE instances; --",
    '" OR ""="',
    "x' UNION SELECT entity, entity FROM instances --",
    "%' OR 1=1 --",
    "1; DELETE FROM shard",
    "\\'; UPDATE instances SET status = 'complete' --",
)
QUERIES = ("prefix", "status", "date_start", "date_end", "cursor", "page", "per_page", "direction")
BASE = f"/client/v4/accounts/{ACCOUNT}/workflows"
AUTH = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with live_server(tmp_path_factory.mktemp("served") / "data") as found:
        yield found


@pytest.mark.parametrize("payload", PAYLOADS)
async def test_sql_in_any_field_is_refused_or_taken_as_text(served: Served, payload: str) -> None:
    async with aiohttp.ClientSession(served.url, headers=AUTH) as session:

        async def ask(method: str, path: str, **more: Any) -> tuple[int, Any]:
            async with session.request(method, path, **more) as answer:
                return answer.status, (await answer.json())["result"]

        _, workflows = await ask("GET", BASE)
        name = next(one["name"] for one in workflows if one["name"].lower() == "ask")
        mine = f"{BASE}/{name}/instances"
        before = len((await ask("GET", mine))[1])
        own = f"mine{PAYLOADS.index(payload)}"
        assert (await ask("POST", mine, json={"instance_id": own}))[0] == 200
        seen = []
        for field in QUERIES:
            seen.append(await ask("GET", mine, params={field: payload}))
        word = quote(payload, safe="")
        for method, path in (
            ("GET", f"{BASE}/{word}"),
            ("GET", f"{BASE}/{word}/instances"),
            ("GET", f"{mine}/{word}"),
            ("DELETE", f"{mine}/{word}"),
            ("PATCH", f"{mine}/{word}/status"),
            ("POST", f"{mine}/{own}/events/{word}"),
        ):
            body = {"status": "pause"} if method == "PATCH" else None
            seen.append(await ask(method, path, json=body))
        seen.append(await ask("POST", mine, json={"instance_id": payload}))
        assert len(seen) == len(QUERIES) + 7
        assert {status for status, _ in seen} <= {400, 404}, seen
        # what may be any text is kept as it is
        made = await ask("POST", mine, json={"params": {"text": payload}})
        again = {"Idempotency-Key": payload}
        keyed = [await ask("POST", mine, json={}, headers=again) for _ in range(2)]
        assert made[0] == 200
        assert keyed[0] == keyed[1]
        _, listed = await ask("GET", mine)
        assert len(listed) == before + 2 + (keyed[0][0] == 200)
        assert own in {one["id"] for one in listed}
