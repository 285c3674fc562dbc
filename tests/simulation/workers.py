"""Workers: processes of their own for user code, started by a shard's owner and lost by it.

Placement, both ends of a worker and what they say to each other are the real ones; replaced are
the process, its start and the socket between. Frames to a worker take no time, since a body whose
start is on its way when its instance is ended begins all the same, and no check could tell; frames
from it do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from toque.engines import worker_messages as say
from toque.engines.bundle_store import code_missing
from toque.engines.code_host import InProcessCodeHost
from toque.engines.codec_names import seal_of
from toque.engines.placement import PlacedCodeHost
from toque.engines.run_port import Plan, Run, RunHooks
from toque.engines.worker import Worker
from toque.engines.worker_host import WorkerHost, WorkerSettings
from toque.engines.worker_slots import WorkerSlots
from toque.engines.workflow import WorkflowDefinition
from toque.runtime.entropy import Entropy
from toque.runtime.notes import Blame
from toque.runtime.simprocess import SimProcess

if TYPE_CHECKING:
    from toque.testkit.parts import Owner

    from .world import World

Definitions = Callable[[SimProcess], list[WorkflowDefinition]]
_SLOTS = 8
_START_S = 0.6
_READY_S = 0.1
_ANSWER_S = 0.004
"""How long a start takes at most, then the first word, and a frame."""
_APART_S = 1e-6
"""Frames keep their order; what is due at one instant need not."""
_PING_S = 2.0
"""How often it is asked for a sign of life: less often than in earnest, since that costs most."""


@dataclass
class Workers:
    """What a world has of them; without the fault `worker` there are none.

    Attributes:
        trusted: the account whose code runs in its shards' own processes.
        chance: for what their life draws.
        fails: in how many of a hundred starts a worker does not come up.
        begun: by shard.
        blamed: by shard, whose code ended its last owner.
        late: processes that have hung: what they were told to do meanwhile they do late.
        leaving: processes that code has ended: it goes on to its next wait here, and nobody hears.
    """

    trusted: str
    chance: Entropy
    fails: int
    begun: dict[str, list[SimWorkerHost]] = field(default_factory=dict)
    blamed: dict[str, list[Blame]] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)

    def alive(self, shard: str) -> list[SimWorkerHost]:
        """Those of a shard that run."""
        known = self.begun.get(shard, [])
        self.begun[shard] = known = [one for one in known if one.lives]
        return [one for one in known if one.sim is not None]

    def close(self) -> None:
        """End all."""
        for known in self.begun.values():
            for one in known:
                if one.sim is not None:
                    one.sim.kill()


class SimProcessHandle:
    """A worker's process, as its host has it."""

    process = None

    def __init__(self, process: SimProcess) -> None:
        self.sim = process

    def kill(self) -> None:
        """As SIGKILL."""
        self.sim.kill()

    async def end(self) -> None:
        """Kill it."""
        self.kill()


