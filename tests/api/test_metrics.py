"""Metrics move with real work, are for operators only, and keep their number of series bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from toque import workflow
from toque.api.app_http import ControlPlaneApp, make_app
from toque.api.auth import ADMIN, OPERATOR, READ, Principal, TokenBook
from toque.api.metrics import OTHERS, accounts_of, workflows_of
from toque.api.metrics_http import MetricsApp
from toque.api.server_http import HttpServer
from toque.api.wiring import Runtime, embedded
from toque.runtime import limits
from toque.runtime.clock import SystemClock
from toque.runtime.histogram import BUCKETS, Histogram, merged

TOKENS = {
    "operator": Principal(OPERATOR, READ),
    "tenant": Principal("default", ADMIN),
}
Samples = dict[tuple[str, str], float]


@workflow
async def sums(event: Any, step: Any) -> int:
    return int(await step.do("add", lambda: 1))


@workflow
async def sleeps(event: Any, step: Any) -> None:
    await step.wait_for_event("never", "never", timeout="1 day")


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Runtime, ControlPlaneApp, str]]:
    async with embedded(folder / "data", [sums, sleeps], running_max=7) as runtime:
        app = make_app(
            runtime.control_plane,
            tokens=TokenBook(TOKENS),
            version="test",
            process=runtime.process,
            frames=runtime.router.calls_per_frame,
        )
        async with HttpServer(app, SystemClock()) as server:
            yield runtime, app, server.url


async def scraped(url: str, token: str | None = "operator") -> Samples:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    return samples_of(text)


def samples_of(text: str) -> Samples:
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_they_move_with_real_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_KEPT_MS", 0)

    async def main() -> None:
        async with serving(tmp_path) as (runtime, _, url):
            before = await scraped(f"{url}/metrics")
            client = runtime.client()
            for _ in range(3):
                assert (await client.run_instance("sums")).success
            await client.create_instance("sleeps", "s1")
            while (await client.instance("sleeps", "s1").status()).status != "waiting":
                await asyncio.sleep(0)
            path = f"{url}/client/v4/accounts/default/workflows/sums"
            await get(path, 200)
            await get(f"{path}/instances/none", 404)
            after = await until_grown(url, before, MOVED)
            assert after["toque_start_seconds_count", "d0"] >= 4
            told = await until(url, ("toque_instances", "default,waiting,sleeps"), 1)
            assert told["toque_instances_ended_total", "default,complete,sums"] == 3
            assert told["toque_slots_limit", "default"] == 7
            assert told["toque_slots_leased", "default"] >= told["toque_slots_used", "default"]
            assert told["toque_leases", "default"] >= 1
            assert told["toque_souschefs", "c0"] >= 1
            assert told["toque_shard_up", "d0"] == told["toque_shard_epoch", "d0"] == 1
            assert told["toque_process_resident_bytes", "api"] > 1_000_000
            assert ("toque_process_resident_bytes", "d0") not in told  # the same process

    asyncio.run(main())


ROUTE = "/client/v4/accounts/{account}/workflows/{}"
MOVED = {
    ("toque_commit_rows_count", "d0"),
    ("toque_commit_rows_sum", "c0"),
    ("toque_commit_seconds_sum", "d0"),
    ("toque_entity_calls_total", "d0"),
    ("toque_frame_calls_sum", "api"),
    ("toque_frame_calls_sum", "c0"),
    ("toque_grants_total", "c0"),
    ("toque_lease_calls_total", "c0"),
    ("toque_live_entities", "d0"),
    ("toque_loop_lag_seconds_count", "api"),
    ("toque_process_cpu_seconds_total", "api"),
    ("toque_store_bytes_total", "d0"),
    ("toque_start_seconds_count", "d0"),
    ("toque_http_requests_total", f"GET,{ROUTE},200"),
    ("toque_http_requests_total", f"GET,{ROUTE}/instances/{{}},404"),
    ("toque_http_request_seconds_count", f"GET,{ROUTE}"),
}


async def get(url: str, status: int, token: str = "operator") -> str:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        assert answer.status == status
        return await answer.text()


async def until_grown(url: str, before: Samples, keys: set[tuple[str, str]]) -> Samples:
    """Scrape until all these have grown: some are taken at a beat (the loop's lag)."""
    left = keys
    try:
        async with asyncio.timeout(30):
            while left:
                after = await scraped(f"{url}/metrics")
                left = {key for key in keys if after.get(key, 0.0) <= before.get(key, 0.0)}
    except TimeoutError:
        raise AssertionError(f"did not move: {sorted(left)}") from None
    return after


async def until(url: str, key: tuple[str, str], value: float) -> Samples:
    """Scrape until a metric has a value: SousChefs hear of things a little later."""
    async with asyncio.timeout(30):
        while True:
            told = await scraped(f"{url}/metrics")
            if told.get(key) == value:
                return told


def test_only_operators_see_them_and_anybody_on_an_address_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (_, app, url):
            await get(f"{url}/metrics", 403, "tenant")
            await get(f"{url}/metrics", 401, "nobody")
            async with HttpServer(MetricsApp(app.metrics), SystemClock()) as server:
                assert ("toque_shard_up", "c0") in await scraped(f"{server.url}/metrics", None)
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"{server.url}/toque/v1/whoami") as answer,
                ):
                    assert answer.status == 404

    asyncio.run(main())


