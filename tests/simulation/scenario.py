"""One run: what a seed decides, played to its end, and judged.

A run has three parts: faults and work together; then the faults stop, and everything that was
acknowledged must end within `HEAL_S_MAX`; then nothing may be left over within `QUIET_S_MAX`.
Which faults a seed has is drawn too, and which work: most seeds have some of each only, since
faults hide each other. What there is stands in `faults` and `work`.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toque.runtime import limits
from toque.runtime.entropy import Entropy
from toque.runtime.simnet import Weather

from .clients import Clients
from .faults import FAULTS
from .faults.base import Strike
from .focus import EVERYTHING, Focus
from .making import Script
from .parts import Layout, Sabotage
from .promises import PromiseBroken
from .verdict import Errand
from .work import ITEMS
from .world import World

FAULTS_S = 40.0
HEAL_S_MAX = 240.0
QUIET_S_MAX = 120.0 + limits.DELETION_REMEMBERED_MS / 1000
"""The last tombstones go when their requests are forgotten."""
_HOW_BAD = (0.0, 0.4, 0.8, 0.8, 1.2, 1.2, 1.6, 2.0)
"""How many faults seeds have, relative to what each fault says of itself."""
_DELETED = "deleted by a client"
EVENTS_MAX = 60_000
"""Ten times what a run takes."""


@dataclass
class Report:
    """What a run was like; `parts`: those that took place."""

    seed: int
    digest: str = ""
    events: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    instances: int = 0
    bodies: int = 0
    running_max: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    broken: PromiseBroken | None = None
    tail: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """A failure, to be read."""
        lines = "\n".join(self.tail)
        return f"{lines}\nseed {self.seed} broke a promise: {self.broken}"


@dataclass
class Plan:
    """What a seed decides beforehand.

    Attributes:
        faults, work: which it has.
        instances: how many instances clients want.
        accounts, workflows: of how many accounts, with how many workflows each.
    """

    layout: Layout
    faults: list[str]
    work: list[str]
    instances: int
    accounts: list[str]
    workflows: list[str]

    @property
    def is_calm(self) -> bool:
        """Nothing disturbs the order in which things happen."""
        return all(FAULTS[name].is_calm for name in self.faults)

    @property
    def has_true_clocks(self) -> bool:
        """Recorded times can be compared."""
        return not {"clock", "drift"}.intersection(self.faults)


def plan_of(seed: int, focus: Focus = EVERYTHING) -> Plan:
    """The plan of a seed. Each fault and each work item is drawn apart from the others."""

    bad = _HOW_BAD[World.entropy_of(seed, "how bad").randrange(len(_HOW_BAD))]

    def has(name: str, part_of: float) -> bool:
        return World.entropy_of(seed, f"has {name}").randrange(100) < part_of

    draw = World.entropy_of(seed, "plan").randrange
    given = focus.faults
    layout = Layout(
        data_shards=1 + draw(3),
        control_shards=1 + draw(2),
        front_ends=1 + draw(2),
        limit=focus.limit or 3 + draw(8),
        souschefs=focus.souschefs or 1 + draw(3),
        commit_ms=focus.commit_ms or (0.5, 2.0, 8.0)[draw(3)],
        gatekeeper_calls=focus.calls or 8 + draw(30),
        spread=(1 + draw(4), 3 + draw(6)),
    )
    return Plan(
        layout,
        [
            n
            for n, f in FAULTS.items()
            if (has(n, bad * f.part_of) if given is None else n in given)
        ],
        [n for n, w in ITEMS.items() if n in focus.work or has(f"work {n}", w.part_of)],
        instances=focus.instances or 6 + draw(25),
        accounts=["acme", "zeta"][: 1 + draw(2)],
        workflows=["alpha", "beta", "gamma"][: 1 + draw(3)],
    )


class Run:
    """Plays one seed.

    Args:
        world: fresh.
        plan: what the seed decided.
        focus: what it is full of.
    """

    def __init__(self, world: World, plan: Plan, focus: Focus = EVERYTHING) -> None:
        self.world = world
        self.plan = plan
        self.focus = focus
        self.errands: list[Errand] = []
        self.modes = tuple(mode for name in plan.faults for mode in FAULTS[name].modes)
        self.items = [ITEMS[name](self) for name in plan.work]

    # --- what work items use ----------------------------------------------------------------

    def chance(self, part: str) -> Entropy:
        """A generator for one part."""
        return self.world.entropy(part)

    def any_workflow(self, chance: Entropy) -> tuple[str, str]:
        """An account, and a workflow of it."""
        draw, plan = chance.randrange, self.plan
        account = plan.accounts[draw(len(plan.accounts))]
        return account, plan.workflows[draw(len(plan.workflows))]

    def errand(self, account: str, workflow: str, id: str, scripts: list[Script]) -> Errand:
        """An instance that clients want; it is judged in the end."""
        world = self.world
        claim = world.claims.of(account, workflow, id)
        world.ids[account, workflow].add(id)
        errand = Errand(claim, scripts, world.promises, world.bodies)
        self.errands.append(errand)
        return errand

    # --- the parts --------------------------------------------------------------------------

    async def play(self) -> None:
        """All of it; raises `PromiseBroken`."""
        world, plan = self.world, self.plan
        for name in plan.faults:
            fault = FAULTS[name]
            # What steps do by a fault's modes needs what it begins, so that is never left out.
            if fault.begins is not None and (fault.modes or world.switches.on(f"fault {name}")):
                fault.begins(world, self.chance(f"fault {name}"))
        for shard in world.sites:
            world.boot(shard)
        for _ in range(world.layout.front_ends):
            world.open_front_end()
        clients = Clients(world, "set-up")
        for account in plan.accounts:
            await clients.set_limit(account, world.layout.limit)
            for workflow in plan.workflows:
                await clients.deploy(account, workflow)
        for item in self.items:
            await item.prepare()
        self._weather()
        world.impatience = 0.1 if "front" in plan.faults else 0.02
        if plan.is_calm:
            world.disk.calm_since_s = 0.0
        work = [asyncio.ensure_future(task) for item in self.items for task in item.begin()]
        faults = asyncio.ensure_future(self._faults())
        await self._watch(faults, FAULTS_S * 3)
        self._heal()
        await self._watch(asyncio.gather(*work), HEAL_S_MAX, "an acknowledged create ends")
        await self._settle()
        for errand in self.errands:
            await self._judge(errand)
        for item in self.items:
            await item.judge()
            world.promises.raise_broken()

    def _weather(self) -> None:
        world, chance = self.world, self.chance("weather")
        weather = Weather(delay_ms=(0.3, 2.0, 20.0)[chance.randrange(3)])
        for name in self.plan.faults:
            worsen = FAULTS[name].weather
            if worsen is not None and world.switches.on(f"weather {name}"):
                worsen(weather, self.focus.weather)
        world.network.weather = weather

    def _heal(self) -> None:
        self.world.disk.check_sealed(list(self.world.sites))
        self.world.heal()
        self.world.disk.calm_since_s = self.world.loop.time()
        self.world.impatience = 0.0

    async def _watch(self, work: asyncio.Future[Any], within_s: float, promise: str = "") -> None:
        """Wait for `work`; raise as soon as a promise breaks or it takes too long."""
        world = self.world
        until = world.loop.time() + within_s
        while not work.done():
            await asyncio.wait([work], timeout=0.5)
            world.promises.raise_broken()
            if world.trace.events > EVENTS_MAX:
                raise PromiseBroken("a run comes to an end", f"{EVENTS_MAX} events")
            if world.loop.time() > until:
                late = [e.id for e in self.errands if e.claim.acked and e.claim.final is None]
                raise PromiseBroken(promise, f"{within_s} s after the faults: {late}")
        work.result()

    async def _settle(self) -> None:
        """Wait until nothing is left over."""
        world = self.world
        until = world.loop.time() + QUIET_S_MAX
        pause_s = 1.0
        while world.loop.time() < until and world.disk.left_overs(list(world.sites)):
            await asyncio.sleep(pause_s)
            pause_s = min(20.0, pause_s * 1.2)
            world.promises.raise_broken()
        world.note_spreads()
        world.disk.check_quiet(list(world.sites))
        more = sum(errand.claim.restarts for errand in self.errands) + world.faults[_DELETED]
        more += world.stirred
        is_sure = self.plan.is_calm
        world.disk.counts.check_ends(list(world.sites), more if is_sure else None)
        world.disk.check_sealed(list(world.sites))
        world.promises.raise_broken()

    async def _judge(self, errand: Errand) -> None:
        view = await Clients(self.world, f"judge {errand.id}").look(errand)
        if errand.claim.acked and view is not None:
            errand.judge(view, true_clocks=self.plan.has_true_clocks)
        self.world.promises.raise_broken()

    # --- faults -----------------------------------------------------------------------------

    async def _faults(self) -> None:
        """Let faults befall the world at random times."""
        chance = self.chance("faults")
        kinds = [FAULTS[name] for name in self.plan.faults if FAULTS[name].befalls is not None]
        number = 0
        while True:
            await asyncio.sleep(0.5 + chance.random() * self.focus.gap_s)
            if self.world.loop.time() > FAULTS_S:
                return
            if not kinds:
                continue
            fault = kinds[chance.randrange(len(kinds))]
            number += 1
            part = f"fault {number}: {fault.name}"
            if fault.befalls is not None and self.world.switches.on(part):
                fault.befalls(Strike(self.world, self.chance(part), self.focus))


def run_seed(
    seed: int,
    folder: Path,
    sabotage: Sabotage | None = None,
    echo: Callable[[str], None] | None = None,
    ignored: frozenset[str] = frozenset(),
    focus: Focus = EVERYTHING,
    only: Iterable[str] | None = None,
) -> Report:
    """Play one seed in an empty folder; never raises for a broken promise, but reports it."""
    began = time.process_time()
    plan = plan_of(seed, focus)
    world = World(seed, folder, plan.layout, sabotage, echo, ignored, only)
    report = Report(seed)
    try:
        world.run(Run(world, plan, focus).play())
    except PromiseBroken as broken:
        report.broken = broken
    except Exception:
        report.broken = PromiseBroken("no client meets an unknown error", traceback.format_exc())
    finally:
        report.virtual_s = world.loop.time()
        report.digest, report.events = world.trace.digest(), world.trace.events
        report.tail = world.tail or (world.trace.tail() if report.broken else [])
        report.instances = len(world.claims.acknowledged)
        report.bodies = len(world.bodies.executions)
        report.running_max = world.disk.running_max
        report.parts = list(world.switches.met)
        report.faults, report.checked = world.faults, world.promises.checked
        world.close()
    report.cpu_s = time.process_time() - began
    return report
