"""The simulated world of a user's test: their workflows in one shard of instances and one of
control, one account, and one front end that the test itself talks to.

A commit may be chosen at which the owner of its shard dies (`crash_at_commit`); what a seed
decides comes on top. Nothing of it may show: if toque breaks one of its own promises the
simulation ends with `SimulationFault`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ..api.service import ControlPlane
from ..api.shards import ShardSettings, open_shard
from ..api.wiring import DEFAULT_ACCOUNT
from ..engines.journal import INSTANCES
from ..engines.workflow import WorkflowDefinition
from ..gatekeeper.planes import Plane
from ..runtime.alarms import ALARMS
from ..runtime.entity import DurableObject
from ..runtime.errors import SystemFault
from ..runtime.ids import Placement, split_engine_key
from ..runtime.rpc import Router
from ..runtime.simloop import LoopClock
from ..runtime.simprocess import SimProcess
from ..runtime.tables import Query
from .bodies import SimCodeHost, Stage
from .errors import SimulationFault
from .mishaps import Fates, Mishaps
from .parts import FrontEnd, Owner, Site
from .skipping import SkippingLoop
from .store import SimStore, age_in_virtual_time
from .story import Story
from .world import SimWorld

_STATUSES = Query("testkit_statuses", f"SELECT entity, status FROM {INSTANCES.name}")
_NEXT_ALARM = Query("testkit_next_alarm", f"SELECT min(due_ms) FROM {ALARMS.name}")
_log = logging.getLogger("toque.testing")
_COMMIT_S = 0.001
_TRACE_LINES = 60


class UsersWorld(SimWorld):
    """See the module.

    Args:
        seed: decides everything.
        folder: for files; empty.
        definitions, objects: the users' workflows and entities.
        start_ms: the wall clock's first reading.
        mishaps: what befalls the shards.

    Attributes:
        stage: where bodies run.
        story: what happened.
        statuses: of each instance by its Engine's key, as on disk.
        commits: how many were made, or were to be made when an owner died.
        crash_at_commit: at which of them one dies, whether it is kept, and for how long the
            shard is down then.
        watcher: called after each commit.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        definitions: Sequence[WorkflowDefinition],
        objects: Sequence[type[DurableObject]],
        start_ms: int,
        mishaps: Mishaps,
    ) -> None:
        shards = folder / "shards"
        shards.mkdir()
        loop = SkippingLoop()
        loop.next_alarm_s = self._next_alarm_s
        super().__init__(
            seed,
            shards,
            Placement(1, 1),
            loop,
            kept=_TRACE_LINES,
        )
        self.clock = LoopClock(self.loop, start_ms)
        self.story = Story(self.clock.now_ms)
        self.names: dict[str, str] = {}
        self.stage = Stage(lambda uuid: self.names.get(uuid, uuid), self.story.tell)
        self.statuses: dict[str, str] = {}
        self.commits = 0
        self.crash_at_commit: tuple[int, bool, float] | None = None
        self.watcher: Callable[[], None] = lambda: None
        self.problem: SimulationFault | None = None
        self.is_calm = True
        self._start_ms = start_ms
        self._definitions = definitions
        self._objects = objects
        self._mishaps = mishaps
        self._fates = Fates(mishaps, self.entropy("mishaps"), self.entropy("order"))
        self.stage.pause_s = self._fates.body_s

    def befall(self) -> None:
        """From now on mishaps happen."""
        self.is_calm = False
        self.network.weather = self._mishaps.weather

    # --- shards and the front end -----------------------------------------------------------

    def build_owner(self, site: Site, process: SimProcess) -> Owner:
        owner = Owner(site.name, process, LoopClock(self.loop, self._start_ms))
        settings = ShardSettings(
            self.placement,
            writer="inline",
            commit_delay=lambda: _COMMIT_S,
            objects=self._objects,
            synchronous="OFF",
            store=SimStore,
        )
        opened = process.enter(
            lambda: open_shard(
                site.name,
                self.path_of(site.name),
                settings,
                loop=process,
                clock=owner.clock,
                entropy=self.entropy(f"owner {process.name}"),
                links=self.network.links_of(process),
                code_host=SimCodeHost(process, self._definitions, self.stage, process.name),
                on_broken=lambda error: self.broken(owner, error),
            )
        )
        assert isinstance(opened.store, SimStore)
        owner.take(opened, opened.store)
        if opened.streams is not None:
            age_in_virtual_time(opened.streams, self.loop)
        self.network.serve(site.name, process, opened.server)
        return owner

    def build_front_end(self, front: FrontEnd) -> None:
        process = front.process
        front.router = Router(self.placement, self.network.links_of(process), process)
        entropy = self.entropy(f"front end {front.name}")
        front.plane = ControlPlane(front.router, self.placement, self.clock, entropy)

    async def deploy(self, plane: ControlPlane, on: Plane | None = None) -> None:
        """Make the account and register the workflows."""
        await plane.accounts.ensure_account(DEFAULT_ACCOUNT, on)
        for one in self._definitions:
            named = (one.code_hash, one.name, one.class_name)
            await plane.deploys.take_workflow(DEFAULT_ACCOUNT, "test", *named)
            found = await plane.get_workflow(DEFAULT_ACCOUNT, one.name)
            self.names[found.record.uuid] = one.name

    def _next_alarm_s(self) -> float:
        """When the next alarm of a shard is due, as the loop counts; see `SkippingLoop`."""
        found = [math.inf]
        for site in self.sites.values():
            if site.owner is None or site.owner.store.broken is not None:
                return -math.inf
            ((due_ms,),) = site.owner.store.query_now(_NEXT_ALARM)
            found += [] if due_ms is None else [(due_ms - self._start_ms) / 1000]
        return min(found)

    def has_letters(self) -> bool:
        """Whether an instance has told another one what that has not taken."""
        owners = [self.sites[name].owner for name in self.placement.data_names()]
        return any(one is None or one.opened.host.outbox.waiting for one in owners)

    # --- what happens -----------------------------------------------------------------------

    def next_fate(self, site: Site) -> tuple[str, float] | None:
        self.commits += 1
        chosen = self.crash_at_commit
        if chosen is not None and chosen[0] == self.commits:
            outcome = "kept" if chosen[1] else "lost"
            when = "after" if chosen[1] else "before"
            self.story.tell(f"CRASH of shard {site.name} just {when} commit {self.commits} is made")
            return outcome, chosen[2]
        if self.is_calm:
            return None
        fate = self._fates.crash()
        if fate is not None:
            self.story.tell(f"CRASH of shard {site.name} at commit {self.commits}, it is {fate[0]}")
            return fate
        pause = self._fates.pause()
        if pause is not None:
            self.story.tell(f"shard {site.name} hangs, and another owner takes it over")
            self.loop.call_soon(self.usurp, site.name, *pause)
        return None

    def booted(self, owner: Owner) -> None:
        life = self.sites[owner.shard].lives
        if life > 1:
            self.story.tell(f"shard {owner.shard} is open again, epoch {owner.store.epoch}")

    def on_disk(self, shard: str, tables: Collection[str] | None = None) -> None:
        owner = self.sites[shard].owner
        has_changed = shard.startswith("d") and (tables is None or INSTANCES.name in tables)
        if has_changed and owner is not None and owner.store.broken is None:
            self._look(owner)
        self.watcher()

    def let_go(self, shard: str) -> None:
        """Nothing is open but what owners have."""

    def _look(self, owner: Owner) -> None:
        """See how the instances stand."""
        now: dict[str, str] = dict(owner.store.query_now(_STATUSES))
        for key, status in now.items():
            if self.statuses.get(key) != status:
                _, uuid, instance = split_engine_key(key)
                name = self.names.get(uuid, uuid)
                self.story.tell(f"commit {self.commits}: {name} {instance!r} is {status}")
        self.statuses = now

    def bury(self, owner: Owner, outcome: str = "lost") -> None:
        super().bury(owner, outcome)
        self.stage.died(owner.process.name)

    def hold(self, promise: str, kept: bool, *told: object) -> None:
        if not kept and self.problem is None:
            words = " ".join(map(str, told))
            self.problem = SimulationFault(
                f"toque broke its promise that {promise}: {words}. That is a bug in toque; please "
                f"report it with the seed {self.seed} and the test."
            )

    def complain(self, process: SimProcess, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, SystemFault):
            return  # of an owner whose store has ended: its process ends, too
        told = f"in {process.name}: {context.get('message')}: {error!r}"
        self.story.tell(f"nobody took an error {told}")
        _log.error("nobody took an error %s", told, exc_info=error)
