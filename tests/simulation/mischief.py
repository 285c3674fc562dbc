"""What can be done to a world: the means of the faults in `faults`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from toque.engines.ports import SOUSCHEF_KIND
from toque.runtime.errors import EntityReset, Overloaded
from toque.runtime.ids import EntityRef
from toque.runtime.notes import Blame
from toque.runtime.simprocess import SimProcess
from toque.testkit.parts import FrontEnd, Owner, Site
from toque.testkit.world import SimWorld

from .disk import Disk
from .entities import Till
from .workers import SimWorkerHost, Workers

if TYPE_CHECKING:
    pass


_FULL_S = 0.5


class Mischief(SimWorld):
    """What `World` inherits; it fills in the rest."""

    disk: Disk
    missing: dict[tuple[str, str], float]
    workers: Workers | None

    def crash_all(self, down_s: float) -> None:
        """Everything is restarted at once."""
        self.faults["all restarted"] += 1
        for shard in self.sites:
            self.crash(shard, "lost", down_s)

    def evict_some(self, shard: str, chance: float) -> None:
        """Entities that are idle leave memory, as they would after a while or under pressure."""
        owner = self.sites[shard].owner
        if owner is None or owner.process.paused:
            return
        host = owner.opened.host
        for activation in list(host._live.values()):
            if activation.idle and self._commit_times.random() < chance:
                self.faults["evicted"] += 1
                self.trace.note("evict", activation.ref)
                owner.process.enter(partial(host.end, activation))

    def reset_one(self, shard: str) -> None:
        """An entity fails and is activated anew by the next event."""
        owner = self.sites[shard].owner
        if owner is None or owner.process.paused or owner.store.broken is not None:
            return
        host = owner.opened.host
        live = list(host._live.values())
        if live:
            activation = live[self._commit_times.randrange(len(live))]
            self.faults["reset"] += 1
            self.trace.note("reset", activation.ref)
            error = EntityReset("the simulation decided so")
            owner.process.enter(partial(host.reset, activation, error))

    def step_clock(self, shard: str, by_ms: int) -> None:
        """The wall clock of the machine that the owner runs on is set."""
        owner = self.sites[shard].owner
        if owner is not None:
            self.faults["clock set"] += 1
            self.trace.note("clock", owner.process.name, by_ms)
            owner.clock.skew_ms += by_ms

    # --- disks --------------------------------------------------------------------------------

    def fill_disk(self, shard: str, lasts_s: float) -> None:
        """The disk of a shard takes no more pages for a while, whoever owns the shard."""
        site = self.sites[shard]
        site.full_until_s = self.loop.time() + lasts_s
        self.trace.note("disk full", shard, f"{lasts_s:.3f}")
        self.limit_pages(site)
        self.loop.call_later(lasts_s, self.limit_pages, site)

    def limit_pages(self, site: Site) -> None:
        """Have SQLite refuse new pages, or take them again."""
        owner = site.owner
        if owner is not None and owner.store.broken is None:
            owner.store.limit_pages(self.is_full(site))

    def waits_for_room(self, site: Site, then: Callable[..., None], *args: Any) -> bool:
        """Whether nobody can open the shard now, as `opening.check_room` sees to; `then` follows
        when the disk has room."""
        if not self.is_full(site):
            return False
        self.trace.note("no room", site.name)
        self.loop.call_later(site.full_until_s - self.loop.time(), then, *args)
        return True

    def is_full(self, site: Site) -> bool:
        """Whether the disk of a shard is full."""
        return self.loop.time() < site.full_until_s - 0.001

    def cut_short(self, shard: str, writes: int) -> None:
        """The next event of a SousChef that writes more is cut short: its store is full."""
        owner = self.sites[shard].owner
        if owner is None or owner.process.paused or owner.store.broken is not None:
            return

        def told(ref: EntityRef) -> None:
            self.faults["a SousChef's event is cut short"] += 1
            self.trace.note("cut short", ref)
            self.loop.call_later(_FULL_S, owner.store.has_room_again)  # if there is no commit

        owner.store.cut_short(SOUSCHEF_KIND, writes, told)

    # --- load ---------------------------------------------------------------------------------

    def flood(self, front: FrontEnd, shard: str, calls: int) -> None:
        """A front end asks a data shard for much at once."""
        tills = (EntityRef(Till.KIND, f"flood/{number}") for number in range(8 * calls))
        refs = [ref for ref in tills if self.placement.shard_of(ref) == shard][:calls]
        if not refs:
            return
        self.faults["flooded"] += 1
        self.trace.note("flood", front.name, shard, len(refs))

        def ask() -> None:
            for number, ref in enumerate(refs):
                request = f"{number}@{self.loop.time():.3f}"
                future = front.router.call(ref, "pay", request, 1, "")
                future.add_done_callback(self._flooded)

        front.process.enter(ask)

    def _flooded(self, answered: object) -> None:
        cancelled, exception = answered.cancelled, answered.exception  # type: ignore[attr-defined]
        if not cancelled() and isinstance(exception(), Overloaded):
            self.faults["overloaded"] += 1

    def block(self, process: SimProcess, lasts_s: float) -> None:
        """User code holds the loop of its process: nothing else runs there for a while."""
        if process.paused or process.dead:
            return
        self.faults["user code blocks"] += 1
        self.trace.note("block", process.name, f"{lasts_s:.3f}")
        self._hold(process, lasts_s)

    def _hold(self, process: SimProcess, lasts_s: float) -> None:
        if self.workers is not None and all(
            site.owner is None or site.owner.process is not process for site in self.sites.values()
        ):
            self.workers.late.add(process.name)
        process.pause()
        self.loop.call_later(lasts_s, self._unblock, process)

    def is_late(self, process: SimProcess) -> bool:
        """Whether a worker has hung, so that it does late what it was told."""
        return self.workers is not None and process.name in self.workers.late

    def _unblock(self, process: SimProcess) -> None:
        if process.paused and not process.dead:
            process.resume()

    # --- code and workers ---------------------------------------------------------------------

    def lose_code(self, shard: str, workflow: str, lasts_s: float) -> None:
        """The code of a workflow can't be had on a shard for a while."""
        self.missing[shard, workflow] = self.loop.time() + lasts_s
        self.trace.note("code is gone", shard, workflow, f"{lasts_s:.3f}")

    def lacks_code(self, shard: str, workflow: str) -> bool:
        """Whether that is so now."""
        return self.loop.time() < self.missing.get((shard, workflow), 0.0)

    def end_worker(self, shard: str) -> None:
        """A worker of a shard ends, from outside."""
        if (host := self._any_worker(shard)) is not None:
            host.die([], "it was killed")

    def hang_worker(self, shard: str, lasts_s: float) -> None:
        """A worker of a shard hangs for a while, or until its shard has had enough of it."""
        host = self._any_worker(shard)
        if host is not None and host.sim is not None and not host.sim.paused:
            self.faults["a worker hangs"] += 1
            self.trace.note("hang", host.sim.name)
            self._hold(host.sim, lasts_s)

    def _any_worker(self, shard: str) -> SimWorkerHost | None:
        alive = [] if self.workers is None else self.workers.alive(shard)
        return alive[self._commit_times.randrange(len(alive))] if alive else None

    def exit(self, owner: Owner, process: SimProcess, run: str) -> None:
        """User code of a run ends the process that it is in, and leaves a note of who it was."""
        self.faults["user code exits"] += 1
        self.trace.note("exit", process.name, run)
        if self.workers is not None:
            self.workers.leaving.add(process.name)
        key = self.disk.key_of(owner.shard, run)
        blamed = [] if key is None else [Blame(key, on_loop=True)]
        self.loop.call_soon(self._exited, owner, process, blamed)

    def _exited(self, owner: Owner, process: SimProcess, blamed: list[Blame]) -> None:
        assert self.workers is not None
        if process is not owner.process:
            for host in self.workers.alive(owner.shard):
                if host.sim is process:
                    host.die(blamed, "it exited")
        elif self.sites[owner.shard].owner is owner:
            self.workers.blamed[owner.shard] = blamed
            self.crash(owner.shard, "lost", 1.0 + self._commit_times.random() * 2)
