"""A whole runtime on Ray with the workflows of `tests/engines/worker_app`, playing one story.

    python -m tests.cluster.placed DATA STORY

Prints what it saw as one JSON object per line, the last one with `"what": "done"`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.api import sealing
from tests.engines import worker_app
from toque.actors import keeper
from toque.actors.supervisor_ray import Supervisor
from toque.api import wiring_ray
from toque.runtime.clock import SystemClock

APP = worker_app.__file__
TRACED = str(Path(APP).with_name("traced_app.py"))


def say(what: str, **more: Any) -> None:
    """One line for the test."""
    print(json.dumps({"what": what, **more}, default=str), flush=True)


async def actor(runtime: wiring_ray.RayRuntime, folder: Path) -> None:
    """An instance with an actor of its own, whose process is killed once."""
    client = runtime.client()
    for name in ("began", "go"):
        os.mkfifo(folder / name)
    clock = SystemClock()
    began_ms = clock.now_ms()
    held = await client.create_instance("Held", params=str(folder))
    pid = int(await asyncio.to_thread((folder / "began").read_text))
    say("began", pid=pid, after_ms=clock.now_ms() - began_ms, shards=shard_pids(runtime))
    await asyncio.to_thread(kill, pid)  # until it is dead it might read what is for its successor
    await asyncio.to_thread((folder / "go").write_text, "on")
    status = await held.wait(60)
    say("ended", output=status.output, error=status.error)
    step = (await held.status()).steps[0]
    say("attempts", success=[attempt.success for attempt in step.attempts])
    ending = await client.create_instance("Ending", params=[str(folder), 2])
    status = await ending.wait(60)
    say(
        "ending",
        output=status.output,
        error=status.error,
        bodies=(folder / "bodies").read_text().split(),
        ends=(folder / "ends").read_text().split(),
    )


async def poison(runtime: wiring_ray.RayRuntime, folder: Path, *hows: str) -> None:
    """Instances that end or block their shard's process; the others go on."""
    client = runtime.client()
    clock = SystemClock()
    for how in hows:
        (folder / how).mkdir()
        os.mkfifo(folder / how / "poisoning")
        times = 1 if how == "loop" else 3
        instance = await client.create_instance("Poison", params=[how, str(folder / how), times])
        # From here on the shard's loop does nothing else: the other one can't run before its end.
        await asyncio.to_thread((folder / how / "poisoning").read_text)
        began_ms = clock.now_ms()
        where = await client.run_instance("Where", timeout=60)
        other_ms = clock.now_ms() - began_ms
        status = await instance.wait(60)
        began = [int(word) for word in (folder / how / "began").read_text().split()]
        say(
            "poisoned",
            how=how,
            output=status.output,
            error=status.error,
            began=began,
            other=where.output,
            other_ms=other_ms,
            took_ms=clock.now_ms() - began_ms,
        )
    say("events", events=[event._asdict() for event in runtime.supervisor.events])


def shard_pids(runtime: wiring_ray.RayRuntime) -> list[int]:
    """The processes of the shard actors."""
    return [health["process"][0] for health in runtime.supervisor.health.values()]


async def resources(runtime: wiring_ray.RayRuntime, folder: Path) -> None:
    """A body as a task: its process is killed, then it is terminated; and bodies that can't run."""
    client = runtime.client()
    for name in ("began", "go"):
        os.mkfifo(folder / name)
    heavy = await client.create_instance("Heavy", params={"folder": str(folder)})
    first = int(await asyncio.to_thread((folder / "began").read_text))
    os.kill(first, 9)
    second = int(await asyncio.to_thread((folder / "began").read_text))
    await asyncio.to_thread((folder / "go").write_text, "on")
    status = await heavy.wait(15)
    steps = (await heavy.status()).steps
    say(
        "heavy",
        pids=[first, second],
        output=status.output,
        error=status.error,
        attempts=[[a.error.name if a.error else None for a in step.attempts] for step in steps],
        shards=shard_pids(runtime),
    )
    stopped = await client.create_instance("Heavy", params={"folder": str(folder)})
    pid = int(await asyncio.to_thread((folder / "began").read_text))
    await stopped.terminate()
    say("terminated", pid=pid, has_ended=await asyncio.to_thread(has_ended, pid))
    apart = await client.run_instance("Streaming", timeout=60)
    tasks = await client.create_instance("StreamingTasks")
    status = await tasks.wait(60)
    content = b"".join([part async for part in tasks.stream("made-1")])
    say(
        "streams",
        apart=apart.output,
        tasks=status.output,
        errors=[apart.error, status.error],
        lines=content.count(b"\n"),
        clear=sum(b"\n99998\n" in path.read_bytes() for path in folder.rglob("blobs/*/*")),
        shards=shard_pids(runtime),
    )
    traced = await client.run_instance("Traced", timeout=60)
    say("traced", output=traced.output, error=traced.error)
    clinging = await (await client.create_instance("Clinging")).wait(15)
    say("clinging", error=clinging.error and [clinging.error.name, clinging.error.message])
    every = {"folder": str(folder), "options": {"num_cpus": 2}}  # all that the machine has
    whole = await client.create_instance("Heavy", params=every)
    await asyncio.to_thread((folder / "began").read_text)
    await asyncio.to_thread((folder / "go").write_text, "on")
    say("whole", error=(await whole.wait(15)).error)
    greedy = {"folder": str(folder), "options": {"num_gpus": 1}}
    pending = await client.create_instance("Heavy", params=greedy)
    where = await client.run_instance("Where", timeout=15)
    status = await pending.status()
    why = (await pending.why()).reasons
    told = [[one.kind, one.name, one.error and one.error.message] for one in why]
    say("pending", status=status.status, other=where.status, why=told)
    await pending.terminate()


def kill(pid: int) -> None:
    """Kill a process, and wait until it is dead."""
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert keeper.wait_ended(descriptor, 10_000)
    finally:
        os.close(descriptor)


def has_ended(pid: int) -> bool:
    """Whether a process ends soon."""
    return keeper.wait_ended(os.pidfd_open(pid), 10_000) if keeper.identify(pid) else True


async def forever(runtime: wiring_ray.RayRuntime, folder: Path) -> None:
    """A worker of each kind, until the process is killed."""
    for name in ("began", "go"):
        os.mkfifo(folder / name)
    await runtime.deploy("other", None)
    where = await runtime.client("other").run_instance("Where", timeout=20)
    say("other", output=where.output, shards=shard_pids(runtime))
    await runtime.client().create_instance("Held", params=str(folder))
    pid = int(await asyncio.to_thread((folder / "began").read_text))
    say("began", pid=pid)
    await asyncio.Event().wait()


STORIES: dict[str, Any] = {
    "actor": actor,
    "poison": poison,
    "resources": resources,
    "forever": forever,
}


async def main(data: str, story: str, *args: str) -> None:
    folder = Path(data).parent
    wiring_ray.Supervisor = functools.partial(  # type: ignore[assignment,misc]
        Supervisor, period_ms=200, silence_max_ms=4_000
    )
    options: dict[str, Any] = {"app_path": APP}
    if story == "resources":
        options = {"app_path": TRACED, "codecs": {"default": sealing.NAME}}
    async with wiring_ray.start_ray(data, data_shards=1, num_cpus=2, **options) as runtime:
        say("pids", pids=sorted(p.pid for p in keeper.offspring([os.getpid()])))
        await runtime.supervisor.wait_seen()
        await STORIES[story](runtime, folder, *args)
        say("pids", pids=sorted(p.pid for p in keeper.offspring([os.getpid()])))
    say("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
