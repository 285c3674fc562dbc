"""One small, fixed piece of work, with a crash at any chosen commit of any shard.

Good weather, no chance: what differs between two plays is the crash alone, so all of them must
end alike. That covers every commit boundary, where seeds only sample them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toque.runtime.codec import decode_json

from .clients import Clients
from .making import Script
from .parts import Layout
from .program import Op
from .promises import PromiseBroken
from .verdict import Errand
from .world import World

DOWN_S = 1.5
END_S_MAX = 120.0
QUIET_S_MAX = 60.0

LAYOUT = Layout(data_shards=2, control_shards=1, limit=2, souschefs=2, commit_ms=2.0)

PROGRAMS: list[list[Op]] = [
    [
        ["do", "ok1", "ok", 0, 50],
        ["sleep", "nap1", 700],
        ["do", "flaky1", "flaky", 1, 20],
        ["event", "wait1", "order", 60_000],
        ["gather", [["do", "ok2", "ok", 0, 30]], [["do", "ok3", "ok", 0, 60]]],
    ],
    [
        ["do", "late1", "late", 0, 90],
        ["do", "fatal1", "fatal", 1, 10],
        ["until", "until1", 2_500],
        ["event", "wait2", "note", 300],
        ["do", "refuse1", "refuse", 0, 10],
    ],
    [
        ["event", "wait3", "order", 60_000],
        ["do", "ok4", "ok", 0, 400],
        ["do", "ok5", "ok", 0, 20],
    ],
]
EVENTS = {0: {"order": 1}, 2: {"order": 2}}
IDS = ("job/a", "job/b", "job/c")


@dataclass
class Played:
    """What came of it: `results` is the same in every play."""

    commits: dict[str, int]
    results: list[Any]
    broken: PromiseBroken | None
    crashes: int
    tail: list[str]


async def _work(world: World) -> list[Any]:
    for shard in world.sites:
        world.boot(shard)
    world.open_front_end()
    clients = Clients(world)
    await clients.set_limit("acme", 2)
    await clients.deploy("acme", "alpha")
    errands = []
    for number, ops in enumerate(PROGRAMS):
        claim = world.claims.of("acme", "alpha", IDS[number])
        errands.append(Errand(claim, [Script([ops])], world.promises, world.bodies))
    work = [_one(clients, number, errand) for number, errand in enumerate(errands)]
    async with asyncio.timeout(END_S_MAX):
        await asyncio.gather(*work)
    until = world.loop.time() + QUIET_S_MAX
    while world.loop.time() < until and world.disk.left_overs(list(world.sites)):
        await asyncio.sleep(0.5)
    world.disk.check_quiet(list(world.sites))
    results = []
    for errand in errands:
        view = await clients.look(errand)
        errand.judge(view)
        output = decode_json(view.output)
        names = sorted(name for name, _ in output["seen"])
        results.append([view.status, names, output["events"]])
    world.promises.raise_broken()
    return results


async def _one(clients: Clients, number: int, errand: Errand) -> None:
    await clients.create(errand)
    events = EVENTS.get(number, {})
    await asyncio.gather(*(clients.send_events(errand, kind, n) for kind, n in events.items()))
    await clients.wait(errand)


def play(
    folder: Path,
    crash: tuple[str, int, str] | None = None,
    work: Callable[[World], Coroutine[Any, Any, list[Any]]] = _work,
    layout: Layout = LAYOUT,
) -> Played:
    """Play some work in an empty folder, with a crash at `(shard, commit, outcome)`."""
    world = World(0, folder, layout)
    if crash is not None:
        shard, commit, outcome = crash
        world.sites[shard].crash_at[commit] = (outcome, DOWN_S)
    played = Played({}, [], None, 0, [])
    try:
        played.results = world.run(work(world))
    except PromiseBroken as broken:
        played.broken = broken
    except TimeoutError:
        played.broken = PromiseBroken("an acknowledged create ends", f"not in {END_S_MAX} s")
    finally:
        played.commits = {name: site.commits for name, site in world.sites.items()}
        crashes = ("crash, commit ", "a commit fails, ")
        played.crashes = sum(n for name, n in world.faults.items() if name.startswith(crashes))
        played.tail = world.tail or world.trace.tail()
        world.close()
    return played
