"""The client's connections: what they take from a server, whose turn it is, what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.naming import shown
from toque.api.pool_http import Answer, Broken, NotSent, Pool
from toque.runtime import limits

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Speaker(asyncio.Protocol):
    """One connection of a server that says what a test wants."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.heard = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.server.on_data(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.lost += 1


class Server:
    """Answers each head that came in by `say`."""

    def __init__(self, say: bytes | Callable[[Speaker], None]) -> None:
        self.connections: list[Speaker] = []
        self.lost = 0
        self.requests: list[bytes] = []
        self._say = say

    def on_data(self, speaker: Speaker) -> None:
        while (end := speaker.heard.find(b"\r\n\r\n")) >= 0:
            self.requests.append(speaker.heard[:end])
            speaker.heard = speaker.heard[end + 4 :]
            if isinstance(self._say, bytes):
                speaker.transport.write(self._say)
            else:
                self._say(speaker)


@asynccontextmanager
async def pool_to(
    say: bytes | Callable[[Speaker], None], connections_max: int = 100
) -> AsyncIterator[tuple[Pool, Server]]:
    """A pool and the server that it speaks to."""
    loop = asyncio.get_running_loop()
    server = Server(say)
    listener = await loop.create_server(lambda: Speaker(server), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    pool = Pool(f"http://127.0.0.1:{port}", {"Authorization": "Bearer t"}, connections_max)
    try:
        yield pool, server
    finally:
        await pool.close()
        listener.close()
        while server.lost < len(server.connections):
            await asyncio.sleep(0)
        await listener.wait_closed()


async def get(pool: Pool, target: str = "/x", timeout_s: float = 30) -> Answer:
    return await pool.ask("GET", target, "", None, timeout_s)


def in_pieces(*pieces: bytes) -> Callable[[Speaker], None]:
    """Say pieces in turns of the loop, so that they arrive apart."""

    def say(speaker: Speaker) -> None:
        async def go() -> None:
            for piece in pieces:
                speaker.transport.write(piece)
                for _ in range(5):
                    await asyncio.sleep(0)

        speaker.task = asyncio.ensure_future(go())  # type: ignore[attr-defined]

    return say


def and_hang_up(said: bytes) -> Callable[[Speaker], None]:
    def say(speaker: Speaker) -> None:
        speaker.transport.write(said)
        speaker.transport.close()

    return say


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "say",
    [
        OK,
        in_pieces(*(OK[at : at + 7] for at in range(0, len(OK), 7))),
        CHUNKED,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK,
        and_hang_up(b"HTTP/1.1 200 OK\r\n\r\nok"),
        and_hang_up(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
    ],
    ids=["whole", "pieces", "chunks", "continue", "hints", "to the end", "1.0", "close"],
)
async def test_an_answer_is_taken_in_each_form_that_http_has(
    say: bytes | Callable[[Speaker], None],
) -> None:
    async with pool_to(say) as (pool, _):
        for _ in range(2):
            answer = await get(pool)
            assert (answer.status, answer.body) == (200, b"ok")


async def test_a_connection_is_used_again_and_its_heads_are_as_asked() -> None:
    async with pool_to(OK) as (pool, server):
        await get(pool, "/a?b=1")
        await pool.ask("POST", "/c", "Idempotency-Key: k\r\n", b"", 30)
        assert len(server.connections) == 1
    first, second = (request.decode().split("\r\n") for request in server.requests)
    host = f"Host: 127.0.0.1:{server.connections[0].transport.get_extra_info('sockname')[1]}"
    assert first == ["GET /a?b=1 HTTP/1.1", host, "Authorization: Bearer t"]
    assert second[0] == "POST /c HTTP/1.1"
    assert second[3:] == ["Idempotency-Key: k", "Content-Length: 0"]


@pytest.mark.parametrize(
    "say",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        and_hang_up(b""),
        and_hang_up(OK[:-1]),
        and_hang_up(CHUNKED[:-9]),
        b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\nok",
    ],
    ids=shown,
)
async def test_what_is_no_whole_answer_is_broken(
    say: bytes | Callable[[Speaker], None],
) -> None:
    async with pool_to(say) as (pool, _):
        with pytest.raises(Broken):
            await get(pool)


@pytest.mark.parametrize("more", [OK, OK[:20], b"\x00"], ids=["answer", "part", "noise"])
async def test_what_nobody_asked_for_is_never_taken_for_the_next_answer(more: bytes) -> None:
    answers = [OK + more, OK.replace(b"ok", b"2.")]
    async with pool_to(lambda speaker: speaker.transport.write(answers.pop(0))) as (pool, server):
        try:
            assert (await get(pool)).body == b"ok"
        except Broken:  # noise, in the same piece
            assert more == b"\x00"
        assert (await get(pool)).body == b"2."
        assert len(server.connections) == 2


