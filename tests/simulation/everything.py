"""One piece of work that uses every feature, with a crash at any chosen commit.

Good weather, no chance, as in `matrix`; but two instances go through all that steps, waits and
operations can do, one after the other: what is told of each phase (status, output, journal) must
be the same wherever the crash was, up to the number of attempts.

Left out is `retries.limit` 0, whose outcome a crash is meant to change.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toque.engines.views import InstanceView, StepView
from toque.runtime import limits
from toque.runtime.codec import decode_json

from .clients import Clients
from .making import Script
from .parts import Layout
from .promises import PromiseBroken
from .verdict import Errand
from .world import World

DOWN_S = 1.5
PHASE_S_MAX = 200.0
QUIET_S_MAX = 100.0 + limits.DELETION_REMEMBERED_MS / 1000
HOUR_MS = 3_600_000
LAYOUT = Layout(data_shards=1, control_shards=1, limit=2, souschefs=1, commit_ms=2.0)

LONG = Script(
    [
        [
            ["do", "ok1", "ok", 0, 20],
            ["do", "flaky1", "flaky", 1, 20],
            ["do", "told1", "told", 2, 20],
            ["do", "secret1", "secret", 0, 20],
            ["do", "undo0", "undo", 0, 20],
            ["gather", [["do", "g1", "ok", 0, 30]], [["do", "g2", "ok", 0, 60]]],
            ["group", [["do", "g3", "ok", 0, 60]], [["do", "g4", "flaky", 1, 30]]],
            ["soon", [["do", "g5", "ok", 0, 90]], [["do", "g6", "ok", 0, 30]]],
            ["turn", "first come", [["do", "g7", "ok", 0, 90]], [["do", "g8", "ok", 0, 30]]],
            ["race", [["do", "won", "ok", 0, 30]], [["sleep", "lost", HOUR_MS]]],
            ["hurry", "late", 200, [["sleep", "outlasted", HOUR_MS]]],
            ["hurry", "early", HOUR_MS, [["do", "quick", "ok", 0, 20]]],
            ["graph", "dag", 20],
            ["do", "overdue1", "overdue", 0, 20],
            ["do", "fatal1", "fatal", 1, 20],
            ["do", "refuse1", "refuse", 0, 20],
            ["do", "late1", "late", 0, 90],
            ["sleep", "nap", 600],
            ["until", "past", 1],
            ["until", "then", 20_000],
            ["event", "first", "order", HOUR_MS],
            ["event", "nothing", "note", 300],
            ["take", "taken", "order", 2, HOUR_MS],
            ["stream", "stream1", 30],
            ["shield", "s1", [["do", "shielded", "ok", 0, 30], ["sleep", "in shield", 50]]],
            ["do", "slow", "ok", 0, 1_500],
            ["event", "gate", "note", HOUR_MS],
        ],
        [
            ["take", "left over", "order", 2, HOUR_MS],
            ["do", "last", "ok", 0, 20],
        ],
    ],
    cleanup=True,
)
DOOMED = Script(
    [
        [
            ["do", "undo1", "undo", 1, 30],
            ["gather", [["do", "undo2", "undo", 0, 30]], [["do", "broken1", "broken", 0, 60]]],
            ["shield", "s2", [["do", "kept1", "ok", 0, 900], ["do", "kept2", "undo", 0, 20]]],
            ["event", "gate", "note", HOUR_MS],
            ["do", "fork", "ok", 0, 20],
            ["event", "gate2", "note", HOUR_MS],
        ]
    ],
    cleanup=True,
    doomed=True,
)
SHORT = Script([[["do", "again", "ok", 0, 20]]])


@dataclass
class Played:
    """What came of it: `told` is the same in every play."""

    commits: dict[str, int]
    told: list[Any] = field(default_factory=list)
    broken: PromiseBroken | None = None
    crashes: int = 0
    tail: list[str] = field(default_factory=list)


class Play:
    """All of the work in a fresh world.

    Args:
        world: where.
        told: each phase is told here.
    """

    def __init__(self, world: World, told: list[Any]) -> None:
        self.world = world
        self.told = told
        self.clients = Clients(world)

    async def all_of_it(self) -> None:
        """Raises `PromiseBroken`, or `TimeoutError` if something is stuck."""
        world = self.world
        for shard in world.sites:
            world.boot(shard)
        world.open_front_end()
        await self.clients.set_limit("acme", 2)
        await self.clients.deploy("acme", "alpha")
        await asyncio.gather(self._long(), self._doomed())
        until = world.loop.time() + QUIET_S_MAX
        while world.loop.time() < until and world.disk.left_overs(list(world.sites)):
            await asyncio.sleep(5.0)
        world.disk.check_quiet(list(world.sites))
        world.disk.check_sealed(list(world.sites))
        world.promises.raise_broken()

    def _errand(self, id: str, script: Script) -> Errand:
        world = self.world
        claim = world.claims.of("acme", "alpha", id)
        return Errand(claim, [script], world.promises, world.bodies)

    async def _until(self, errand: Errand, is_so: Callable[[InstanceView], bool]) -> InstanceView:
        async with asyncio.timeout(PHASE_S_MAX):
            while True:
                view: InstanceView = await self.clients.look(errand)
                self.world.promises.raise_broken()
                if is_so(view):
                    return view
                await asyncio.sleep(0.1)

    async def _reached(self, errand: Errand, step: str, status: str = "") -> InstanceView:
        """A step has begun, and the instance has that status."""

        def is_so(view: InstanceView) -> bool:
            begun = any(each.name == f"{step}-1" for each in view.steps)
            return begun and status in ("", view.status)

        return await self._until(errand, is_so)

    async def _ended(self, errand: Errand, phase: str) -> None:
        ends = ("complete", "errored", "terminated")
        view = await self._until(errand, lambda view: view.status in ends)
        errand.judge(view)
        self._tell(phase, view)

    def _tell(self, phase: str, view: InstanceView) -> None:
        steps = [_told_of(step) for step in view.steps]
        error = view.error and (view.error.name, _results_in(view.error.data))
        rollback = view.rollback and view.rollback.outcome
        self.told.append(
            [phase, view.status, error, rollback, view.continued, _results_in(view.output), steps]
        )

    async def _do(self, errand: Errand, change: str, **options: Any) -> None:
        await getattr(self.clients, change)(errand, **options)

    async def _long(self) -> None:
        errand, clients = self._errand("all/long", LONG), self.clients
        await clients.create(errand)
        await clients.send_events(errand, "order", 5)
        await self._reached(errand, "slow")
        await clients.pause(errand, "first")
        await self._until(errand, lambda view: view.status == "paused")
        await clients.resume(errand, "first")
        self._tell("waits", await self._reached(errand, "gate", "waiting"))
        self._hibernate()
        await clients.pause(errand, "second")
        await self._until(errand, lambda view: view.status == "paused")
        self._hibernate()
        await clients.resume(errand, "second")
        await clients.send_events(errand, "note", 1)
        await self._ended(errand, "continued, complete")

    async def _doomed(self) -> None:
        errand, clients = self._errand("all/doomed", DOOMED), self.clients
        await clients.create(errand)
        await self._reached(errand, "gate", "waiting")
        await clients.send_events(errand, "note", 1)
        await self._reached(errand, "gate2", "waiting")
        await clients.restart(errand, 1, "fork")
        self._tell("restarted", await self._reached(errand, "gate2", "waiting"))
        await clients.send_events(errand, "note", 1, first=1)
        await self._ended(errand, "restarted from a step, failed, undone")
        await clients.restart(errand, 2, "fork")  # refused: what it would keep is undone
        await self._ended(errand, "not restarted")
        self.world.bodies.restarts_from(errand.run, None)  # the next restarts keep nothing
        await clients.restart(errand, 3)
        await self._reached(errand, "kept1")
        await clients.cancel(errand)
        await self._ended(errand, "restarted, cancelled in a shield")
        await clients.restart(errand, 4)
        await self._reached(errand, "gate", "waiting")
        self._hibernate()
        await clients.terminate(errand, rollback=True)
        await self._ended(errand, "restarted, terminated with rollback")
        await clients.restart(errand, 5)
        await self._reached(errand, "gate", "waiting")
        await clients.terminate(errand)
        await self._ended(errand, "restarted, terminated")
        await clients.live_again(
            "acme", "alpha", "all/again", [DOOMED, LONG, SHORT], goes=True, stirs=False
        )

    def _hibernate(self) -> None:
        for shard in self.world.sites:
            self.world.evict_some(shard, 1.0)


def _told_of(step: StepView) -> list[Any]:
    output = step.output if step.type == "waitForEvent" else _masked(step.output)
    error = step.error and step.error.name
    return [step.name, step.type, step.success, step.finished, output, error]


def _results_in(raw: bytes | None) -> Any:
    """What a run tells at its end. Steps at the same time may end in another order."""
    told = decode_json(raw) if raw else {"seen": [], "events": []}
    return sorted(name for name, _ in told["seen"]), told.get("events")


def _masked(raw: bytes | None) -> str:
    """Tokens number executions, of which a crash makes more: each is the same to us.

    Names of streams go with the tokens in them. Which token is right the promises see to.
    """
    text = re.sub(r'"(sha256|sealed)":"[^"]*"', r'"\1":""', (raw or b"").decode())
    text = re.sub(r'"size":\d+', '"size":""', text)
    return re.sub(r"(?<=[\[,\s])\d+(?=[\],\s])|^\d+$", "#", text)


def play(folder: Path, crash: tuple[str, int, str] | None = None) -> Played:
    """Play it in an empty folder, with a crash at `(shard, commit, outcome)`."""
    world = World(0, folder, LAYOUT)
    if crash is not None:
        shard, commit, outcome = crash
        world.sites[shard].crash_at[commit] = (outcome, DOWN_S)
    played = Played({})
    try:
        world.run(Play(world, played.told).all_of_it())
    except PromiseBroken as broken:
        played.broken = broken
    except TimeoutError:
        played.broken = PromiseBroken("every phase ends", f"not in {PHASE_S_MAX} s")
    finally:
        played.commits = {name: site.commits for name, site in world.sites.items()}
        crashes = ("crash, commit ", "a commit fails, ")
        played.crashes = sum(n for name, n in world.faults.items() if name.startswith(crashes))
        played.tail = world.tail or world.trace.tail()
        played.told.sort(key=lambda phase: phase[0])
        world.close()
    return played
