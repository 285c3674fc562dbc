"""How calls are sent: repeats, the time of a whole call, and what a server asks to wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toque.api import transport_http
from toque.api.client import Client
from toque.api.client_http import connect
from toque.api.transport_http import _retry_after_s
from toque.runtime import limits
from toque.runtime.errors import OutcomeUnknown, ServerUnreachable, ToqueError

DONE = b'{"result":{"id":"one","status":"queued"}}'
BUSY = b'{"errors":[{"code":10500,"message":"full","toque":{"code":"overloaded"}}]}'


class Told:
    """Answers each request with the next of `answers`; None: not at all."""

    def __init__(self, *answers: tuple[int, str, bytes] | None) -> None:
        self.answers = list(answers)
        self.keys: list[str] = []
        self.urls: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            lines = head.decode().lower().splitlines()
            known = dict(line.split(": ", 1) for line in lines[1:] if line)
            await reader.readexactly(int(known.get("content-length", 0)))
            self.urls.append(lines[0].split()[1])
            self.keys.append(known.get("idempotency-key", ""))
            answer = self.answers.pop(0)
            if answer is None:
                continue
            await self.answer()
            status, headers, body = answer
            writer.write(
                f"HTTP/1.1 {status} x\r\n{headers}content-length: {len(body)}\r\n\r\n".encode()
                + body
            )

    async def answer(self) -> None:
        """Before each answer."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        handlers: list[asyncio.Task[None] | None] = []

        async def quiet(reader: Any, writer: Any) -> None:
            handlers.append(asyncio.current_task())
            try:
                await self.serve(reader, writer)
            except asyncio.IncompleteReadError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(quiet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with connect(f"http://127.0.0.1:{port}", "t") as client:
                yield client
            await asyncio.gather(*(task for task in handlers if task is not None))


async def test_a_repeat_has_the_same_request_id() -> None:
    told = Told((503, "retry-after: 0\r\n", BUSY), (200, "", DONE))
    async with told.client() as client:
        assert client.retries == 0
        patient = client.with_options(retry_for=5)
        assert (await patient.create_instance("orders", "one")).id == "one"
        assert (client.retries, patient.retries) == (1, 1)
    assert len(told.keys) == 2
    assert told.keys[0] == told.keys[1] != ""


async def test_the_time_of_a_whole_call_is_bounded_and_a_change_is_then_unknown() -> None:
    told = Told(None)
    async with told.client() as client:
        with pytest.raises(OutcomeUnknown, match="TimeoutError"):
            await client.with_options(timeout=0.05).create_instance("orders", "one")
    assert len(told.keys) == 1


async def test_a_server_that_asks_to_wait_longer_than_there_is_time_is_not_asked_again() -> None:
    told = Told((429, "retry-after: 3600\r\n", BUSY))
    async with told.client() as client:
        with pytest.raises(ToqueError, match="full"):
            await client.with_options(timeout=30).create_instance("orders", "one")
    assert len(told.keys) == 1


async def test_more_calls_than_connections_wait_for_one_as_long_as_a_call_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for as long as a connection may take to come about."""
    monkeypatch.setattr(limits, "CLIENT_CONNECTIONS_MAX", 1)
    monkeypatch.setattr(transport_http, "_CONNECT_S", 0.02)

    class Slow(Told):
        async def answer(self) -> None:
            never = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):  # five times what a connection may take
                await asyncio.wait_for(never, 0.1)

    told = Slow((200, "", DONE), (200, "", DONE))
    async with told.client() as client:
        once = client.with_options(retry_for=0)
        calls = [once.create_instance("orders", "one") for _ in range(2)]
        assert [made.id for made in await asyncio.gather(*calls)] == ["one", "one"]


async def test_without_repeats_the_first_answer_counts() -> None:
    told = Told((503, "", BUSY))
    async with told.client() as client:
        with pytest.raises(ToqueError, match="full"):
            await client.with_options(retry_for=0).create_instance("orders", "one")


async def test_a_bounded_call_asks_for_no_longer_wait_than_it_has() -> None:
    told = Told()
    async with told.client() as client:
        assert client.with_options(timeout=4).backend.wait_max_ms == 2_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 0),
        ("3", 3),
        ("-3", 0),
        ("soon", 0),
        ("Sat, 31 Jan 2026 12:00:07 GMT", 7),
        ("Sat, 31 Jan 2026 11:00:00 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_time_beside_the_servers(
    text: str | None, seconds: float
) -> None:
    assert _retry_after_s(text, "Sat, 31 Jan 2026 12:00:00 GMT") == seconds
    assert _retry_after_s("Sat, 31 Jan 2026 12:00:07 GMT", None) == 0


@pytest.mark.parametrize(
    "body", [b"<!doctype html>", b"", b"\xff", b'{"result":{"other":1}}', b'{"errors":[]}']
)
async def test_what_answers_with_success_and_is_no_toque_server_is_told(body: bytes) -> None:
    """A wrong port, or the page of a proxy: nothing to repeat, and no error of a parser."""
    told = Told((200, "", body), (200, "", body))
    async with told.client() as client:
        with pytest.raises(ServerUnreachable, match=r"is no toque server.*check the url"):
            await client.whoami()
        with pytest.raises(OutcomeUnknown, match=r"is no toque server.*check the url"):
            await client.create_instance("orders", "one")
    assert len(told.keys) == 2


def _listed(count: int, item: str) -> tuple[int, str, bytes]:
    return 200, "", f'{{"result":[{",".join([item] * count)}]}}'.encode()


async def test_lists_that_come_in_pages_are_read_to_their_end() -> None:
    most = limits.PER_PAGE_MAX
    script = '{"script":"s","code_hash":"h","modified_on":"","workflows":[]}'
    version = '{"id":"v","class_name":"c","created_on":"","modified_on":"","workflow_id":"w"}'
    told = Told(*(_listed(count, one) for one in (script, version) for count in (most, 3)))
    async with told.client() as client:
        assert len(await client.scripts.list()) == most + 3
        assert len(await client.versions("orders")) == most + 3
    assert [url.partition("?")[2] for url in told.urls] == [
        f"page={page}&per_page={most}" for _ in range(2) for page in (1, 2)
    ]
