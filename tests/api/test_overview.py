"""An account's overview: right, nothing of any other account, and it says when it lacks figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp

import toque
from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.metrics import figures_of
from toque.api.overview import overview_of
from toque.api.server_http import HttpServer
from toque.api.wiring import embedded
from toque.runtime.clock import SystemClock

CHEF = {
    "queued": 2, "running": 3, "waiting": 4, "paused": 1, "ended": {"complete": 7},
    "queue_age_ms": 900, "target": 5,
}  # fmt: skip
FIGURES = {
    "c0": {
        "names": [("mine", "u1", "orders", 1), ("other", "u2", "secret", 2)],
        "accounts": [("mine", 50, 2, 9, 12, 3), ("other", 60, 1, 8, 1, 1)],
        "souschefs": [
            {"souschef": "mine/u1/0", **CHEF},
            {"souschef": "other/u2/0", **CHEF},
            {"souschef": "mine/gone/0", **CHEF},
        ],
        "truncated": False,
    },
    "c1": {
        "names": [],
        "accounts": [],
        "souschefs": [{"souschef": "mine/u1/1", **CHEF, "queue_age_ms": 1_500}],
    },
    "d0": {"counters": {}},
}


def overview(figures: Any, shards: Any = ("c0", "c1", "d0")) -> Any:
    return overview_of("mine", "v2", 50, figures, shards, "now")


def test_figures_of_all_queues_of_a_workflow_are_put_together() -> None:
    found = overview(FIGURES)
    assert (found.running_max, found.leased, found.wanted, found.used) == (50, 9, 12, 9)
    orders, gone = found.workflows
    assert (orders.name, orders.queued, orders.running, orders.lease) == ("orders", 4, 6, 10)
    assert (orders.queue_age_ms, orders.souschefs, orders.ended) == (1_500, 2, {"complete": 14})
    assert (gone.name, gone.souschefs) == ("gone", 1)
    assert found.complete


def test_nothing_of_another_account_is_in_it() -> None:
    text = str(figures_of(FIGURES, "mine")) + str(overview(FIGURES))
    assert "other" not in text
    assert "secret" not in text
    assert "u2" not in text
    nobody = overview_of("mi", None, 5, FIGURES, FIGURES, "now")
    assert (nobody.workflows, nobody.leased, nobody.used) == ([], 0, 0)


def test_it_says_when_figures_are_too_low() -> None:
    assert not overview({name: FIGURES[name] for name in ("c0", "d0")}).complete
    cut = {**FIGURES, "c0": {**FIGURES["c0"], "truncated": True}}
    assert not overview(cut).complete


@toque.workflow
async def asks(event: Any, step: Any) -> None:
    await step.wait_for_event("ask", "answer", timeout="1 day")


async def test_a_server_tells_of_real_work_to_whom_it_is_for(tmp_path: Path) -> None:
    async with embedded(tmp_path / "data", [asks], running_max=7) as runtime:
        client = runtime.client()
        await runtime.control_plane.accounts.create_account("other", None)
        await client.create_instance("asks", "a/1")
        tokens = TokenBook({"mine": "default", "other": "other", "operator": "*"})
        app = make_app(runtime.control_plane, tokens=tokens, version="test")
        async with HttpServer(app, SystemClock()) as server, aiohttp.ClientSession() as session:

            async def ask(account: str, token: str) -> tuple[int, Any]:
                url = f"{server.url}/toque/v1/accounts/{account}/overview"
                headers = {"Authorization": f"Bearer {token}"}
                async with session.get(url, headers=headers) as answer:
                    return answer.status, (await answer.json())["result"]

            told: Any = {"workflows": [{"waiting": 0}]}
            while told["workflows"][0]["waiting"] == 0:
                _, told = await ask("default", "mine")
            assert (told["running_max"], told["used"], told["complete"]) == (7, 0, True)
            assert told["workflows"][0]["name"] == "asks"
            assert (await ask("default", "operator"))[1]["workflows"][0]["waiting"] == 1
            status, others = await ask("other", "other")
            assert (status, others["workflows"]) == (200, [])
            assert (await ask("default", "other"))[0] == 403
            assert (await ask("nobody", "operator"))[0] == 404
