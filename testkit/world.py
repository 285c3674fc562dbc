"""A simulated world: shards, their owners and front ends on one virtual time, from a seed.

A shard's file outlives its owners. An owner is a process with a store, a host and a router; it
can crash at a chosen commit (which is then lost or kept), be paused, and be followed by another
owner while it still lives. Every piece of chance is drawn from the seed, by a generator per
purpose, so that one more frame does not change who crashes.

What runs in the shards, which checks hold and what befalls them is for subclasses to say: the
project's own campaign, and the simulation of users' tests.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from ..runtime.entropy import Entropy, SeededEntropy
from ..runtime.ids import Placement
from ..runtime.simloop import VirtualTimeLoop
from ..runtime.simnet import SimNetwork
from ..runtime.simprocess import SimProcess
from .parts import FrontEnd, FrontEndDied, Owner, Site
from .trace import Trace

T = TypeVar("T")
NEVER_REPEATED = frozenset({"put_workflow", "set_limits", "set_souschefs", "set_workflow_limits"})
"""Deploys and settings: the last call wins, so a late repetition would change the outcome."""


class SimWorld(ABC):
    """See the module.

    Args:
        seed: decides everything.
        folder: where the shards' files go; there already, and empty.
        placement: which shards there are.
        loop: turns for all.
        echo: told each trace line.
        kept: how many of the last lines are kept.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        placement: Placement,
        loop: VirtualTimeLoop,
        echo: Callable[[str], None] | None = None,
        *,
        kept: int,
    ) -> None:
        self.seed = seed
        self.folder = folder
        self.placement = placement
        self.loop = loop
        self.driver = self.new_process("driver")
        self.trace = Trace(loop.time, echo, kept)
        self.faults: Counter[str] = Counter()
        self.network = SimNetwork(loop, self.entropy("network"), self.trace, NEVER_REPEATED)
        self.network.faults = self.faults
        self.sites = {name: Site(name) for name in placement.names()}
        self.fronts: list[FrontEnd] = []
        self._commit_times: Entropy = self.entropy("commits")
        self._lives = 0

    # --- what subclasses say ----------------------------------------------------------------

    @abstractmethod
    def build_owner(self, site: Site, process: SimProcess) -> Owner:
        """An owner that has opened the shard and serves it."""

    @abstractmethod
    def build_front_end(self, front: FrontEnd) -> None:
        """Fill in a front end: its router and its control plane."""

    @abstractmethod
    def hold(self, promise: str, kept: bool, *told: object) -> None:
        """A check: `kept` says whether toque keeps that promise."""

    @abstractmethod
    def booted(self, owner: Owner) -> None:
        """An owner is about to begin."""

    @abstractmethod
    def on_disk(self, shard: str, tables: Collection[str] | None = None) -> None:
        """What is on the disk of a shard may have changed, in these tables (None: in any)."""

    def next_fate(self, site: Site) -> tuple[str, float] | None:
        """What becomes of the commit that is about to be made; None: it is made.

        Else how the owner dies, see `crash`, or that the disk `fails`, and for how many seconds
        the shard is down then.
        """
        return site.crash_at.pop(site.commits, None)

    def must_break(self, owner: Owner, error: BaseException) -> bool:
        """Whether a store that takes no more commits was made to fail."""
        return self.sites[owner.shard].failing is not None

    def waits_for_room(self, site: Site, then: Callable[..., None], *args: Any) -> bool:
        """Whether a shard can't be opened just now; `then(*args)` follows when it can."""
        return False

    # --- shards -----------------------------------------------------------------------------

    def entropy(self, purpose: str) -> SeededEntropy:
        """A generator for one purpose."""
        return self.entropy_of(self.seed, purpose)

    @staticmethod
    def entropy_of(seed: int, purpose: str) -> SeededEntropy:
        """As `entropy`, before there is a world."""
        return SeededEntropy(f"{seed}/{purpose}")

    def new_process(self, name: str) -> SimProcess:
        """One more process."""
        return SimProcess(name, self.loop, self.complain)  # type: ignore[abstract]

    def path_of(self, shard: str) -> Path:
        """The file of a shard."""
        return self.folder / f"{shard}.db"

    def boot(self, shard: str) -> Owner:
        """A new owner opens the shard. One that still lives becomes a zombie."""
        site = self.sites[shard]
        if site.owner is not None:
            site.zombies.append(site.owner)
            site.owner.fenced = True
        site.lives += 1
        process = self.new_process(f"{shard}.{site.lives}")
        owner = self.build_owner(site, process)
        owner.store.fate = lambda: self._fate(owner)
        owner.store.has_committed = lambda tables: self.committed(owner, tables)
        site.owner = owner
        self.booted(owner)
        self.trace.note("boot", process.name, "epoch", owner.store.epoch)
        self.on_disk(shard)
        return owner

    def _fate(self, owner: Owner) -> str:
        """What becomes of a commit that is about to be made; see `SimStore`."""
        if owner.fenced:
            return "go"  # the epoch decides
        site = self.sites[owner.shard]
        site.commits += 1
        fate = self.next_fate(site)
        if fate is None:
            return "go"
        outcome, down_s = fate
        if outcome.startswith("fails"):
            self.faults[f"a commit {outcome}"] += 1
            self.trace.note("disk", owner.process.name, outcome)
            site.failing = down_s
            self.loop.call_later(1.0, self._must_be_gone, owner)
            return outcome
        self.crash(owner.shard, outcome, down_s)
        return "died"

    def committed(self, owner: Owner, tables: Collection[str]) -> None:
        """A commit is on disk and nobody knows yet."""
        if owner.fenced:
            self.hold("a fenced owner does not commit", False, owner.process.name, "has committed")
        self.trace.note("commit", owner.process.name, owner.store.durable_seq + 1)
        self.on_disk(owner.shard, tables)

    def crash(self, shard: str, outcome: str, down_s: float) -> None:
        """The owner dies now; the commit under way is lost or kept. Comes back after a while."""
        site = self.sites[shard]
        owner = site.owner
        if owner is None:
            return
        if outcome == "torn" and site.zombies:
            outcome = "lost"  # another process has the file open and would see it change
        site.owner = None
        self.bury(owner, outcome)
        self.faults[f"crash, commit {owner.store.outcome}"] += 1
        self.trace.note("crash", owner.process.name, owner.store.outcome, f"down {down_s:.3f}")
        self.on_disk(shard)
        self.loop.call_later(down_s, self._come_back, shard, site.lives)

    def bury(self, owner: Owner, outcome: str = "lost") -> None:
        """Kill an owner's process."""
        self.network.withdraw(owner.shard, owner.process)
        self.network.killed(owner.process)
        owner.process.kill()
        if outcome == "torn":
            self.let_go(owner.shard)
            owner.store.tear_at = self._commit_times.random()
        owner.store.crash(outcome)
        owner.opened.stop()  # only to let go of memory: a dead process has no effects

    @abstractmethod
    def let_go(self, shard: str) -> None:
        """Close what is open of a shard's file outside of its owners."""

    def _come_back(self, shard: str, lives: int) -> None:
        site = self.sites[shard]
        if site.lives == lives and not self.waits_for_room(site, self._come_back, shard, lives):
            self.boot(shard)

    def broken(self, owner: Owner, error: BaseException) -> None:
        """A host says that its store takes no more commits."""
        self.trace.note("broken", owner.process.name, type(error).__name__)
        if owner.fenced:
            self.faults["fenced"] += 1
            self.hold("a fenced owner does not commit", True)
            # As its process would end; until then callers hear that it is fenced.
            delay_s = self._commit_times.random()
            self.loop.call_later(delay_s, self._end_zombie, owner.shard, owner)
            return
        site = self.sites[owner.shard]
        is_meant = self.must_break(owner, error)
        told = owner.process.name, repr(error)
        self.hold("a store breaks only if it must", is_meant, *told)
        down_s, site.failing = site.failing or 1.0, None
        self.loop.call_soon(self._bury_broken, owner, down_s)

    def _must_be_gone(self, owner: Owner) -> None:
        """A shard whose disk failed may not linger: its callers would wait for nothing."""
        self.hold(
            "a failed store ends its owner at once",
            self.sites[owner.shard].owner is not owner,
            owner.process.name,
        )

    def _bury_broken(self, owner: Owner, down_s: float) -> None:
        """The process of a store that failed ends, and its shard comes back after a while."""
        site = self.sites[owner.shard]
        if site.owner is owner:
            site.owner = None
            self.bury(owner)
            self.loop.call_later(down_s, self._come_back, owner.shard, site.lives)

    # --- pauses, and who is followed meanwhile ----------------------------------------------

    def usurp(self, shard: str, pause_s: float, wake_s: float, die_s: float) -> None:
        """The owner hangs; a new one opens the shard; the old one wakes, and is killed later.

        Args:
            shard: which.
            pause_s: how long it has hung when the new owner comes.
            wake_s: how long after that it wakes (0: it never hung, and works on as a zombie).
            die_s: how long after that it is killed.
        """
        old = self.sites[shard].owner
        if old is None:
            return
        self.trace.note("hang", old.process.name)
        if wake_s:
            self.faults["pause"] += 1
            old.process.pause()
        self.loop.call_later(pause_s, self._take_over, shard, old, wake_s, die_s)

    def _take_over(self, shard: str, old: Owner, wake_s: float, die_s: float) -> None:
        if self.sites[shard].owner is not old:
            return  # it crashed meanwhile
        if self.waits_for_room(self.sites[shard], self._take_over, shard, old, wake_s, die_s):
            return
        self.faults["zombie"] += 1
        self.boot(shard)
        self.loop.call_later(wake_s, self._wake, old)
        self.loop.call_later(wake_s + die_s, self._end_zombie, shard, old)

    def _wake(self, old: Owner) -> None:
        if not old.process.dead and old.process.paused:
            self.trace.note("wake", old.process.name)
            old.process.resume()

    def _end_zombie(self, shard: str, old: Owner) -> None:
        zombies = self.sites[shard].zombies
        if old in zombies:
            zombies.remove(old)
            self.trace.note("kill", old.process.name)
            self.bury(old)

    # --- front ends -------------------------------------------------------------------------

    def open_front_end(self) -> FrontEnd:
        """One more front end."""
        self._lives += 1
        name = f"f{self._lives}"
        process = self.new_process(name)
        front = FrontEnd(name, process)
        self.build_front_end(front)
        self.fronts.append(front)
        return front

    async def enter_front_end(
        self,
        front: FrontEnd,
        work: Callable[[], Coroutine[Any, Any, T]],
        before: Callable[[], object],
    ) -> T:
        """Run `work()` in a front end's process, in the context in which `before()` was called.

        Raises:
            FrontEndDied: the process died first.
        """
        done: asyncio.Future[T] = self.driver.create_future()

        def finished(task: asyncio.Task[T]) -> None:
            if done.done():
                return
            if task.cancelled():
                done.set_exception(FrontEndDied(front.name))
            elif (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        def begin() -> None:
            before()
            front.process.create_task(work()).add_done_callback(finished)

        def died() -> None:
            if not done.done():
                done.set_exception(FrontEndDied(front.name))

        front.process.on_death(died)
        front.process.call_soon(begin)
        try:
            return await done
        finally:
            front.process.forget_death(died)

    # --- the whole --------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run what drives the world, in a process of its own, until it ends."""
        task: asyncio.Task[T] = self.driver.create_task(work)
        done: asyncio.Future[None] = self.loop.create_future()

        def ended(_: asyncio.Task[T]) -> None:
            if not done.done():
                done.set_result(None)

        task.add_done_callback(ended)
        self.loop.run_until_complete(done)
        return task.result()

    @abstractmethod
    def complain(self, process: SimProcess, context: dict[str, Any]) -> None:
        """A process has an error that nobody takes."""

    def close(self) -> None:
        """End all processes and close all files."""
        self.driver.kill()
        for site in self.sites.values():
            for owner in [*site.zombies, *([site.owner] if site.owner else [])]:
                self.bury(owner)
        for front in self.fronts:
            front.process.kill()
        self.loop.close()