class SimWorkerHost(WorkerHost):
    """The shard's end; only how a process comes up is another one.

    Attributes:
        world, owner, definitions: where it lives, whose it is, what it loads.
    """

    world: World
    owner: Owner
    definitions: Definitions
    sim: SimProcess | None = None
    blamed: list[Blame] | None = None

    @property
    def lives(self) -> bool:
        """It runs, or is about to."""
        return not self._is_over and (self.sim is None or not self.sim.dead)

    async def _start(self) -> None:
        settings, workers = self._settings, self.world.workers
        assert workers is not None
        await settings.slots.acquire(self._account or "")
        self._has_slot = True
        chance = workers.chance
        await asyncio.sleep(_START_S * chance.random())
        if self._is_over:
            return
        if chance.randrange(100) < workers.fails:
            self.world.faults["a worker did not start"] += 1
            self._lose("it did not start, as the simulation decided", [])
            return
        owner, world = self.owner, self.world
        process = self.sim = SimProcess(
            f"{owner.process.name}.{self.name}", world.loop, world.complain
        )
        self._launched = SimProcessHandle(process)
        owner.process.on_death(process.kill)  # it hangs up, and what hangs on it ends
        world.faults["a worker started"] += 1
        world.trace.note("worker", process.name)
        process.enter(self._begin)

    def _begin(self) -> None:
        """In the worker."""
        process, owner, world = self.sim, self.owner, self.world
        assert process is not None
        host = InProcessCodeHost(process, self.definitions(process), inline=True)
        worker = Worker(process, host, world.new_clock())
        worker.seal = seal_of(self._codecs)
        last_s = 0.0

        def answer(frame: bytes) -> None:
            nonlocal last_s
            assert world.workers is not None
            if process.dead or process.name in world.workers.leaving:
                return
            at_s = world.loop.time() + _ANSWER_S * world.workers.chance.random()
            last_s = max(last_s + _APART_S, at_s)
            owner.process.call_at(last_s, self.hear, frame)

        def tell(frame: bytes) -> None:
            process.call_soon(worker.receive, frame)

        worker.send = answer
        owner.process.enter(partial(self._session, tell))
        ready = say.Ready(say.VERSION, 0, None)
        assert world.workers is not None
        process.call_later(_READY_S * world.workers.chance.random(), worker.out.put, ready)

    def die(self, blamed: list[Blame], how: str) -> None:
        """Its process ends; the shard hears of it when it has heard the rest."""
        if self.sim is None or self.sim.dead:
            return
        self.sim.kill()
        self.blamed = blamed
        self.world.faults["a worker ended"] += 1
        self.world.trace.note("worker ends", self.sim.name, how)
        process = self.owner.process
        process.call_later(2 * _ANSWER_S, self._process_ended, how)
        process.call_later(3 * _ANSWER_S, self.hung_up)

    def _ask(self) -> None:
        super()._ask()
        if not self._is_over and self._timer is not None:
            self._timer.cancel()
            self._timer = self._settings.loop.call_later(_PING_S, self._ask)

    def end(self, why: str) -> None:
        """End it, in a process that lives: what is dead only lets go of memory."""
        if self.owner.process.dead:
            self._is_over = True
        super().end(why)

    def _lose(self, why: str, blamed: list[Blame] | None = None) -> None:
        super()._lose(why, blamed if self.blamed is None else self.blamed)


class _Absent:
    """Code that can't be had at times."""

    world: World
    owner: Owner

    def check(self, plan: Plan) -> None:
        """Refuse what the simulation says is not there."""
        if self.world.lacks_code(self.owner.shard, plan.workflow):
            self.world.faults["code could not be loaded"] += 1
            raise code_missing(plan.code_hash, "is not there now, as the simulation decided")


class SimInside(InProcessCodeHost, _Absent):
    """In the shard's process."""

    def open(self, plan: Plan, hooks: RunHooks) -> Run:
        self.check(plan)
        return super().open(plan, hooks)


class SimPlaced(PlacedCodeHost, _Absent):
    """In the shard's process, or in a worker."""

    definitions: Definitions

    def open(self, plan: Plan, hooks: RunHooks) -> Run:
        self.check(plan)
        return super().open(plan, hooks)

    def _code_of(self, plan: Plan, whose: str | None) -> tuple[Any, dict[str, Any]]:
        return self._inside.definition(plan.workflow, plan.class_name), self._bundle

    def _new_host(
        self, kind: str, bundle: dict[str, Any], options: dict[str, Any], **rest: Any
    ) -> SimWorkerHost:
        self._numbers += 1
        name = f"{kind}{self._numbers}"
        rest |= {"broken": self._broken, "ended": self._host_ended}
        host = SimWorkerHost(self._settings, name, bundle, options, **rest)
        host.world, host.owner, host.definitions = self.world, self.owner, self.definitions
        self._hosts.add(host)
        assert self.world.workers is not None
        self.world.workers.begun.setdefault(self.owner.shard, []).append(host)
        return host


def code_host(world: World, owner: Owner, definitions: Definitions) -> SimInside | SimPlaced:
    """For one owner of a shard."""
    process, workers = owner.process, world.workers
    inside = SimInside(process, definitions(process), inline=True)
    inside.world, inside.owner = world, owner
    if workers is None:
        return inside
    settings = WorkerSettings(
        owner.shard,
        "",
        str(world.folder / "no notes"),
        cast(Any, None),
        process,
        owner.clock,
        world.entropy(f"workers of {process.name}"),
        WorkerSlots(_SLOTS, 1),
    )
    blamed = workers.blamed.pop(owner.shard, [])
    host = SimPlaced(inside, trusted=workers.trusted, workers=settings, bundle={}, blamed=blamed)
    host.world, host.owner, host.definitions = world, owner, definitions
    return host
