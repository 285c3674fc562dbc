"""Wall clocks that are set forward and back, or go too fast, while a server and its shards run.

Sleeps, waits, retention and the like are instants of the wall clock; what is under way, leases and
heartbeats go by clocks that never jump. So nothing runs twice or is lost, whatever a clock does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.api.serving import Served, up
from tests.recovery.bad_clock import BadClock, bad_clock
from toque.api.client import Client
from toque.api.client_http import connect
from toque.api.client_instance import Instance
from toque.runtime import limits
from toque.runtime.errors import InstanceNotFound

APP = Path(__file__).with_name("napping.py")
HOUR_S = 3_600.0
ON_RAY = (str(APP), "--data", "data", "--shards", "1", "--port", "0", "--drain", "0")
WORDS = (str(APP), "--data", "data", "--embedded", "--port", "0", "--drain", "0")
on_both = pytest.mark.parametrize(
    "words",
    [
        pytest.param(WORDS, id="embedded"),
        pytest.param(
            ON_RAY,
            id="ray",
            marks=[pytest.mark.campaign, pytest.mark.cluster, pytest.mark.timeout(300)],
        ),
    ],
)
WAIT_S = 30.0
assert WAIT_S < limits.ALARM_WINDOW_MS / 1000, "alarms that are looked for that seldom would pass"


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[BadClock]:
    with bad_clock(tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def served(folder: Path, words: tuple[str, ...], clock: BadClock) -> AsyncIterator[Client]:
    """A client of a server whose processes have that clock."""
    with up(folder, words, env=clock.environment) as server:
        async with client_of(server) as client:
            yield client
        assert clock.asked() > 100, "nobody looked at the clock"


def client_of(server: Served) -> contextlib.AbstractAsyncContextManager[Client]:
    return connect(server.told["url"], server.told["operator_token"])


async def waiting(instance: Instance) -> Instance:
    """The instance, as soon as it waits."""
    async for event in instance.events():
        if event.type == "workflow_waiting":
            return instance
    raise AssertionError(f"{instance} has ended")


async def under_way(client: Client, folder: Path, name: str) -> Instance:
    """An instance whose body is under way; it ends when there is a file of its name."""
    instance = await client.create_instance("work", name, params=str(folder / name))
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread((folder / f"{name}.begun").exists):
            pass
    return instance


async def napped(instance: Instance) -> tuple[float, float]:
    """How long it slept, by its own clock and in truth."""
    before, after = await instance.output(timeout=WAIT_S)
    return after["wall"] - before["wall"], after["true"] - before["true"]


async def gone(instance: Instance) -> None:
    """It is kept no longer."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await instance.status()
            except InstanceNotFound:
                return


async def kept(client: Client, retention: str) -> Instance:
    """An instance that has ended, and is kept for so long."""
    instance = await client.create_instance("nap", params=0.01, retention=(retention, retention))
    await instance.wait(WAIT_S)
    return instance


async def shown(client: Client) -> list[str]:
    """What the lists of all workflows show."""
    return [
        line.id for name in ("nap", "wait", "work") async for line in client.list_instances(name)
    ]


@on_both
async def test_a_clock_that_is_set_forward(
    tmp_path: Path, clock: BadClock, words: tuple[str, ...]
) -> None:
    """What is due by it happens within seconds, once; what is not stays; what runs goes on."""
    async with served(tmp_path, words, clock) as client:
        due = await waiting(await client.create_instance("nap", params="30 minutes"))
        not_due = await waiting(await client.create_instance("nap", params="3 hours"))
        timed_out = await waiting(await client.create_instance("wait", params="30 minutes"))
        patient = await waiting(await client.create_instance("wait", params="3 hours"))
        old, young = await kept(client, "30 minutes"), await kept(client, "3 hours")
        body = await under_way(client, tmp_path, "body")
        clock.put(HOUR_S)
        wall_s, _ = await napped(due)
        assert wall_s >= 1_800, "it ended before its clock said so"
        assert await timed_out.output(timeout=WAIT_S) is None
        await gone(old)
        _, true_s = await napped(await client.create_instance("nap", params="1 second"))
        assert true_s >= 0.99, "what was set after that is measured right"
        await patient.send_event("word", "hello")
        assert await patient.output(timeout=WAIT_S) == "hello"
        (tmp_path / "body").touch()
        assert await body.output(timeout=WAIT_S) == 1, "an attempt's time is no matter of the clock"
        assert (await not_due.status()).status == "waiting"
        assert (await young.status()).success


@on_both
async def test_a_clock_that_is_set_back_and_right_again(
    tmp_path: Path, clock: BadClock, words: tuple[str, ...]
) -> None:
    """What is due waits for the clock; all that is new goes on; nothing waits once it is right."""
    async with served(tmp_path, words, clock) as client:
        due = await waiting(await client.create_instance("nap", "due", params="2 seconds"))
        patient = await waiting(await client.create_instance("wait", "patient", params="3 hours"))
        body = await under_way(client, tmp_path, "body")
        clock.put(-HOUR_S)
        new = [
            await client.create_instance("nap", f"new-{n}", params="3 seconds") for n in range(9)
        ]
        for one in new:
            _, true_s = await napped(one)
            assert true_s >= 2.99
        await patient.send_event("word", "hello")
        assert await patient.output(timeout=WAIT_S) == "hello"
        (tmp_path / "body").touch()
        assert await body.output(timeout=WAIT_S) == 1
        assert (await due.status()).status == "waiting", "its clock does not show its time"
        assert sorted(await shown(client)) == sorted(
            ["due", "patient", "body", *(one.id for one in new)]
        )
        clock.put(0)
        wall_s, true_s = await napped(due)
        assert min(wall_s, true_s) >= 1.99


@on_both
async def test_a_clock_that_goes_too_fast(
    tmp_path: Path, clock: BadClock, words: tuple[str, ...]
) -> None:
    """A sleep is as long as its clock says, and no shorter."""
    async with served(tmp_path, words, clock) as client:
        clock.hurry(0.5)
        wall_s, true_s = await napped(await client.create_instance("nap", params="3 seconds"))
        assert wall_s >= 2.99
        assert true_s >= 2.99 / 1.5
        clock.hurry(-0.5)
        _, true_s = await napped(await client.create_instance("nap", params="1 second"))
        assert true_s >= 0.99 / 0.5
