"""Shard actors on a real Ray cluster: found, reached, killed, stopped, hung, and back again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray

from toque.actors import cluster_ray, topology
from toque.actors.supervisor_ray import Event, Supervisor
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import (
    ClusterStartFailed,
    DataDirInUse,
    InvalidArgument,
    OutcomeUnknown,
    ShardUnavailable,
    StoreStale,
    WorkflowLoadError,
)
from toque.runtime.ids import EntityRef
from toque.runtime.link_socket import SocketLinks
from toque.runtime.rpc import Router

pytestmark = [pytest.mark.cluster]
T = TypeVar("T")
WAIT_S = 60.0


async def soon(work: Awaitable[T]) -> T:
    return await asyncio.wait_for(work, WAIT_S)


def links_to(spec: topology.ShardSpec) -> SocketLinks:
    """Links to the shards of the cluster that a spec belongs to."""
    loop = asyncio.get_running_loop()
    return SocketLinks(spec.socket_address, spec.token, loop, SystemEntropy())


class Line:
    """A link to a shard: ask it something, wait for it to come and go."""

    def __init__(self, spec: topology.ShardSpec) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.ups: asyncio.Queue[int] = asyncio.Queue()
        self.downs: asyncio.Queue[BaseException | None] = asyncio.Queue()
        links = links_to(spec)
        self.link = links.open(
            spec.shard, self.frames.put_nowait, self.ups.put_nowait, self.downs.put_nowait
        )

    async def ask(self, frame: bytes) -> bytes:
        self.link.send(frame)
        return await soon(self.frames.get())


@asynccontextmanager
async def watched(
    cluster: cluster_ray.Cluster, **settings: int
) -> AsyncIterator[asyncio.Queue[Event]]:
    """The events of a supervisor, started once it knows all actors."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    supervisor = Supervisor(cluster, events.put_nowait, period_ms=100, **settings)
    supervisor.start()
    await soon(supervisor.wait_seen())
    yield events
    await supervisor.close()


async def next_event(events: asyncio.Queue[Event], shard: str) -> Event:
    while True:
        event = await soon(events.get())
        if event.shard == shard:
            return event


async def process_of(cluster: cluster_ray.Cluster, shard: str) -> int:
    pid: int = (await cluster.ask(shard, "health", WAIT_S))["process"][0]
    return pid


async def test_each_shard_has_an_actor_that_is_reached_by_socket(
    cluster: cluster_ray.Cluster,
) -> None:
    for shard, spec in cluster.specs.items():
        line = Line(spec)
        epoch = await soon(line.ups.get())
        health = await cluster.ask(shard, "health", WAIT_S)
        assert (health["state"], health["epoch"]) == ("open", epoch)
        assert int(await line.ask(b"pid")) == health["process"][0] != os.getpid()
        assert (await cluster.ask(shard, "statistics", WAIT_S))["frames"] >= 1
        log = Path(spec.data_dir, "logs", f"{shard}.log").read_text()
        assert "toque.stdout: asked for the pid" in log
        line.link.close()


async def test_the_data_directory_is_in_use(cluster: cluster_ray.Cluster) -> None:
    spec = cluster.spec
    with pytest.raises(DataDirInUse, match=str(os.getpid())):
        await cluster_ray.start_local(spec.data_dir, placement=spec.placement, factory=spec.factory)


async def test_a_killed_actor_is_back_with_a_higher_epoch(cluster: cluster_ray.Cluster) -> None:
    line = Line(cluster.specs["d0"])
    epoch = await soon(line.ups.get())
    async with watched(cluster, silence_max_ms=5_000) as events:
        os.kill(await process_of(cluster, "d0"), signal.SIGKILL)
        await soon(line.downs.get())
        assert (await next_event(events, "d0")).what in ("down", "back")
        assert await soon(line.ups.get()) == epoch + 1
        assert await line.ask(b"hello") == b"hello"
    line.link.close()


async def prepared(cluster: cluster_ray.Cluster) -> set[int]:
    """Idle workers that have imported what a shard needs: Ray itself has no use for msgspec."""
    assert cluster.run is not None
    former = {await process_of(cluster, shard) for shard in cluster.specs}
    async with asyncio.timeout(WAIT_S):
        while True:
            workers = await asyncio.to_thread(cluster.run.idle_workers)
            with contextlib.suppress(OSError):  # one has just ended
                found = {
                    process.pid
                    for process in workers
                    if "msgspec" in Path(f"/proc/{process.pid}/maps").read_text()
                }
                if found - former:
                    return found - former


