"""A world for SousChefs: real hosts and stores, real Gatekeeper, model Engines, unkind messages.

Runs on a loop of virtual time. Engines are a model that never crashes and is durable at once:
it is the truth on who runs. Messages may be late, doubled or lost, in both directions. Control
shards may crash with the commit under way kept or lost, or be taken over while the old owner
still runs. The model checks at every start that no more run than may.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from toque.engines.ports import ENGINE_SHARD_KIND, SOUSCHEF_KIND, Grant, StatusReport
from toque.gatekeeper.account import Account
from toque.gatekeeper.gatekeeper import Gatekeeper, GatekeeperEnv
from toque.gatekeeper.messages import CycleRequest
from toque.gatekeeper.slots import GatekeeperFaults
from toque.runtime import limits
from toque.runtime.codec import pack, unpack
from toque.runtime.entity import DurableObject
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import OutcomeUnknown, from_wire
from toque.runtime.host import Host, tables_of
from toque.runtime.ids import EntityRef, Placement
from toque.runtime.messages import Call
from toque.runtime.simloop import LoopClock
from toque.runtime.store_sqlite import SqliteStore
from toque.souschef.env import SousChefEnv
from toque.souschef.souschef import SousChef


@dataclass
class Weather:
    """How unkind the messages are. Calm by default."""

    delay_ms_max: int = 2
    lost: float = 0.0
    doubled: float = 0.0
    commit_ms_max: int = 2


@dataclass
class Instance:
    """A model Engine: runs and sleeps by turns, as `plan` says (run, sleep, run, ...)."""

    key: str
    souschef: str
    shard: str
    plan: list[int]
    run_id: str = "r1"
    state: str = "queued"
    seq: int = 0
    turn: int = 0
    since_ms: int = 0
    wake_ms: int = 0
    confirmed_seq: int = -1
    reporting: bool = False
    granted_ms: list[int] = field(default_factory=list)
    status: str = "queued"
    mute: bool = False
    """Its reports and its own timers are lost until it is poked."""


class World:
    """Everything of one test.

    Args:
        folder: where the stores go.
        seed: of all randomness.
        limit: how many may run.
        weather: of the messages.
        faults: the Gatekeeper's.
        linger_ms: the SousChefs'.
    """

    def __init__(
        self,
        folder: Path,
        seed: int = 1,
        limit: int = 20,
        weather: Weather | None = None,
        faults: GatekeeperFaults | None = None,
        linger_ms: int = limits.LEASE_LINGER_MS,
        control_shards: int = 2,
    ) -> None:
        self.folder = folder
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.random = SeededEntropy(seed)
        self.weather = weather or Weather()
        self.limit = limit
        self.linger_ms = linger_ms
        self.faults = faults or GatekeeperFaults()
        self.placement = Placement(2, control_shards)
        self.hosts: dict[str, Host] = {}
        self.stores: dict[str, SqliteStore] = {}
        self.old_hosts: list[tuple[Host, SqliteStore]] = []
        self.instances: dict[str, Instance] = {}
        self.running = 0
        self.most_running = 0
        self.too_many: list[str] = []
        self.cycles: dict[str, list[tuple[float, CycleRequest]]] = defaultdict(list)
        self.calls: dict[str, int] = defaultdict(int)
        self.refused = 0
        self.flying: dict[str, int] = defaultdict(int)
        self.most_flying = 0
        self._next_id = 0
        for shard in self.placement.control_names():
            self.open(shard)
        for shard in self.placement.data_names():
            self.open(shard)

    # --- shards -----------------------------------------------------------------------------

    def open(self, shard: str) -> None:
        """Open a shard as its newest owner."""
        control = shard.startswith("c")
        classes: Mapping[str, type[DurableObject]] = (
            {cls.KIND: cls for cls in (Account, Gatekeeper, SousChef)}
            if control
            else {ENGINE_SHARD_KIND: ModelEngines}
        )
        store = SqliteStore.open(
            self.folder / f"{shard}.sqlite",
            tables=tables_of(classes),
            loop=self.loop,
            writer="inline",
            commit_delay=lambda: self.random.randrange(self.weather.commit_ms_max + 1) / 1000,
            synchronous="OFF",
        )
        envs = {
            "Gatekeeper": GatekeeperEnv(self.limit, self.faults),
            "SousChef": SousChefEnv(lambda: store.epoch, self.linger_ms),
            ENGINE_SHARD_KIND: self,
        }
        entropy = SeededEntropy(f"{shard} {store.epoch} {self.random.random()}")
        router: Any = self
        host = Host(shard, store, self.clock, entropy, self.loop, router, classes, envs)
        self.hosts[shard], self.stores[shard] = host, store
        host.start()

    def crash(self, shard: str) -> None:
        """Kill a shard's owner at this very instant."""
        host = self.hosts.pop(shard, None)
        if host is not None:
            host.close()
            self.stores[shard].crash("kept" if self.random.random() < 0.5 else "lost")

    def take_over(self, shard: str) -> None:
        """Open a shard while its old owner still runs and does not know."""
        if shard in self.hosts:
            self.old_hosts.append((self.hosts[shard], self.stores[shard]))
            self.open(shard)

    def fill(self, shard: str, rows: int) -> None:
        """Let a shard's store take so few rows at a time that events are cut short."""
        if shard in self.hosts:
            self.stores[shard]._group._rows_max = rows

    async def close(self) -> None:
        """Close all shards."""
        for host, store in [*self.old_hosts, *((h, self.stores[s]) for s, h in self.hosts.items())]:
            host.close()
            store.crash("lost")

    # --- messages (this is the hosts' router) -----------------------------------------------

    def send(
        self,
        ref: EntityRef,
        method: str,
        args: bytes,
        future: asyncio.Future[Any],
        *,
        timeout_ms: int | None = None,
        chain: Any = (),
    ) -> None:
        """Carry a call as the weather is."""
        self.calls[method] += 1
        if method == "grant_many":
            self._note_grants(ref.key, len(unpack(args)[2]), future)
        if method == "cycle":
            request = unpack(args, tuple[CycleRequest])[0]
            self.cycles[request.souschef].append((self.loop.time(), request))
        timeout_s = (timeout_ms or limits.CALL_TIMEOUT_MS) / 1000
        self.loop.call_later(timeout_s, _fail, future, OutcomeUnknown("no answer came in time."))
        for _ in range(self._copies()):
            self.loop.call_later(self._delay_s(), self._arrive, ref, method, args, future, chain)

    def call(self, ref: EntityRef, method: str, *args: Any, timeout_ms: int = 2_000) -> Any:
        """A call from outside."""
        future = self.loop.create_future()
        self.send(ref, method, pack(args), future, timeout_ms=timeout_ms)
        return future

    def _note_grants(self, shard: str, count: int, future: asyncio.Future[Any]) -> None:
        def answered(_: asyncio.Future[Any]) -> None:
            self.flying[shard] -= count

        self.flying[shard] += count
        self.most_flying = max(self.most_flying, self.flying[shard])
        future.add_done_callback(answered)

    def _copies(self) -> int:
        if self.random.random() < self.weather.lost:
            return 0
        return 2 if self.random.random() < self.weather.doubled else 1

    def _delay_s(self) -> float:
        return self.random.randrange(self.weather.delay_ms_max + 1) / 1000

    def _arrive(
        self, ref: EntityRef, method: str, args: bytes, future: asyncio.Future[Any], chain: Any
    ) -> None:
        host = self.hosts.get(self.placement.shard_of(ref))
        if host is None:
            return
        self._next_id += 1

        def answer(_: int, ok: bool, body: bytes) -> None:
            for _copy in range(self._copies()):
                self.loop.call_later(self._delay_s(), _settle, future, ok, body)

        raw = msgspec.Raw(args)
        host.deliver(Call(self._next_id, ref.kind, ref.key, method, raw, chain), answer)

    # --- Engines ----------------------------------------------------------------------------

    def create(
        self, instance_id: str, plan: list[int], workflow: str = "acme/w", n: int = 2
    ) -> None:
        """A new instance with a SousChef chosen at random."""
        souschef = f"{workflow}/{self.random.randrange(n)}"
        shard = f"d{self.random.randrange(2)}"
        instance = Instance(f"{workflow}/{instance_id}", souschef, shard, list(plan))
        self.instances[instance.key] = instance
        self._move(instance, "queued")

    def restart(self, instance: Instance, plan: list[int]) -> None:
        """A new run of the same instance, whatever the old one does."""
        instance.run_id = f"r{int(instance.run_id[1:]) + 1}"
        instance.seq = instance.turn = 0
        instance.confirmed_seq = -1
        instance.plan = list(plan)
        instance.granted_ms.clear()
        self._move(instance, "queued")

    def _move(self, instance: Instance, state: str, wake_ms: int = 0, status: str = "") -> None:
        if instance.state == "running":
            self.running -= 1
        instance.state, instance.wake_ms = state, wake_ms
        instance.status = status or state
        instance.since_ms = self.clock.now_ms()
        instance.seq += 1
        instance.turn += state == "queued"
        if state == "running":
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            if self.running > self.limit:
                self.too_many.append(f"{instance.key}: {self.running} run at {self.loop.time()}")
        assert self.running == sum(i.state == "running" for i in self.instances.values())
        self.report(instance)

    def report(self, instance: Instance, anew: bool = False) -> None:
        """Say how it stands, until that is confirmed."""
        if anew:
            instance.confirmed_seq = -1
        if not instance.reporting and not instance.mute:
            instance.reporting = True
            self.loop.call_soon(self._send_report, instance)

    def _send_report(self, instance: Instance) -> None:
        seq, run_id = instance.seq, instance.run_id
        report = StatusReport(
            instance.key,
            run_id,
            seq,
            instance.state,  # type: ignore[arg-type]
            instance.turn,
            instance.turn > 1,
            instance.since_ms,
            instance.wake_ms,
            instance.status,
            instance.shard,
        )
        ref = EntityRef(SOUSCHEF_KIND, instance.souschef)
        future = self.call(ref, "report", [report], timeout_ms=limits.REPORT_RETRY_MS)

        def answered(done: asyncio.Future[Any]) -> None:
            instance.reporting = False
            if done.exception() is None and run_id == instance.run_id:
                instance.confirmed_seq = max(instance.confirmed_seq, seq)
            if instance.confirmed_seq < instance.seq:
                self.report(instance)

        future.add_done_callback(answered)

    def grant(self, grant: Grant) -> bool:
        """What an Engine says to a grant."""
        instance = self.instances.get(grant.key)
        if instance is None or (instance.run_id, instance.turn) != (grant.run_id, grant.turn):
            self.refused += 1
            return False
        if instance.state == "running":
            return True
        if instance.state != "queued":
            self.refused += 1
            return False
        instance.granted_ms.append(self.clock.now_ms())
        self._move(instance, "running")
        ran = (instance.run_id, instance.turn)
        self.loop.call_later(instance.plan.pop(0) / 1000, self._leave, instance, ran)
        return True

    def _leave(self, instance: Instance, ran: tuple[str, int]) -> None:
        if (instance.run_id, instance.turn) != ran or instance.state != "running":
            return
        if not instance.plan:
            self._move(instance, "ended", status="complete")
            return
        sleep_ms = instance.plan.pop(0)
        wake_ms = self.clock.now_ms() + sleep_ms
        self._move(instance, "waiting", wake_ms)
        self.loop.call_later(sleep_ms / 1000, self._wake, instance, ran)

    def _wake(self, instance: Instance, ran: tuple[str, int]) -> None:
        waits = (instance.run_id, instance.turn) == ran and instance.state == "waiting"
        if waits and not instance.mute:
            self._move(instance, "queued")

    def poke(self, key: str) -> bool:
        """Look at the timers, report anew; False if there is no such instance."""
        instance = self.instances.get(key)
        if instance is None:
            return False
        instance.mute = False
        if instance.state == "waiting" and 0 < instance.wake_ms <= self.clock.now_ms():
            self._move(instance, "queued")
        else:
            self.report(instance, anew=True)
        return True

    # --- looking ----------------------------------------------------------------------------

    def unended(self) -> list[Instance]:
        """Instances that have not ended."""
        return [i for i in self.instances.values() if i.state != "ended"]

    async def until(self, what: Any, within_s: float) -> float:
        """Wait until `what()` holds, looking every 10 ms; gives for how long."""
        start_s = self.loop.time()
        while not what():
            if self.loop.time() - start_s > within_s:
                raise AssertionError(f"not within {within_s} s: {len(self.unended())} not ended")
            await asyncio.sleep(0.01)
        return self.loop.time() - start_s

    def souschef(self, key: str) -> SousChef:
        """The live entity."""
        found = self.hosts[self.placement.shard_of(EntityRef(SOUSCHEF_KIND, key))].local(
            EntityRef(SOUSCHEF_KIND, key)
        )
        assert isinstance(found, SousChef)
        return found

    def gatekeeper(self, account: str = "acme") -> Gatekeeper:
        """The live entity."""
        ref = EntityRef("Gatekeeper", account)
        found = self.hosts[self.placement.shard_of(ref)].local(ref)
        assert isinstance(found, Gatekeeper)
        return found

    def hasty_calls(self) -> list[tuple[str, float]]:
        """Calls to the Gatekeeper that came less than a period after the one before."""
        tick_s = 0.002  # a timer may fire a tick of the clock early
        hasty = []
        for souschef, sent in self.cycles.items():
            for incarnation in {request.incarnation for _, request in sent}:
                times = [at_s for at_s, request in sent if request.incarnation == incarnation]
                for before_s, after_s in pairwise(times):
                    if after_s - before_s < limits.CYCLE_PERIOD_MS / 1000 - tick_s:
                        hasty.append((souschef, after_s - before_s))
        return hasty


class ModelEngines(DurableObject):
    """A data shard's side of grants and pokes."""

    KIND = ENGINE_SHARD_KIND
    env: World

    def grant_many(self, souschef: str, epoch: int, grants: list[Grant]) -> list[bool]:
        return [self.env.grant(grant) for grant in grants]

    def poke_many(self, souschef: str, epoch: int, keys: list[str]) -> list[str]:
        return [key for key in keys if not self.env.poke(key)]


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _settle(future: asyncio.Future[Any], ok: bool, body: bytes) -> None:
    if future.done():
        return
    if ok:
        future.set_result(unpack(body))
    else:
        future.set_exception(from_wire(unpack(body, tuple[str, str, dict[str, Any]])))
