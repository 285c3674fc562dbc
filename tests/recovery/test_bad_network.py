"""Networks that lose replies, stand still and mix up frames, and clients that only hold sockets."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from yarl import URL

from tests.api.serving import Served, up
from tests.recovery import flow
from tests.recovery.ledger import Ledger, effects
from tests.recovery.proxy import Lossy, Proxy, Shuffled, Stalled
from tests.recovery.test_owners import Owner
from toque.api.client import Client
from toque.api.client_http import connect
from toque.runtime import limits
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import OutcomeUnknown
from toque.runtime.ids import EntityRef, Placement
from toque.runtime.link_socket import SocketLinks
from toque.runtime.rpc import Router

APP = """
import toque

@toque.workflow
async def gather(event, step):
    found = []
    for number in range(event.payload):
        received = await step.wait_for_event(f"n{number}", "number", timeout="1 hour")
        found.append(received.payload)
    return found
"""
WORDS = ("app.py", "--data", "data", "--embedded", "--port", "0", "--drain", "0")
LEFT = EntityRef(Ledger.KIND, "left")
SEED = 7


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "app.py").write_text(APP)
    with up(folder, WORDS) as found:
        yield found


def through(served: Served, proxy: Proxy | None = None) -> Client:
    """A client of the server, through a proxy or not."""
    url = URL(served.told["url"])
    port = url.port if proxy is None else proxy.port
    return connect(str(url.with_port(port)), served.told["operator_token"], retry_for="20 seconds")


def port_of(served: Served) -> int:
    """The server's own."""
    return int(served.told["url"].rpartition(":")[2])


async def test_of_replies_that_are_lost_none_makes_an_instance_or_an_event_twice(
    served: Served,
) -> None:
    lossy = Lossy("127.0.0.1", port_of(served), share=0.2, seed=SEED)
    async with lossy, through(served, lossy) as client:
        before = {line.id async for line in client.list_instances("gather")}
        made = await asyncio.gather(
            *(client.create_instance("gather", f"i{number}", params=0) for number in range(100))
        )
        assert len({one.id for one in made}) == 100
        # without an id of their own as well: it is made here and repeated
        nameless = [await client.create_instance("gather", params=0) for _ in range(20)]
        counting = await client.create_instance("gather", "counting", params=40)
        await asyncio.gather(*(counting.send_event("number", number) for number in range(40)))
        status = await counting.wait(60)
        assert sorted(status.output) == list(range(40))
        listed = [line.id async for line in client.list_instances("gather")]
        mine = [one for one in listed if one not in before]
        assert sorted(mine) == sorted([one.id for one in (*made, *nameless)] + ["counting"])
    assert lossy.faults > 20, "hardly a reply was lost"


async def test_a_call_on_a_connection_that_stands_still_ends_in_time_and_others_go_on(
    served: Served,
) -> None:
    stalled = Stalled("127.0.0.1", port_of(served))
    async with stalled, through(served, stalled) as client, through(served) as direct:
        await client.create_instance("gather", "before", params=0)
        stalled.open.clear()
        start = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            await client.with_options(timeout="2 seconds").create_instance(
                "gather", "during", params=0
            )
        assert time.monotonic() - start < 5
        assert stalled.faults
        assert (await direct.instance("gather", "during").wait(30)).status == "complete"
        stalled.open.set()
        assert (await client.instance("gather", "during").wait(30)).status == "complete"


# --- links between processes ---


@contextlib.asynccontextmanager
async def owner() -> AsyncIterator[tuple[int, bytes]]:
    """A process that serves a shard over TCP: its port, and the secret."""
    token = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        made = Owner(Path(folder), token, "tcp://127.0.0.1:0")
        try:
            told = await asyncio.to_thread(made.next, "open")
            yield int(told["address"].rpartition(":")[2]), token
        finally:
            made.end()


def router_to(port: int, token: bytes) -> Router:
    """Calls through that port."""
    loop = asyncio.get_running_loop()
    links = SocketLinks(lambda _: f"tcp://127.0.0.1:{port}", token, loop, SystemEntropy())
    return Router(Placement(1, 1), links, loop)


async def test_answers_that_come_in_another_order_reach_who_asked() -> None:
    async with owner() as (port, token), Shuffled("127.0.0.1", port, SEED) as shuffled:
        router = router_to(shuffled.port, token)
        calls = []
        for number in range(200):
            calls.append(router.call(LEFT, "add", number))
            await flow.work_for(0.001)  # a frame for each
        shuffled.flush = True
        total, _rung = await router.call(LEFT, "read")
        for number, answer in enumerate(await asyncio.gather(*calls)):
            assert max(effects(answer)) == number  # its own, and in the order of the calls
        assert effects(total) == dict.fromkeys(range(200), 1)
        router.close()
        await asyncio.sleep(0)
    assert shuffled.faults > 20, "hardly a frame was moved"


