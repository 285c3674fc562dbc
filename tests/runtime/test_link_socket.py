"""Socket links: handshake, frames of all sizes, bounds, reconnection, replaced sockets."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import uvloop

from toque.runtime import frames_socket, limits, link_socket
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import InvalidArgument, Overloaded, PayloadTooLarge, UnsafeRuntimeDir

T = TypeVar("T")
TOKEN = b"t" * 32
WAIT_S = 5.0

pytestmark = pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop]
)


class Echo:
    """A session that sends every frame back."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.receive = send
        self.ended = False

    def closed(self) -> None:
        self.ended = True


class Caller:
    """What a link reports, as queues to wait on."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.ups: asyncio.Queue[int] = asyncio.Queue()
        self.downs: asyncio.Queue[BaseException | None] = asyncio.Queue()

    def open(self, links: link_socket.SocketLinks, shard: str = "d0") -> link_socket.SocketLink:
        return links.open(shard, self.frames.put_nowait, self.ups.put_nowait, self.downs.put_nowait)


found_by = pytest.mark.parametrize(
    "place", ["unix:{}/d0.sock", "notice:{}/d0.tcp"], ids=["socket", "notice"]
)


async def soon(work: Awaitable[T]) -> T:
    return await asyncio.wait_for(work, WAIT_S)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tq") as path:  # pytest's own is too long
        yield Path(path)


@asynccontextmanager
async def server(
    address: str,
    *,
    epoch: int = 1,
    token: bytes = TOKEN,
    new_session: Callable[[Callable[[bytes], None]], link_socket.Session] = Echo,
) -> AsyncIterator[link_socket.LinkServer]:
    made = link_socket.LinkServer("d0", epoch, token, SystemEntropy(), new_session)
    if address.startswith("notice:"):
        await made.listen("tcp://127.0.0.1:0", address.removeprefix("notice:"))
    else:
        await made.listen(address)
    try:
        yield made
    finally:
        await made.close()


def links_to(address: str, token: bytes = TOKEN) -> link_socket.SocketLinks:
    loop = asyncio.get_running_loop()
    return link_socket.SocketLinks(lambda shard: address, token, loop, SystemEntropy())


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_frames_of_all_sizes_come_back_whole_and_in_order(
    folder: Path, kind: str, loop_factory: object
) -> None:
    address = f"unix:{folder}/d0.sock" if kind == "unix" else "tcp://127.0.0.1:0"
    async with server(address, epoch=7) as made:
        caller = Caller()
        link = caller.open(links_to(made.address))
        assert await soon(caller.ups.get()) == 7
        sizes = [0, 1, 3, 300, 65_536, 65_537, 3 * limits.MIB, 5]
        frames = [bytes([n]) * size for n, size in enumerate(sizes)]
        for frame in frames:
            link.send(frame)
        assert [await soon(caller.frames.get()) for _ in frames] == frames
        link.close()


async def test_what_is_sent_now_waits_for_no_turn_of_the_loop_and_keeps_its_place(
    folder: Path, loop_factory: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer is on the same loop, so it reads nothing meanwhile: the rest is queued."""
    monkeypatch.setattr(limits, "LINK_HANDOVER_MAX_MS", 1)
    async with server(f"unix:{folder}/d0.sock") as made:
        caller = Caller()
        link = caller.open(links_to(made.address))
        await soon(caller.ups.get())
        (peer,) = made.peers
        assert peer.transport is not None
        descriptor = peer.transport.get_extra_info("socket").fileno()
        link.send_now(b"small")
        assert select.select([descriptor], [], [], 0)[0], "the kernel has it"
        frames = [b"small", b"large" * limits.MIB, b"", b"last"]
        for frame in frames[1:]:
            link.send_now(frame)
        assert [await soon(caller.frames.get()) for _ in frames] == frames
        with pytest.raises(PayloadTooLarge):
            link.send_now(bytes(limits.FRAME_BYTES_MAX + 1))
        link.close()
        link.send_now(b"to nobody")


async def test_the_socket_is_for_its_owner_only(folder: Path, loop_factory: object) -> None:
    async with server(f"unix:{folder}/d0.sock"):
        assert stat.S_IMODE(os.stat(folder / "d0.sock").st_mode) == 0o600
        assert os.listdir(folder) == ["d0.sock"]
    assert os.listdir(folder) == []


@pytest.mark.parametrize(("token", "shard"), [(b"x" * 32, "d0"), (TOKEN, "d1")])
async def test_a_wrong_secret_or_shard_is_refused(
    folder: Path, token: bytes, shard: str, loop_factory: object
) -> None:
    sessions: list[Echo] = []

    def new_session(send: Callable[[bytes], None]) -> Echo:
        sessions.append(Echo(send))
        return sessions[-1]

    async with server(f"unix:{folder}/d0.sock", new_session=new_session) as made:
        peer = frames_and_end(made.address, shard, token)
        told = await soon(peer)
        assert "refused" in told
        assert sessions == []


async def frames_and_end(address: str, shard: str, token: bytes) -> str:
    """Connect once and tell why that failed."""
    caller = Caller()
    link = caller.open(links_to(address, token), shard)
    while link.last_error is None:
        await asyncio.sleep(0)
    link.close()
    return str(link.last_error)


async def test_a_server_without_the_secret_is_not_believed(
    folder: Path, loop_factory: object
) -> None:
    path = f"{folder}/d0.sock"

    def impostor() -> asyncio.Protocol:
        return Impostor(asyncio.get_running_loop())

    listening = await asyncio.get_running_loop().create_unix_server(impostor, path)
    told = await soon(frames_and_end(f"unix:{path}", "d0", TOKEN))
    assert "is not that shard" in told
    listening.close()
    await listening.wait_closed()