async def test_an_answer_that_does_not_come_is_given_up_with_its_connection() -> None:
    async with pool_to(lambda _: None, connections_max=1) as (pool, server):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await get(pool, timeout_s=0.02)
        assert len(server.connections) == 2


async def test_a_caller_that_goes_away_leaves_no_answer_to_the_next() -> None:
    async with pool_to(lambda _: None, connections_max=1) as (pool, server):
        leaving = asyncio.ensure_future(get(pool))
        while not server.requests:
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        server._say = OK
        assert (await get(pool)).body == b"ok"
        assert len(server.connections) == 2


async def test_when_all_connections_are_in_use_requests_have_them_in_turn() -> None:
    held: list[Speaker] = []
    async with pool_to(held.append, connections_max=2) as (pool, server):
        order: list[int] = []

        async def one(number: int) -> None:
            await get(pool, f"/{number}")
            order.append(number)

        waiting = [asyncio.ensure_future(one(number)) for number in range(5)]
        while len(held) < 2:
            await asyncio.sleep(0)
        waiting[3].cancel()  # while it waits for its turn
        while len(server.requests) < 4 or held:
            for speaker in [held.pop(0)] if held else []:
                speaker.transport.write(OK)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting, return_exceptions=True)
        assert (sorted(order), order[2:]) == ([0, 1, 2, 4], [2, 4])
        assert len(server.connections) == 2
        server._say = OK
        await asyncio.gather(*(get(pool) for _ in range(20)))  # none was lost
        assert len(server.connections) == 2


async def test_who_finds_all_in_use_for_too_long_has_sent_nothing() -> None:
    async with pool_to(lambda _: None, connections_max=1) as (pool, server):
        first = asyncio.ensure_future(get(pool))
        while not server.requests:
            await asyncio.sleep(0)
        with pytest.raises(NotSent, match="in use"):
            await get(pool, timeout_s=0.02)
        await pool.close()
        with pytest.raises(Broken, match="client was closed"):
            await first


async def test_a_free_connection_that_the_server_closed_is_not_used() -> None:
    async with pool_to(OK) as (pool, server):
        for number in range(1, 4):
            assert (await get(pool)).body == b"ok"
            assert len(server.connections) == number
            server.connections[-1].transport.close()
            while server.lost < number or pool._free:
                await asyncio.sleep(0)


async def test_a_free_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toque.api.pool_http._IDLE_S", 0.01)
    async with pool_to(OK) as (pool, server):
        await get(pool)
        while not server.lost:
            await asyncio.sleep(0.001)
        assert not pool._open
        assert (await get(pool)).body == b"ok"


async def test_no_server_is_told_as_not_sent() -> None:
    async with pool_to(OK) as (pool, _):
        port = pool._port
    gone = Pool(f"http://127.0.0.1:{port}", {}, 1)
    for _ in range(2):  # the slot is free again
        with pytest.raises(NotSent):
            await get(gone)


async def test_a_large_body_and_a_large_answer_go_through() -> None:
    size = 3 * limits.MIB
    body = bytes(size)

    def say(speaker: Speaker) -> None:
        speaker.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        speaker.transport.write(body)

    async with pool_to(say) as (pool, _):
        assert (await pool.ask("POST", "/", "", body, 30)).body == body


async def test_a_stream_is_read_part_by_part_and_waits_for_its_reader() -> None:
    size = 8 * limits.MIB

    def say(speaker: Speaker) -> None:
        speaker.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        speaker.transport.write(bytes(size))

    async with pool_to(say, connections_max=1) as (pool, server):
        async with pool.reading("/s", 30) as (answer, reader):
            assert answer.field(b"content-length") == str(size)
            read = len(await reader.read(1))
            for _ in range(200):
                await asyncio.sleep(0)
            assert server.connections[0].transport.get_write_buffer_size() > 0
            while part := await reader.read(limits.STREAM_PART_BYTES):
                read += len(part)
            assert read == size
        async with pool.reading("/s", 30) as (_, reader):
            await reader.read(1)  # and leave
        server._say = OK
        assert (await get(pool)).body == b"ok"
    async with pool_to(and_hang_up(OK[:-1])) as (pool, _), pool.reading("/s", 30) as (_, reader):
        with pytest.raises(Broken):
            await reader.readexactly(100)


def test_a_pool_is_of_use_on_the_next_loop() -> None:
    loops: list[Pool] = []

    async def main() -> None:
        async with pool_to(OK) as (pool, _):
            loops.append(pool)
            await get(pool)

    asyncio.run(main())

    async def again() -> None:
        with pytest.raises(NotSent):
            await get(loops[0])
        await loops[0].close()

    asyncio.run(again())