def test_a_shard_that_does_not_answer_is_shown_as_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(tmp_path) as (runtime, _, url):

            async def figures() -> dict[str, Any]:
                return {}

            monkeypatch.setattr(runtime.control_plane, "figures", figures)
            told = await scraped(f"{url}/metrics")
            assert told["toque_shard_up", "d0"] == told["toque_shard_up", "c0"] == 0
            assert ("toque_shard_epoch", "d0") not in told

    asyncio.run(main())


# --- pure ---


def lane(souschef: str, **more: Any) -> dict[str, Any]:
    zero = {
        "queued": 0,
        "running": 0,
        "waiting": 0,
        "paused": 0,
        "queue_age_ms": 0,
        "ended": {},
        "target": 0,
    }
    return {"souschef": souschef, **zero, **more}


def test_series_are_bounded_and_nothing_is_left_out() -> None:
    names = [("a", f"u{n}", f"w{n}", n) for n in range(10)]
    lanes = [
        lane(f"a/u{n}/{k}", queued=n, ended={"complete": 1}) for n in range(10) for k in (0, 1)
    ]
    found = workflows_of({"c0": {"souschefs": lanes[:7]}, "c1": {"names": names}}, 3)
    assert [each.labels for each in found] == [("a", "w0"), ("a", "w1"), ("a", "w2"), (OTHERS,) * 2]
    found = workflows_of({"c0": {"souschefs": lanes}, "c1": {"names": names}}, 3)
    assert [dict(each.live())["queued"] for each in found] == [0, 2, 4, 2 * sum(range(3, 10))]
    assert [each.ended["complete"] for each in found] == [2, 2, 2, 14]
    rows = [(f"a{n}", 10, 1, 5, 6, 0) for n in range(5)]
    running = lane("a1/u/0", running=4)
    accounts = accounts_of({"c0": {"accounts": rows}, "c1": {"souschefs": [running]}}, 2)
    assert list(accounts) == ["a0", "a1", OTHERS]
    assert accounts["a1"]["used"] == 4
    assert accounts[OTHERS] == {"limit": 30, "leased": 15, "used": 0, "wanted": 18, "leases": 3}


def test_a_deleted_workflow_is_shown_by_its_uuid() -> None:
    (found,) = workflows_of({"c0": {"souschefs": [lane("a/u1/0", waiting=2)]}}, 3)
    assert found.labels == ("a", "u1")


def test_a_histogram_counts_by_powers_of_two() -> None:
    histogram = Histogram()
    for value in (-5, 0, 1, 2, 3, 4, 1 << 80):
        histogram.add(value)
    assert histogram.buckets[:4] == [2, 1, 2, 1]
    assert histogram.buckets[-1] == 1
    assert (histogram.count, histogram.total) == (7, 10 + (1 << 80))
    assert merged([histogram.figures(), histogram.figures()])[:5] == [
        2 * histogram.total,
        4,
        2,
        4,
        2,
    ]
    assert len(histogram.figures()) == BUCKETS + 1


def test_every_metric_is_in_the_documents() -> None:
    root = Path(__file__).parents[2]
    source = (root / "api/metrics_http.py").read_text()
    told = (root / "docs/deployment.md").read_text()
    names = set(re.findall(r'"(toque_\w+)"', source)) | {"toque_slots_limit", "toque_slots_leased"}
    assert not [name for name in sorted(names) if name not in told]