class Impostor(frames_socket.Framed):
    """Greets and accepts any proof, with a made-up one of its own."""

    def on_connected(self) -> None:
        self.say(frames_socket.Hello(link_socket.WIRE_VERSION, "n", b"", "d0", 0))

    def on_hello(self, hello: frames_socket.Hello) -> None:
        self.say(frames_socket.Hello(link_socket.WIRE_VERSION, "n", b"p" * 32, "d0", 1))


@pytest.mark.parametrize(
    "opening", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x03abc", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_rubbish_before_the_handshake_is_cut_off(
    folder: Path, opening: bytes, loop_factory: object
) -> None:
    async with server(f"unix:{folder}/d0.sock") as made:
        reader, writer = await asyncio.open_unix_connection(folder / "d0.sock")
        writer.write(opening)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await soon(reader.readexactly(100_000))
        writer.close()
        assert made.peers == set()


async def test_silence_instead_of_a_handshake_is_cut_off(
    folder: Path, loop_factory: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINK_HELLO_MAX_MS", 20)
    async with server(f"unix:{folder}/d0.sock"):
        reader, writer = await asyncio.open_unix_connection(folder / "d0.sock")
        await soon(reader.read())
        writer.close()


async def test_a_frame_over_the_bound_is_not_sent(folder: Path, loop_factory: object) -> None:
    async with server(f"unix:{folder}/d0.sock") as made:
        caller = Caller()
        link = caller.open(links_to(made.address))
        await soon(caller.ups.get())
        with pytest.raises(PayloadTooLarge):
            link.send(bytes(limits.FRAME_BYTES_MAX + 1))
        link.send(b"still fine")
        assert await soon(caller.frames.get()) == b"still fine"
        link.close()


@found_by
async def test_the_link_comes_back_with_a_new_owner(
    folder: Path, loop_factory: object, place: str
) -> None:
    address = place.format(folder)
    caller = Caller()
    link = caller.open(links_to(address))  # nobody listens yet
    async with server(address, epoch=1):
        assert await soon(caller.ups.get()) == 1
    await soon(caller.downs.get())
    async with server(address, epoch=2):
        assert await soon(caller.ups.get()) == 2
        link.send(b"hello")
        assert await soon(caller.frames.get()) == b"hello"
    link.close()


@found_by
async def test_a_replaced_socket_is_noticed_while_the_old_owner_still_holds_on(
    folder: Path, loop_factory: object, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(limits, "LINK_PROBE_MS", 10)
    address = place.format(folder)
    caller = Caller()
    async with server(address, epoch=1):
        link = caller.open(links_to(address))
        assert await soon(caller.ups.get()) == 1
        async with server(address, epoch=2):
            assert "new owner" in str(await soon(caller.downs.get()))
            assert await soon(caller.ups.get()) == 2
            link.close()
    assert os.listdir(folder) == []


@found_by
async def test_closing_the_old_owner_leaves_the_new_ones_socket(
    folder: Path, loop_factory: object, place: str
) -> None:
    address = place.format(folder)
    async with server(address, epoch=1) as old, server(address, epoch=2):
        await old.close()
        assert os.listdir(folder) == [place.rpartition("/")[2]]


def send_many(link: link_socket.SocketLink, count: int) -> None:
    for _ in range(count):
        link.send(bytes(limits.MIB))


async def test_a_caller_of_a_server_that_does_not_read_is_told(
    folder: Path, loop_factory: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINK_PENDING_BYTES_MAX", 4 * limits.MIB)
    async with server(f"unix:{folder}/d0.sock") as made:
        caller = Caller()
        link = caller.open(links_to(made.address))
        await soon(caller.ups.get())
        (peer,) = made.peers
        assert peer.transport is not None
        peer.transport.pause_reading()
        with pytest.raises(Overloaded):
            send_many(link, 100)
        link.close()


async def test_a_peer_that_does_not_read_its_answers_is_cut_off(
    folder: Path, loop_factory: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINK_STALL_MAX_MS", 50)
    sessions: list[Echo] = []

    def new_session(send: Callable[[bytes], None]) -> Echo:
        sessions.append(Echo(send))
        return sessions[-1]

    async with server(f"unix:{folder}/d0.sock", new_session=new_session) as made:
        caller = Caller()
        link = caller.open(links_to(made.address))
        await soon(caller.ups.get())
        peer = link._peer
        assert peer is not None
        assert peer.transport is not None
        peer.transport.pause_reading()
        send_many(link, 12)
        while not sessions[0].ended:
            await asyncio.sleep(0)
        assert made.peers == set()
        link.close()


def test_the_runtime_directory_is_private_and_short(
    folder: Path, loop_factory: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    made = frames_socket.runtime_directory("abc")
    assert made == os.path.realpath(folder / f"toque-{os.getuid()}" / "abc")
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
    assert frames_socket.runtime_directory("abc") == made
    os.chmod(made, 0o755)
    with pytest.raises(UnsafeRuntimeDir, match="0700"):
        frames_socket.runtime_directory("abc")
    os.rmdir(made)
    os.symlink(folder, made)
    with pytest.raises(UnsafeRuntimeDir):
        frames_socket.runtime_directory("abc")


@pytest.mark.parametrize("address", ["", "http://x:1", "tcp://x", "tcp://:1", "unix:" + "a" * 101])
def test_bad_addresses_are_refused(address: str, loop_factory: object) -> None:
    with pytest.raises(InvalidArgument):
        frames_socket.split_address(address)
