"""How a shard's owner and a front end are put together in the simulation."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from toque.api.service import ControlPlane
from toque.api.shards import Faults, ShardSettings, open_shard
from toque.engines.env import EngineFaults
from toque.engines.workflow import WorkflowDefinition
from toque.gatekeeper.slots import GatekeeperFaults
from toque.runtime.host import HostFaults
from toque.runtime.ids import EntityRef
from toque.runtime.rpc import Router
from toque.runtime.simloop import LoopClock
from toque.runtime.simprocess import SimProcess
from toque.testkit.store import SimStore, age_in_virtual_time

from .codecs import sealing
from .entities import Book, Till
from .grants import Grants
from .kin import family
from .mistakes import mistaken
from .program import program_entry
from .stores import StoreOfAnyEpoch
from .workers import code_host

if TYPE_CHECKING:
    from toque.testkit.parts import FrontEnd, Owner, Site

    from .world import World

LOST_BIRTHS = 3
"""Of so many creates on V1 one has no Engine."""
WORKFLOWS = ("alpha", "beta", "gamma", "delta")
ASKED: ContextVar[list[EntityRef] | None] = ContextVar("asked", default=None)
"""Which entities were called for what is asked of a front end now."""


class Hooks:
    """Where the bodies of one process report."""

    def __init__(self, world: World, process: SimProcess, owner: Owner | None) -> None:
        self._world = world
        self._process = process
        self.owner = owner

    @property
    def _fenced(self) -> bool:
        return self.owner is not None and self.owner.fenced

    def begin(
        self, run: str, life: str, step: str, attempt: int, seen: list[Any], once: bool
    ) -> int:
        world, name = self._world, self._process.name
        world.bodies.seen(run, [(step_name, token) for step_name, token in seen if token], life)
        is_late = world.is_late(self._process)
        if self.owner is not None and not self._fenced and not is_late:
            world.promises.hold(
                "user code runs only in a slot",
                world.disk.is_running(run),
                f"{run} {step}: attempt {attempt} began on {name}, its row is not running",
            )
            world.promises.hold(
                "what is deleted runs no more", run not in world.deleted, run, step, name
            )
        now_s = world.loop.time()
        token = world.bodies.begin(
            (run, life, step, attempt), name, now_s, once, fenced=self._fenced, late=is_late
        )
        world.trace.note("body", name, run, step, attempt, "is", token)
        return token

    def undoing(self, run: str, life: str, step: str, output: Any) -> None:
        if output is not None:
            self._world.bodies.seen(run, [(step, output)], life)

    def holds(self, lasts_s: float) -> None:
        self._world.block(self._process, lasts_s)

    def hangs(self, is_deaf: bool) -> None:
        what = "ignores its cancel" if is_deaf else "hangs"
        self._world.faults[f"user code {what}"] += 1

    def exits(self, run: str) -> None:
        assert self.owner is not None
        self._world.exit(self.owner, self._process, run)

    def executed(self, run: str) -> int:
        self._world.executed[run] += 1
        return self._world.executed[run]

    def lives(self, run: str, life: str) -> None:
        if not self._fenced:
            self._world.kin.lives(run, life)

    def heard(self, run: str, life: str, name: str, child: str, told: Any) -> None:
        if not self._fenced:
            self._world.kin.heard(run, life, name, child, told)

    def end(self, token: int) -> None:
        self._world.bodies.end(token, self._world.loop.time())
        self._world.trace.note("body ends", self._process.name, token)


def build_owner(world: World, site: Site, process: SimProcess) -> Owner:
    """A new owner of a shard, running."""
    owner = world.new_owner(site.name, process)
    own = Hooks(world, process, None)

    def definitions(where: SimProcess) -> list[WorkflowDefinition]:
        hooks = own if where is process else Hooks(world, where, owner)
        entry = program_entry(hooks)
        programs = [WorkflowDefinition(name, "Program", entry, "v1") for name in WORKFLOWS]
        return [*programs, mistaken(hooks), family(hooks)]

    opened = process.enter(
        lambda: open_shard(
            site.name,
            world.path_of(site.name),
            _settings(world, site),
            loop=process,
            clock=owner.clock,
            entropy=world.entropy(f"owner {process.name}"),
            links=world.network.links_of(process),
            code_host=code_host(world, owner, definitions),
            on_broken=lambda error: world.broken(owner, error),
        )
    )
    assert isinstance(opened.store, SimStore)
    owner.take(opened, opened.store)
    own.owner = owner
    if opened.streams is not None:
        age_in_virtual_time(opened.streams, world.loop)
    else:
        Grants(owner, world.promises)
    _watch_calls(world, owner)
    world.network.serve(site.name, process, opened.server)
    return owner


def _settings(world: World, site: Site) -> ShardSettings:
    layout, sabotage = world.layout, world.sabotage
    faults = Faults(
        HostFaults(no_output_gate=sabotage.no_output_gate),
        EngineFaults(sabotage.unfenced_attempts, sabotage.no_announce_alarm),
        GatekeeperFaults(grant_outside_ledger=sabotage.grant_outside_ledger),
        lost_births=LOST_BIRTHS,
    )
    return ShardSettings(
        world.placement,
        running_max=layout.limit,
        souschefs=layout.souschefs,
        gatekeeper_calls=layout.gatekeeper_calls,
        spread=layout.spread,
        v1=(max(2, layout.limit - 1), 1_000),
        writer="inline",
        commit_delay=lambda: world.commit_delay(site),
        objects=(Till, Book),
        codecs=sealing(),
        synchronous="OFF",
        store=StoreOfAnyEpoch if sabotage.no_epoch_check else SimStore,
        faults=faults,
    )


def _watch_calls(world: World, owner: Owner) -> None:
    """Have the calls to Gatekeepers counted as they leave."""
    router = owner.opened.router
    send = router.send

    def observed(ref: EntityRef, method: str, args: bytes, *rest: Any, **options: Any) -> None:
        if method == "cycle":
            world.gatekeeper_called(owner, args)
        send(ref, method, args, *rest, **options)

    router.send = observed


def build_front_end(world: World, front: FrontEnd) -> None:
    """Fill in a front end: its router and its control plane."""
    process = front.process
    front.router = Router(world.placement, world.network.links_of(process), process)
    call = front.router.call

    def noted(ref: EntityRef, *args: Any, **options: Any) -> Any:
        if (asked := ASKED.get()) is not None:
            asked.append(ref)
        return call(ref, *args, **options)

    front.router.call = noted
    front.plane = ControlPlane(
        front.router,
        world.placement,
        LoopClock(world.loop),
        world.entropy(f"front end {front.name}"),
    )