async def test_a_killed_actor_comes_back_in_a_worker_that_was_there_and_had_imported_all(
    cluster: cluster_ray.Cluster,
) -> None:
    async with watched(cluster) as events:
        for _ in range(3):  # the idle worker that is seen may be one that is just ending
            there = await prepared(cluster)
            os.kill(await process_of(cluster, "d0"), signal.SIGKILL)
            while (await next_event(events, "d0")).what != "back":
                pass
            if await process_of(cluster, "d0") in there:
                return
    pytest.fail("each time a new process was started")


@pytest.mark.parametrize(("trouble", "noticed"), [("hang", "hung"), ("stop", "silent")])
async def test_an_actor_that_hangs_or_is_stopped_is_killed_and_comes_back(
    cluster: cluster_ray.Cluster, trouble: str, noticed: str
) -> None:
    line = Line(cluster.specs["d0"])
    epoch = await soon(line.ups.get())
    async with watched(cluster, silence_max_ms=1_000) as events:
        pid = await process_of(cluster, "d0")
        if trouble == "hang":
            line.link.send(b"hang")
        else:
            os.kill(pid, signal.SIGSTOP)
        assert (await next_event(events, "d0")).what == noticed
        back = await next_event(events, "d0")
        assert back.what == "back"
        assert await process_of(cluster, "d0") != pid
        assert await soon(line.ups.get()) > epoch
    line.link.close()


async def test_successors_that_are_stopped_at_their_start_are_killed_and_others_come(
    cluster: cluster_ray.Cluster,
) -> None:
    lines = {shard: Line(spec) for shard, spec in cluster.specs.items()}
    epochs = {shard: await soon(line.ups.get()) for shard, line in lines.items()}
    async with watched(cluster, silence_max_ms=5_000, start_max_ms=20_000) as events:
        for spec in cluster.specs.values():
            Path(spec.data_dir, f"{spec.shard}.stop").touch()
        for pid in [await process_of(cluster, shard) for shard in cluster.specs]:
            os.kill(pid, signal.SIGKILL)
        told: set[str] = set()
        while len(told) < len(lines):
            event = await soon(events.get())
            told |= {event.shard} if event.what == "silent" else set()
        for shard, line in lines.items():
            await soon(line.downs.get())
            assert await soon(line.ups.get()) > epochs[shard]
            line.link.close()


async def test_a_broken_store_ends_the_process_and_the_shard_is_opened_anew(
    cluster: cluster_ray.Cluster,
) -> None:
    line = Line(cluster.specs["c0"])
    epoch = await soon(line.ups.get())
    line.link.send(b"break")
    await soon(line.downs.get())
    assert await soon(line.ups.get()) == epoch + 1
    log = Path(cluster.spec.data_dir, "logs", "c0.log").read_text()
    assert "told to break" in log
    line.link.close()


async def test_an_actor_that_was_ended_for_good_is_made_again(
    cluster: cluster_ray.Cluster,
) -> None:
    line = Line(cluster.specs["d0"])
    epoch = await soon(line.ups.get())
    async with watched(cluster, silence_max_ms=5_000):
        ray.kill(cluster.handles["d0"])
        assert await soon(line.ups.get()) == epoch + 1
    line.link.close()


# --- other clusters of actors on the same Ray ---


def other_specs(folder: Path, settings: dict[str, Any], **changes: Any) -> list[topology.ShardSpec]:
    shape = topology.shard_specs(
        data_dir=str(folder),
        run_dir=str(folder),
        placement=topology.Placement(1, 1),
        token=secrets.token_bytes(32),
        factory="tests.cluster.echo_host:build",
        settings=settings,
        starter=None,
    )
    return [replace(shape[-1], **changes)]


@pytest.fixture
def end_actors() -> Any:
    made: list[topology.ShardSpec] = []
    yield made.extend
    for spec in made:
        with contextlib.suppress(ValueError):  # a test that went well has ended them
            ray.kill(ray.get_actor(topology.actor_name(spec.shard), namespace=spec.namespace))