async def test_a_link_that_loses_replies_gives_unknown_outcomes_and_comes_back() -> None:
    async with owner() as (port, token), Lossy("127.0.0.1", port, 0.2, SEED) as lossy:
        router = router_to(lossy.port, token)
        known, unknown = [], 0
        for number in range(100):
            try:
                await router.call(LEFT, "add", number, timeout_ms=5_000)
            except OutcomeUnknown:
                unknown += 1
            else:
                known.append(number)
        router.close()
        direct = router_to(port, token)
        found = effects((await direct.call(LEFT, "read"))[0])
        direct.close()
        await asyncio.sleep(0)
    assert set(known) <= set(found)
    assert set(found.values()) == {1}
    assert unknown > 5
    assert lossy.faults > 5


async def test_a_link_that_stands_still_fails_its_calls_in_time_and_keeps_none() -> None:
    async with owner() as (port, token), Stalled("127.0.0.1", port) as stalled:
        router = router_to(stalled.port, token)
        await router.call(LEFT, "add", 0)
        stalled.open.clear()
        start = time.monotonic()
        calls = [router.call(LEFT, "add", n, timeout_ms=500) for n in range(1, 50)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - start < 3
        assert {type(one) for one in ended} == {OutcomeUnknown}
        assert not router._peers["d0"]._pending
        stalled.open.set()
        total, _rung = await router.call(LEFT, "read")
        assert effects(total) == dict.fromkeys(range(50), 1)
        router.close()
        await asyncio.sleep(0)


# --- sockets that do nothing ---


def hold(port: int, number: int, first: bytes) -> list[socket.socket]:
    """So many connections, on each of which something was said."""
    held = []
    for _ in range(number):
        one = socket.create_connection(("127.0.0.1", port))
        one.send(first)
        held.append(one)
    return held


async def answered_beside(served: Served, calls: int) -> float:
    """The longest of some creates, in seconds."""
    longest = 0.0
    async with through(served) as client:
        for _ in range(calls):
            start = time.monotonic()
            await client.create_instance("gather", params=0)
            longest = max(longest, time.monotonic() - start)
    return longest


async def test_idle_and_slow_connections_keep_nobody_from_being_served(served: Served) -> None:
    idle = await asyncio.to_thread(hold, port_of(served), 1_000, b"")
    slow = await asyncio.to_thread(hold, port_of(served), 200, b"POST / HTTP/1.1\r\nX: ")
    try:
        assert await answered_beside(served, 50) < 2
    finally:
        for one in (*idle, *slow):
            one.close()


_CROWD = """
import json, resource, socket, sys, time
port, idle, slow = map(int, sys.argv[1:])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def held(number, first):
    found = []
    for _ in range(number):
        one = socket.create_connection(("127.0.0.1", port))
        one.send(first)
        found.append(one)
    return found
idle, slow = held(idle, b""), held(slow, b"POST / HTTP/1.1\\r\\nX: ")
print(json.dumps([len(idle), len(slow)]), flush=True)
until, cut = time.monotonic() + 40, 0
left = set(slow)
while left and time.monotonic() < until:
    for one in list(left):
        try:
            one.setblocking(False)
            one.send(b"x")
            while one.recv(1000):  # what it is told before it is hung up on
                pass
            raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            left.discard(one)
            cut += 1
    time.sleep(0.2)
print(json.dumps([cut]), flush=True)
sys.stdin.readline()
"""


@pytest.mark.campaign
@pytest.mark.timeout(300)
async def test_ten_thousand_idle_sockets_and_five_hundred_slow_ones(served: Served) -> None:
    """The slow ones, which send a byte now and then, are cut off; the others are let be."""
    command = [sys.executable, "-c", _CROWD, str(port_of(served)), "10000", "500"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as crowd:
        assert crowd.stdout is not None
        assert await asyncio.to_thread(crowd.stdout.readline) == "[10000, 500]\n"
        first = await answered_beside(served, 1)  # it waits until they all have been let in
        longest = await answered_beside(served, 200)
        print(
            f"10,500 sockets: a create behind their coming took {first * 1000:.0f} ms, the "
            f"longest of 200 beside them {longest * 1000:.0f} ms"
        )
        assert first < limits.REQUEST_DEADLINE_MS / 1000
        assert longest < 5
        start = time.monotonic()
        assert await asyncio.to_thread(crowd.stdout.readline) == "[500]\n"
        assert time.monotonic() - start < 3 * limits.HEAD_READ_MAX_MS / 1000
        crowd.communicate("\n")
