"""One run: what a seed decides, played to its end, and judged.

A run has three parts: faults and work together; then the faults stop, and everything that was
acknowledged must end within `HEAL_S_MAX`; then nothing may be left over within `QUIET_S_MAX`.
Which faults a seed has is drawn too (most seeds have some of them only: faults hide each other).
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from toque.runtime import limits
from toque.runtime.entropy import Entropy
from toque.runtime.simnet import Weather

from .clients import Clients, GivenUp
from .focus import EVERYTHING, Focus
from .making import ProgramMaker, forks_of, waits_of
from .parts import Layout, Sabotage
from .program import EVENT_TYPES
from .promises import PromiseBroken
from .verdict import Errand
from .world import World

FAULTS_S = 40.0
HEAL_S_MAX = 240.0
QUIET_S_MAX = 120.0 + limits.DELETION_REMEMBERED_MS / 1000
"""The last tombstones go when their requests are forgotten."""
EVENTS_MAX = 50_000
"""Ten times what a run takes."""

SUDDEN = ("crash", "all", "zombie", "pause", "front", "stall", "disk", "evict", "reset", "clock")
"""Faults that happen at some instant."""
FEATURES = (*SUDDEN, "loss", "repeat", "tail", "limit", "workflow limit")


@dataclass
class Report:
    """What a run was like."""

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

    def describe(self) -> str:
        """A failure, to be read."""
        lines = "\n".join(self.tail)
        return f"{lines}\nseed {self.seed} broke a promise: {self.broken}"


@dataclass
class Plan:
    """What a seed decides beforehand.

    Attributes:
        features: which faults it has.
        instances: how many instances clients want.
        accounts, workflows: of how many accounts, with how many workflows each.
    """

    layout: Layout
    features: frozenset[str]
    instances: int
    accounts: list[str]
    workflows: list[str]


def plan_of(entropy: Entropy, focus: Focus = EVERYTHING) -> Plan:
    """The plan of a seed."""
    draw = entropy.randrange
    drawn = frozenset(name for name in FEATURES if draw(100) < 35)
    plan = Plan(
        layout=Layout(
            data_shards=2 + draw(2),
            control_shards=1 + draw(2),
            front_ends=1 + draw(2),
            limit=focus.limit or 3 + draw(8),
            souschefs=1 + draw(3),
            commit_ms=focus.commit_ms or (0.5, 2.0, 8.0)[draw(3)],
        ),
        features=drawn if focus.faults is None else focus.faults,
        instances=focus.instances or 10 + draw(33),
        accounts=["acme", "zeta"][: 1 + draw(2)],
        workflows=["alpha", "beta", "gamma"][: 1 + draw(3)],
    )
    bounds = {"gatekeeper_calls": 8 + draw(30), "spread": (1 + draw(4), 3 + draw(6))}
    return replace(plan, layout=replace(plan.layout, **bounds))


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
        self.entropy = world.entropy("run")
        self.clients = Clients(world, 0.1 if "front" in plan.features else 0.02)
        self.errands: list[Errand] = []

    # --- the parts --------------------------------------------------------------------------

    async def play(self) -> None:
        """All of it; raises `PromiseBroken`."""
        world = self.world
        for shard in world.sites:
            world.boot(shard)
        for _ in range(world.layout.front_ends):
            world.open_front_end()
        for account in self.plan.accounts:
            await self.clients.set_limit(account, world.layout.limit)
            for workflow in self.plan.workflows:
                await self.clients.deploy(account, workflow)
                if "workflow limit" in self.plan.features:
                    most = 1 + self.entropy.randrange(4)
                    await self.clients.set_workflow_limit(account, workflow, most)
        self._weather()
        if not self.plan.features - {"limit", "workflow limit", "repeat"}:
            world.disk.calm_since_s = 0.0
        work = [asyncio.ensure_future(self._errand(n)) for n in range(self.plan.instances)]
        work.append(asyncio.ensure_future(self._batch(f"batch{self.world.seed}")))
        work += [asyncio.ensure_future(task) for task in self._side_work()]
        work += [asyncio.ensure_future(self._lives(number)) for number in range(3)]
        faults = asyncio.ensure_future(self._faults())
        await self._watch(faults, FAULTS_S * 3)
        self._heal()
        everything = asyncio.gather(*work)
        await self._watch(everything, HEAL_S_MAX, "an acknowledged create ends")
        await self._settle()
        for errand in self.errands:
            await self._judge(errand)
        for account in self.plan.accounts:
            for workflow in self.plan.workflows:
                await self.clients.list_all(account, workflow)
        world.promises.raise_broken()

    def _weather(self) -> None:
        on, worse = self.plan.features, self.focus.weather
        self.world.network.weather = Weather(
            delay_ms=(0.3, 2.0, 20.0)[self.entropy.randrange(3)],
            tail=0.02 * worse if "tail" in on else 0.0,
            loss=0.004 * worse if "loss" in on else 0.0,
            stall=0.003 * worse if "stall" in on else 0.0,
            repeat=0.05 * worse if "repeat" in on else 0.0,
        )

    def _heal(self) -> None:
        self.world.disk.check_sealed(list(self.world.sites))
        self.world.heal()
        self.world.disk.calm_since_s = self.world.loop.time()
        self.clients.impatience = 0.0

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
        world.disk.check_sealed(list(world.sites))
        world.promises.raise_broken()

    async def _judge(self, errand: Errand) -> None:
        view = await self.clients.look(errand)
        if errand.claim.acked and view is not None:
            errand.judge(view, true_clocks="clock" not in self.plan.features)
        self.world.promises.raise_broken()

    # --- work -------------------------------------------------------------------------------

    async def _errand(self, number: int) -> None:
        """What clients do about one instance."""
        draw = self.entropy.randrange
        world, clients = self.world, self.clients
        account = self.plan.accounts[draw(len(self.plan.accounts))]
        workflow = self.plan.workflows[draw(len(self.plan.workflows))]
        maker = ProgramMaker(self.entropy, focus=self.focus)
        scripts = [maker.script() for _ in range(1 + (draw(10) == 0))]
        claim = world.claims.of(account, workflow, f"job/{number}")
        errand = Errand(claim, scripts, world.promises, world.bodies)
        self.errands.append(errand)
        start_s, dies = self.entropy.random() * 30, draw(12) == 0
        looks = self.focus.meets("look", 4, self.entropy)
        again, dies_s = draw(8) == 0, self.entropy.random() * 12
        meets, entropy = self.focus.meets, self.entropy
        pauses, cancels = draw(5) == 0, meets("cancel", 7, entropy)
        undoes, restarts = meets("undo", 14, entropy), meets("restart", 7, entropy)
        waits = waits_of(scripts[0].ops)
        events = {kind: draw(waits + 2) if waits else 0 for kind in EVENT_TYPES}
        await asyncio.sleep(start_s)
        creates = [_quietly(clients.create(errand, n)) for n in range(len(scripts))]
        if again:
            creates.append(_quietly(clients.create(errand)))
        await asyncio.gather(*creates)
        also = [clients.send_events(errand, kind, n) for kind, n in events.items() if n]
        if looks:
            also.append(self._look_around(errand))
        if dies:
            also.append(_after(dies_s, partial(clients.terminate, errand)))
        if pauses:
            pause = partial(clients.pause_a_while, errand, stubborn=restarts)
            also.append(_after(dies_s / 2, pause))
        if cancels:
            also.append(_after(dies_s, partial(clients.cancel, errand)))
        if undoes:
            also.append(_after(dies_s, partial(clients.terminate, errand, rollback=True)))
        if restarts and errand.claim.acked:
            also.append(self._restart(errand))
        await asyncio.gather(clients.wait(errand), *also)
        if errand.claim.restarts:
            await clients.wait(errand)

    async def _restart(self, errand: Errand) -> None:
        """Once or twice from the start, or once from a step; early, or when it has ended."""
        draw = self.entropy.randrange
        forks = forks_of(errand.script)
        if forks and draw(2):
            await self._early_or_late(errand)
            await self.clients.restart(errand, 1, forks[draw(len(forks))][0])
            return
        for number in range(1 + draw(2)):
            await self._early_or_late(errand)
            await self.clients.restart(errand, number)

    async def _early_or_late(self, errand: Errand) -> None:
        if self.entropy.randrange(2):
            await self.clients.wait(errand)
        await asyncio.sleep(self.entropy.random() ** 2 * 10)

    async def _batch(self, batch: str) -> None:
        """Several instances by one request."""
        draw = self.entropy.randrange
        account = self.plan.accounts[draw(len(self.plan.accounts))]
        workflow = self.plan.workflows[draw(len(self.plan.workflows))]
        maker = ProgramMaker(self.entropy, size=2)
        errands = []
        for n in range(2 + draw(5)):
            claim = self.world.claims.of(account, workflow, f"{batch}/{n}")
            errands.append(Errand(claim, [maker.script()], self.world.promises, self.world.bodies))
        self.errands += errands
        await asyncio.sleep(self.entropy.random() * 30)
        await self.clients.create_batch(errands, batch)
        await asyncio.gather(*(self.clients.wait(errand) for errand in errands))

    async def _lives(self, number: int) -> None:
        """An id that is deleted and used again."""
        draw = self.entropy.randrange
        account = self.plan.accounts[draw(len(self.plan.accounts))]
        workflow = self.plan.workflows[draw(len(self.plan.workflows))]
        maker = ProgramMaker(self.entropy, size=3)
        scripts = [maker.script() for _ in range(2 + draw(2))]
        await asyncio.sleep(self.entropy.random() * 25)
        goes = draw(2) == 0
        await self.clients.live_again(account, workflow, f"lives/{number}", scripts, goes=goes)

    async def _look_around(self, errand: Errand) -> None:
        for _ in range(5):
            await asyncio.sleep(self.entropy.random() * 6)
            await self.clients.look(errand)

    def _side_work(self) -> list[Awaitable[None]]:
        found: list[Awaitable[None]] = []
        account = self.plan.accounts[0]
        for n in range(3):
            workflow = self.plan.workflows[n % len(self.plan.workflows)]
            found.append(_after(10.0 + 10 * n, partial(self.clients.list_all, account, workflow)))
        if "limit" in self.plan.features:
            found.append(self._change_limits(account))
        return found

    async def _change_limits(self, account: str) -> None:
        for _ in range(5):
            await asyncio.sleep(4 + self.entropy.random() * 10)
            self.world.faults["limit changed"] += 1
            await self.clients.set_limit(account, 1 + self.entropy.randrange(10))

    # --- faults -----------------------------------------------------------------------------

    async def _faults(self) -> None:
        """Let faults befall the world at random times."""
        on = self.plan.features
        kinds = [name for name in SUDDEN if name in on]
        until = FAULTS_S
        while True:
            await asyncio.sleep(0.5 + self.entropy.random() * self.focus.gap_s)
            if self.world.loop.time() > until:
                return
            if kinds:
                getattr(self, f"_fault_{kinds[self.entropy.randrange(len(kinds))]}")()

    def _shard(self) -> str:
        names = list(self.world.sites)
        return names[self.entropy.randrange(len(names))]

    def _down_s(self) -> float:
        return 1.0 + self.entropy.random() ** 2 * self.focus.down_s

    def _fault_crash(self) -> None:
        """At one of the next commits, which is then lost or kept."""
        site = self.world.sites[self._shard()]
        outcome = ("lost", "kept")[self.entropy.randrange(2)]
        at = site.commits + 1 + self.entropy.randrange(30)
        site.crash_at[at] = (outcome, self._down_s())

    def _fault_disk(self) -> None:
        """One of the next commits is reported as failed, after the fact or before."""
        site = self.world.sites[self._shard()]
        outcome = ("fails, lost", "fails, kept")[self.entropy.randrange(2)]
        at = site.commits + 1 + self.entropy.randrange(30)
        site.crash_at[at] = (outcome, self._down_s())

    def _fault_evict(self) -> None:
        for shard in self.world.sites:
            self.world.evict_some(shard, 0.7)

    def _fault_reset(self) -> None:
        self.world.reset_one(self._shard())

    def _fault_clock(self) -> None:
        self.world.step_clock(self._shard(), self.entropy.randrange(6_001) - 3_000)

    def _fault_all(self) -> None:
        self.world.crash_all(self._down_s())

    def _fault_zombie(self) -> None:
        """A second owner while the first works on."""
        self.world.usurp(self._shard(), 0.01, 0.0, self.entropy.random() * 20)

    def _fault_pause(self) -> None:
        """The owner hangs, is followed, and wakes; or wakes before anyone has come."""
        hang_s, rest_s = self.entropy.random() * 10, self.entropy.random() * 10
        self.world.usurp(self._shard(), hang_s, 0.01 + rest_s, self.entropy.random() * 15)

    def _fault_front(self) -> None:
        self.world.crash_front_end(self.entropy.randrange(8))

    def _fault_stall(self) -> None:
        """Nothing gets through between two processes for a while."""
        owners = [site.owner for site in self.world.sites.values() if site.owner is not None]
        names = [owner.process.name for owner in owners]
        names += [front.name for front in self.world.fronts]
        source = names[self.entropy.randrange(len(names))]
        until = self.world.loop.time() + self.entropy.random() * 15
        self.world.network.block(source, self._shard(), until)


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except GivenUp:
        pass


async def _after(delay_s: float, work: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(delay_s)
    await work()


def run_seed(
    seed: int,
    folder: Path,
    sabotage: Sabotage | None = None,
    echo: Callable[[str], None] | None = None,
    ignored: frozenset[str] = frozenset(),
    focus: Focus = EVERYTHING,
) -> Report:
    """Play one seed in an empty folder; never raises for a broken promise, but reports it."""
    began = time.process_time()
    plan = plan_of(World.entropy_of(seed, "plan"), focus)
    world = World(seed, folder, plan.layout, sabotage, echo, ignored)
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
        report.tail = world.tail or world.trace.tail()
        report.instances = len(world.claims.acknowledged)
        report.bodies = len(world.bodies.executions)
        report.running_max = world.disk.running_max
        report.faults, report.checked = world.faults, world.promises.checked
        world.close()
    report.cpu_s = time.process_time() - began
    return report
