"""A noisy neighbour: one workflow with a long queue beside nine that get a few creates a second.

A server on Ray with `--limit` slots. `Loud` gets `--queued` instances of 50 ms each; when they are
queued, `Quiet0` to `Quiet8` get `--rate` creates a second each, in an open loop, for `--seconds`.
Told: how long the nine's instances waited for a slot, whether each of the nine had all that it
asked for, and how far the slots that each had were from max-min shares (a sample a second, by the
metrics). Also how much of the other slots' time `Loud` spent in its steps: the rest goes by between
an end and the next begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import aiohttp
import typer

from toque.loadtest.histograms import percentile
from toque.loadtest.metrics_http import read_page
from toque.loadtest.shares import Use, sample_error, share_error

from . import sections
from .figures import table
from .queue_app import QUIET
from .queues import APP, BATCH
from .server import Server

BODY_S = 0.05
_FIRST_S = 5.0
"""Meanwhile slots go from the one to the nine, which takes three cycles."""


class Asked(NamedTuple):
    """What is to be played; see `command`."""

    queued: int
    limit: int
    rate: float
    seconds: float


class Api:
    """Calls of the server's REST API."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._base = f"{url}/client/v4/accounts/default/workflows"

    async def create(self, workflow: str) -> str:
        """One instance; its id."""
        async with self._session.post(f"{self._base}/{workflow}/instances", json={}) as answer:
            answer.raise_for_status()
            return (await answer.json())["result"]["id"]

    async def batch(self, workflow: str, count: int) -> None:
        """Some instances at once."""
        path = f"{self._base}/{workflow}/instances/batch"
        async with self._session.post(path, json=[{}] * count) as answer:
            answer.raise_for_status()
            await answer.read()

    async def uses(self) -> dict[str, Use]:
        """What each workflow has and wants now, as the SousChefs count it."""
        async with self._session.get(f"{self._url}/metrics") as answer:
            answer.raise_for_status()
            page = await answer.read()
        found: dict[str, Use] = {}
        for name, labels, value in read_page(page):
            if name == "toque_instances" and labels["status"] in Use._fields:
                use = found.get(labels["workflow"], Use(0, 0))
                found[labels["workflow"]] = use._replace(**{labels["status"]: int(value)})
        return found

    async def all_of(self, workflow: str, **query: str) -> list[dict[str, Any]]:
        """All lines of a list."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            more = {"cursor": cursor} if cursor else {}
            path = f"{self._base}/{workflow}/instances"
            params = {"per_page": "100", **query, **more}
            async with self._session.get(path, params=params) as answer:
                answer.raise_for_status()
                page = await answer.json()
            found += page["result"]
            cursor = page["result_info"].get("cursor") or ""
            if not cursor:
                return found


def time_of(text: str) -> float:
    """A time of the API."""
    return datetime.fromisoformat(text).timestamp()


def _waits_ms(lines: list[list[dict[str, Any]]], since_s: float) -> list[float]:
    """How long those that were created since then waited for their slots."""
    began = [line for each in lines for line in each if line["started_on"]]
    return [
        (time_of(line["started_on"]) - time_of(line["created_on"])) * 1000
        for line in began
        if time_of(line["created_on"]) >= since_s
    ]


async def watch(api: Api, slots: int, over: asyncio.Event) -> list[float | None]:
    """The errors of the shares, a sample a second."""
    errors = []
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 1)
        errors.append(sample_error(slots, await api.uses()))
    return errors


async def offer(api: Api, workflow: str, rate: float, for_s: float, first_s: float) -> int:
    """Creates in an open loop; gives how many."""
    tasks = []
    start = time.perf_counter() + first_s
    for number in range(int(rate * for_s)):
        await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
        tasks.append(asyncio.ensure_future(api.create(workflow)))
    await asyncio.gather(*tasks)
    return len(tasks)


async def measure(server: Server, asked: Asked) -> dict[str, Any]:
    """Everything."""
    headers = {"Authorization": f"Bearer {server.access['token']}"}
    names = [f"Quiet{number}" for number in range(QUIET)]
    async with aiohttp.ClientSession(headers=headers) as session:
        api = Api(session, server.access["url"])
        for _ in range(asked.queued // BATCH // 4):
            await asyncio.gather(*(api.batch("Loud", BATCH) for _ in range(4)))
        begun, over = time.time(), asyncio.Event()
        watching = asyncio.create_task(watch(api, asked.limit, over))
        offers = [
            offer(api, name, asked.rate, asked.seconds, n / asked.rate / QUIET)
            for n, name in enumerate(names)
        ]
        offered = await asyncio.gather(*offers)
        ended = time.time()
        over.set()
        errors = await watching
        await asyncio.sleep(5)
        lines = [await api.all_of(name) for name in names]
        loud = await api.all_of("Loud", status="complete")
    waits = _waits_ms(lines, 0.0)
    done = [sum(line["status"] == "complete" for line in each) for each in lines]
    inside = [begun + _FIRST_S <= time_of(line["ended_on"]) <= ended for line in loud]
    loud_per_s = sum(inside) / (ended - begun - _FIRST_S)
    left = asked.limit - QUIET * asked.rate * BODY_S
    return {
        "limit": asked.limit,
        "queued": asked.queued,
        "quiet_offered": sum(offered),
        "quiet_wait_p50_ms": round(percentile(waits, 0.5), 1),
        "quiet_wait_p99_ms": round(percentile(waits, 0.99), 1),
        "quiet_wait_max_ms": round(max(waits), 1),
        "quiet_wait_later_p99_ms": round(percentile(_waits_ms(lines, begun + _FIRST_S), 0.99), 1),
        "share_missing": max(abs(d - o) / o for d, o in zip(done, offered, strict=True)),
        "share_error": share_error(errors[int(_FIRST_S) :]),
        "loud_per_s": round(loud_per_s),
        "loud_share_used": round(loud_per_s * BODY_S / left, 3),
    }


def report(found: dict[str, Any], asked: Asked) -> str:
    """The section of docs/performance.md."""
    rows = [
        ["the nine: create to running, median", f"{found['quiet_wait_p50_ms']} ms"],
        ["the same, 99th percentile", f"{found['quiet_wait_p99_ms']} ms"],
        ["of those after the first 5 s", f"{found['quiet_wait_later_p99_ms']} ms"],
        [
            "the nine: the largest share of instances that did not end",
            f"{found['share_missing']:.1%}",
        ],
        ["slots that somebody else had than by max-min", f"{found['share_error']:.1%}"],
        [
            "time of the other slots that the first spent in steps",
            f"{found['loud_share_used']:.0%}",
        ],
    ]
    busy = asked.rate * BODY_S
    idle = QUIET * (ceil(busy) - busy)
    return "\n".join(
        [
            "## A noisy neighbour",
            "",
            f"`python -m bench noisy`: a workflow with {asked.queued:,} queued beside nine that "
            f"get {asked.rate:g} creates a second each; {asked.limit} slots, 50 ms each.",
            "",
            table(["figure", "value"], rows),
            "",
            "What bounds the shares: a lease is of whole slots, for a cycle at least, and one call "
            f"a second says who has them. Each of the nine keeps {busy:g} slots busy, and needs "
            f"{ceil(busy)} to begin at once. So {QUIET} x {ceil(busy) - busy:g} = {idle:g} of "
            f"{asked.limit} slots idle between two instances, {idle / asked.limit:.1%}, where the "
            "measure gives the first all that nobody uses at that instant. It is less where a slot "
            "is held for longer than the step takes, and more where that passes a whole slot: then "
            "two are kept. To keep fewer, some of the nine would have to wait for a call, a "
            "second, before they begin.",
        ]
    )


def command(
    queued: Annotated[int, typer.Option(min=1, help="Instances of the noisy one.")] = 100_000,
    limit: Annotated[int, typer.Option(min=1, help="Slots.")] = 40,
    rate: Annotated[float, typer.Option(min=0.1, help="Creates a second of each.")] = 10,
    seconds: Annotated[float, typer.Option(min=1, help="For how long.")] = 60,
    report_to_docs: Annotated[bool, typer.Option("--report/--no-report")] = True,
) -> None:
    """One workflow with a long queue beside nine that get a few creates a second."""
    asked = Asked(queued, limit, rate, seconds)
    with (
        tempfile.TemporaryDirectory(prefix="toque-bench-") as folder,
        Server(Path(folder), "--limit", str(limit), app=APP) as server,
    ):
        found = asyncio.run(measure(server, asked))
    print(json.dumps(found))
    if report_to_docs:
        error = max(found["share_missing"], found["share_error"] or 0.0)
        figures = {
            "wait_p99_ms": found["quiet_wait_p99_ms"],
            "share_error_pct": error * 100,
            "queued": queued,
        }
        sections.put("noisy", report(found, asked), figures=figures)
