"""How soon a shard that was killed goes on.

A server on Ray; on one of its data shards `waiting` instances that wait, out of memory,
and `running` ones that do step after step, each of which notes its begin in a file. The process
of that shard is killed by SIGKILL again and again. A step begins only once the commit that led to
it is on disk, so the first begin after a kill proves that the shard has committed again; when each
of the running ones has begun a step, all have resumed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from toque.engines.ports import ENGINE_KIND
from toque.loadtest.histograms import percentile
from toque.runtime.datadir import read_settings
from toque.runtime.ids import EntityRef, Placement, engine_key

from . import processes, progress, sections
from .figures import shown, table
from .fill import fill
from .server import Server

SHARD = "d0"
_EVERY_S = 5.0
_PATIENCE_S = 60.0
_REST_S = 8.0


class Steps:
    """The file in which steps note that they began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        path.touch()

    def skip(self) -> None:
        """What stands there is over."""
        self._offset = self.path.stat().st_size

    def new(self) -> list[tuple[float, str]]:
        """`(time, name)` of those since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = (line.split() for line in whole.decode().splitlines())
        return [(float(at), name) for at, name in lines]


def owner_of(server: Server, shard: str) -> int:
    """The process that has the shard's store open."""
    store = str(server.data.resolve() / "shards" / f"{shard}.sqlite")
    for pid in processes.descendants(server.pid):
        if processes.role(pid, server.pid) == "shards" and store in open_files(pid):
            return pid
    raise LookupError(f"nobody has {store} open")


def open_files(pid: int) -> set[str]:
    """What a process has open."""
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.add(os.readlink(link))
            except OSError:
                continue
    except OSError:
        return set()
    return found


def placement_of(server: Server) -> Placement:
    """Where its entities live."""
    settings = read_settings(server.data)
    assert settings is not None
    return Placement(settings.data_shards, settings.control_shards)


async def begin(server: Server, steps: Steps, count: int) -> set[str]:
    """Create the running ones, all on the shard that is killed."""
    async with server.client() as client:
        workflow_uuid = (await client.get_workflow("Walk")).id
        placement = placement_of(server)
        names: list[str] = []
        number = 0
        while len(names) < count:
            key = engine_key("default", workflow_uuid, f"r{number}")
            if placement.shard_of(EntityRef(ENGINE_KIND, key)) == SHARD:
                names.append(f"r{number}")
            number += 1
        base = {"path": str(steps.path), "every_s": _EVERY_S}
        news = [{"id": name, "params": {**base, "name": name}} for name in names]
        await client.create_instances("Walk", news)
        return set(names)


async def until_all(steps: Steps, names: set[str], since: float) -> tuple[float, float]:
    """Seconds from a time to the first and to the last of their next steps."""
    missing = set(names)
    first = last = 0.0
    end = time.monotonic() + _PATIENCE_S
    while missing and time.monotonic() < end:
        for at, name in steps.new():
            if at > since and name in missing:
                missing.discard(name)
                first = min(first or at, at)
                last = max(last, at)
        await asyncio.sleep(0.02)
    if missing:
        raise SystemExit(f"{len(missing)} did not go on within {_PATIENCE_S:.0f} s: {missing}")
    return first - since, last - since


async def measure(server: Server, folder: Path, kills: int, running: int) -> dict[str, list[float]]:
    """Kill it so often."""
    steps = Steps(folder / "steps")
    names = await begin(server, steps, running)
    await until_all(steps, names, 0.0)
    firsts, lasts = [], []
    for number in range(kills):
        await asyncio.sleep(_REST_S)
        victim = owner_of(server, SHARD)
        steps.skip()
        at = time.time()
        os.kill(victim, signal.SIGKILL)
        first, last = await until_all(steps, names, at)
        firsts.append(first)
        lasts.append(last)
        progress.note("recovery", kill=number + 1, first_s=first, all_s=last)
    return {"first_s": firsts, "all_s": lasts}


def run(kills: int, waiting: int, running: int) -> dict[str, list[float]]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as name:
        folder = Path(name)
        with Server(folder) as server:
            asyncio.run(some_wait(server, "Wait", None))
        fill(server.data, "Wait", placement_of(server).data_shards * waiting)
        with Server(folder) as server:
            return asyncio.run(measure(server, folder, kills, running))


async def some_wait(server: Server, workflow: str, params: Any) -> None:
    """Some instances that wait, for `fill` to copy: each SousChef has some."""
    async with server.client() as client:
        news = [{"id": f"model{n}", "params": params} for n in range(20)]
        for one in await client.create_instances(workflow, news):
            async for _ in client.instance(workflow, one.id).events(types=["workflow_waiting"]):
                break
        await asyncio.sleep(3)  # reports and alarms settle


def report(found: dict[str, list[float]], waiting: int, running: int) -> str:
    """The section."""
    names = {
        "first_s": "first step that begins again",
        "all_s": "all that ran have begun a step",
    }
    rows = [
        [name, *(shown(percentile(found[key], q), "s") for q in (0, 0.5, 0.9, 0.99, 1))]
        for key, name in names.items()
    ]
    return f"""## A killed shard

`python -m bench recovery`: a shard's process with {waiting:,} waiting and {running:,} running
instances gets SIGKILL, {len(found["first_s"])} times; on Ray, {os.cpu_count()} cores. Times are
from the kill. A step begins once the commit that led to it is on disk.

{table(["", "least", "median", "90 %", "99 %", "most"], rows)}
"""


def command(
    kills: Annotated[int, typer.Option(min=1, help="How often it is killed.")] = 20,
    waiting: Annotated[int, typer.Option(min=1, help="How many wait on it.")] = 50_000,
    running: Annotated[int, typer.Option(min=1, help="How many run on it.")] = 1_000,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """How soon a shard that was killed goes on."""
    found = run(kills, waiting, running)
    print(json.dumps(found))
    text = report(found, waiting, running)
    print(text)
    if page:
        figures = {
            "first_p50_s": percentile(found["first_s"], 0.5),
            "all_p99_s": percentile(found["all_s"], 0.99),
            "kills": kills,
            "waiting": waiting,
            "running": running,
        }
        sections.put("recovery", text, figures=figures)
