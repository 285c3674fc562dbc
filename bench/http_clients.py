"""What a call of the client costs in CPU, by HTTP library, and reading its answer, by model.

A process of its own answers every request with one fixed status of an instance, so what is measured
is the library. Those that are not installed are left out: `pip install httpx niquests`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Annotated, Any

import aiohttp
import msgspec
import typer
from pydantic import BaseModel

from toque.api.client_values import InstanceStatus

from . import sections

ANSWER = (
    b'{"success":true,"errors":[],"messages":[],"result":{"id":"order-42","status":"complete",'
    b'"success":true,"output":{"paid":true,"amount":12.5},"params":{"order":42},"run_id":"r1",'
    b'"versionId":"v1","start":"2026-01-31T12:00:00.000Z","end":"2026-01-31T12:00:01.000Z",'
    b'"created_on":"2026-01-31T12:00:00.000Z","step_count":1,"steps":[]}}'
)
BODY = b'{"instance_id":"order-42","params":{"order":42}}'
HEADERS = {"Authorization": "Bearer t", "Content-Type": "application/json"}
AT_ONCE = 32
Post = Callable[[], Awaitable[bytes]]


class Answering(asyncio.Protocol):
    """Answers each request with the same bytes; bodies are as long as `BODY`."""

    def connection_made(self, transport: Any) -> None:
        """A client."""
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            if len(self._data) < end + 4 + len(BODY):
                return
            self._data = self._data[end + 4 + len(BODY) :]
            head = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            )
            self._transport.write(head % len(ANSWER) + ANSWER)


def serve(pipe: Any) -> None:
    """The server's process."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def with_aiohttp(url: str, measure: Callable[[Post], Awaitable[None]]) -> None:
    """As the client does it."""
    connector = aiohttp.TCPConnector(limit=100)
    async with aiohttp.ClientSession(
        connector=connector,
        headers=HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
    ) as session:

        async def post() -> bytes:
            async with session.post(url, data=BODY) as answer:
                return await answer.read()

        await measure(post)


async def with_httpx(url: str, measure: Callable[[Post], Awaitable[None]]) -> None:
    """httpx, its connections pooled."""
    httpx = import_module("httpx")
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    async with httpx.AsyncClient(headers=HEADERS, limits=limits) as client:

        async def post() -> bytes:
            answer: bytes = (await client.post(url, content=BODY)).content
            return answer

        await measure(post)


async def with_niquests(url: str, measure: Callable[[Post], Awaitable[None]]) -> None:
    """niquests, its connections pooled."""
    niquests = import_module("niquests")
    async with niquests.AsyncSession(pool_connections=1, pool_maxsize=100) as session:
        session.headers.update(HEADERS)

        async def post() -> bytes:
            return bytes((await session.post(url, data=BODY)).content)

        await measure(post)


def measured(
    calls: int, into: list[tuple[float, float, float]]
) -> Callable[[Post], Awaitable[Any]]:
    """Notes CPU per call and calls a second with many at once, and the time of one alone (ms)."""

    async def measure(post: Post) -> None:
        async def worker(count: int) -> None:
            for _ in range(count):
                assert await post() == ANSWER

        await worker(100)
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*(worker(calls // AT_ONCE) for _ in range(AT_ONCE)))
        done = calls // AT_ONCE * AT_ONCE
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        alone = time.perf_counter()
        await worker(200)
        alone = (time.perf_counter() - alone) / 200
        into.append((cpu / done * 1e6, done / wall, alone * 1e3))

    return measure


class Envelope(msgspec.Struct):
    """The answer, as the client reads it."""

    result: InstanceStatus


class Status(BaseModel):
    """The same fields for pydantic."""

    id: str
    status: str
    success: bool | None = None
    output: Any = None
    params: Any = None
    run_id: str = ""
    versionId: str = ""
    start: str | None = None
    end: str | None = None
    created_on: str = ""
    step_count: int = 0
    steps: list[dict[str, Any]] = []


class Answer(BaseModel):
    """The answer for pydantic."""

    result: Status


def reading(read: Callable[[bytes], Any], times: int = 20_000) -> float:
    """Microseconds to read an answer."""
    cpu = time.process_time()
    for _ in range(times):
        read(ANSWER)
    return (time.process_time() - cpu) / times * 1e6


def report(calls: int, port: int) -> str:
    """The section."""
    rows = []
    url = f"http://127.0.0.1:{port}/client/v4/accounts/default/workflows/orders/instances"
    for name, run in (
        ("aiohttp", with_aiohttp), ("httpx", with_httpx), ("niquests", with_niquests)
    ):  # fmt: skip
        try:
            version = import_module(name).__version__
        except ImportError:
            continue
        found: list[tuple[float, float, float]] = []
        for _ in range(3):
            asyncio.run(run(url, measured(calls, found)))
        cpu, rate, alone = (sorted(each)[1] for each in zip(*found, strict=True))
        rows.append(f"| {name} {version} | {cpu:.0f} | {rate:.0f} | {alone:.2f} |")
    plain = reading(msgspec.json.Decoder(Envelope).decode)
    modelled = reading(Answer.model_validate_json)
    return "\n".join(
        [
            "## HTTP libraries for the client",
            "",
            f"`python -m bench http-clients`: {calls} POSTs, {AT_ONCE} at once, then one at a "
            "time, to a server that does nothing; medians of 3.",
            "",
            "| library | CPU per call, us | calls/s | alone, ms |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            f"Reading such an answer: {plain:.1f} us by msgspec, {modelled:.1f} us by pydantic.",
        ]
    )


def command(
    calls: Annotated[int, typer.Option(min=AT_ONCE)] = 1_600,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """What a call costs the client, by HTTP library."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    try:
        text = report(calls, here.recv())
    finally:
        server.terminate()
        server.join()
    print(text)
    if page:
        sections.put("http-clients", text)