async def test_who_attaches_ends_what_a_former_process_left_and_is_reached_over_tcp(
    cluster: cluster_ray.Cluster,
    tmp_path: Path,
    end_actors: Callable[[list[topology.ShardSpec]], None],
) -> None:
    specs = other_specs(tmp_path, {}, listen="tcp")
    end_actors(specs)
    first = await cluster_ray.attach("auto", specs)
    pid = await process_of(first, "d0")
    line = Line(specs[0])
    assert await soon(line.ups.get()) == 1
    assert int(await line.ask(b"pid")) == pid
    # As if its process had been killed: nobody stops the first one.
    anew = [replace(spec, token=secrets.token_bytes(32)) for spec in specs]
    second = await cluster_ray.attach("auto", anew)
    assert await process_of(second, "d0") != pid
    await soon(line.downs.get())
    line.link.close()
    line = Line(anew[0])
    assert await soon(line.ups.get()) == 2
    await second.stop()
    await soon(line.downs.get())
    line.link.close()
    assert not list(tmp_path.glob("*.tcp")), "nobody is to look for it there"
    with pytest.raises(ValueError, match="Failed to look up actor"):
        ray.get_actor(topology.actor_name("d0"), namespace=specs[0].namespace)


async def test_a_shard_with_a_stale_store_stays_closed_and_the_others_are_up(
    cluster: cluster_ray.Cluster,
    tmp_path: Path,
    end_actors: Callable[[list[topology.ShardSpec]], None],
) -> None:
    (spec,) = other_specs(tmp_path, {"stale": "d0"})
    specs = [spec, replace(spec, shard="c0")]
    end_actors(specs)
    attached = await cluster_ray.attach("auto", specs)
    health = {spec.shard: await attached.ask(spec.shard, "health", WAIT_S) for spec in specs}
    assert (health["d0"]["state"], health["d0"]["final"]) == ("failed", True)
    assert health["d0"]["error"][0] == StoreStale.code
    assert health["c0"]["state"] == "open"
    await attached.stop()


@asynccontextmanager
async def made(specs: list[topology.ShardSpec]) -> AsyncIterator[cluster_ray.Cluster]:
    """Their actors, whether they open or not."""
    cluster = cluster_ray.Cluster(specs, None, ThreadPoolExecutor(1))
    await cluster.blocking(cluster._up)
    yield cluster
    await cluster.take_down()


async def refusal(made: cluster_ray.Cluster, error: type[Exception], most_ms: int) -> str:
    with pytest.raises(error) as refused:
        await made.wait_ready(most_ms)
    return str(refused.value)


async def answered(router: Router) -> None:
    """Ask a shard until it answers: its process may end again just when it was asked."""
    while True:
        with contextlib.suppress(OutcomeUnknown):
            await router.call(EntityRef("ShardInfo", "d0"), "read", timeout_ms=50_000)
            return


@pytest.mark.parametrize(
    ("settings", "factory", "error", "told"),
    [
        ({"load_error": "flow.py, line 3: no"}, None, WorkflowLoadError, "flow.py, line 3: no"),
        ({"crash": "disk on fire"}, None, ClusterStartFailed, "disk on fire"),
        ({}, "tests.cluster.echo_host:no_such", InvalidArgument, "no_such"),
        ({"load_error": "line 4: no", "tcp": True}, None, WorkflowLoadError, "line 4: no"),
    ],
)
async def test_a_shard_that_cannot_open_says_why(
    cluster: cluster_ray.Cluster,
    tmp_path: Path,
    end_actors: Callable[[list[topology.ShardSpec]], None],
    settings: dict[str, Any],
    factory: str | None,
    error: type[Exception],
    told: str,
) -> None:
    changes: dict[str, Any] = {"factory": factory} if factory else {}
    changes |= {"listen": "tcp"} if "tcp" in settings else {}
    specs = other_specs(tmp_path, settings, **changes)
    end_actors(specs)
    async with made(specs) as actors:
        if "crash" in settings:  # it is tried for ever, so an attempt ends with its time only
            attempt_ms = 1_000
            async with asyncio.timeout(WAIT_S):
                while told not in await refusal(actors, error, attempt_ms):
                    attempt_ms += 500
        else:
            assert told in await refusal(actors, error, int(WAIT_S * 1_000))
        router = Router(specs[0].placement, links_to(specs[0]), asyncio.get_running_loop())
        try:
            with pytest.raises(ShardUnavailable, match=told) as refused:
                await soon(answered(router))
            assert refused.value.data["shard"] == "d0"
        finally:
            router.close()
            await asyncio.sleep(0)  # a turn for the transport to close
