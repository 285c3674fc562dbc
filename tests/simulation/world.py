"""The simulated world: shards, their owners, front ends, and what befalls them.

A shard's file outlives its owners. An owner is a process with a store, a host and a router; it
can crash at a chosen commit (which is then lost or kept), be paused, and be followed by another
owner while it still lives. Every piece of chance is drawn from the seed, by a generator per
purpose, so that one more frame does not change who crashes.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from toque.engines.engine import Engine
from toque.gatekeeper.messages import CycleRequest
from toque.runtime import limits
from toque.runtime.codec import unpack
from toque.runtime.errors import StoreFailed, SystemFault
from toque.runtime.ids import EntityRef, Placement
from toque.runtime.simloop import VirtualTimeLoop
from toque.runtime.simprocess import SimProcess
from toque.souschef.pacing import gap_ms
from toque.testkit.parts import FrontEnd, Owner, Site
from toque.testkit.trace import LINES_KEPT

from .build import ASKED, build_front_end, build_owner
from .clocks import MachineClock
from .disk import Disk
from .kin import Kin
from .mischief import Mischief
from .parts import Layout, Sabotage
from .promises import Bodies, Claims, PromiseBroken, Promises
from .switches import Switches
from .workers import Workers

T = TypeVar("T")

COMMIT_SLOWEST = 35.0
"""Times the usual: how long a commit takes at most."""
TURNS_MAX = 50_000
"""How often the loop may turn while no time passes."""


class WatchedLoop(VirtualTimeLoop):
    """Notices work that repeats itself for ever while no time passes."""

    turns_max = TURNS_MAX

    def goes_round(self) -> None:
        """Nothing but such work goes on."""
        told = f"the loop turned {TURNS_MAX} times at {self.time():.3f} s"
        raise PromiseBroken("a run comes to an end", told)


class World(Mischief):
    """See the module.

    Args:
        seed: decides everything.
        folder: where the shards' files go, and their streams; empty.
        layout: how many of what.
        sabotage: deliberate faults.
        echo: told each trace line.
        ignored: promises that may break.
        only: the parts that take place; None: all (see `switches`).
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        layout: Layout,
        sabotage: Sabotage | None = None,
        echo: Callable[[str], None] | None = None,
        ignored: frozenset[str] = frozenset(),
        only: Iterable[str] | None = None,
    ) -> None:
        shards = folder / "shards"
        shards.mkdir()
        placement = Placement(layout.data_shards, layout.control_shards)
        super().__init__(
            seed,
            shards,
            placement,
            WatchedLoop(),
            echo,
            kept=LINES_KEPT,
        )
        self.switches = Switches(only)
        self.layout = layout
        self.sabotage = sabotage or Sabotage()
        self.tail: list[str] = []
        self.promises = Promises(self._on_broken, ignored)
        self.bodies = Bodies(self.promises)
        self.deleted: set[str] = set()
        self.executed: Counter[str] = Counter()
        self.missing: dict[tuple[str, str], float] = {}
        self.ids: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self.claims = Claims(self.promises, self.bodies)
        self.disk = Disk(self.folder, self.promises, layout.limit)
        self.kin = Kin(self)
        self._called_s: dict[str, tuple[float, Owner, CycleRequest]] = {}
        self._calls_s: dict[tuple[str, str], deque[float]] = {}
        self.impatience = 0.0
        self.stirred = 0
        self.clock_error: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
        self.batch_rows_max = 0
        self.workers: Workers | None = None

    # --- shards -----------------------------------------------------------------------------

    def build_owner(self, site: Site, process: SimProcess) -> Owner:
        return build_owner(self, site, process)

    def build_front_end(self, front: FrontEnd) -> None:
        build_front_end(self, front)

    def hold(self, promise: str, kept: bool, *told: object) -> None:
        self.promises.hold(promise, kept, *told)

    def booted(self, owner: Owner) -> None:
        if self.batch_rows_max:
            owner.store.limit_batch(self.batch_rows_max)
        self.limit_pages(self.sites[owner.shard])

    def on_disk(self, shard: str, tables: Collection[str] | None = None) -> None:
        self.disk.committed(shard, self.loop.time(), tables)

    def new_clock(self) -> MachineClock:
        """The wall clock of one more machine."""
        return MachineClock(self.loop, *self.clock_error())

    def new_owner(self, shard: str, process: SimProcess) -> Owner:
        """An owner that has not opened its shard yet."""
        return Owner(shard, process, self.new_clock())

    def gatekeeper_called(self, owner: Owner, args: bytes) -> None:
        """A SousChef calls the Gatekeeper: at most once per period, and with all others below C."""
        (request,) = unpack(args, tuple[CycleRequest])
        self.disk.told(request)
        if owner.fenced:
            return  # a zombie may call beside its successor
        now_s = self.loop.time()
        self._keeps_below_c(owner, request.souschef.split("/", 1)[0], now_s)
        last_s, last_owner, last = self._called_s.get(request.souschef, (None, owner, request))
        self._called_s[request.souschef] = (now_s, owner, request)
        # One that has given its lease back and was activated anew does not know of that call.
        is_new = last.leaving and request.seq != last.seq + 1
        if last_s is not None and not last_owner.fenced and not is_new:  # or followed at once
            self.promises.hold(
                "one Gatekeeper call per SousChef and period",
                now_s - last_s > limits.CYCLE_PERIOD_MS / 1000 - 0.002,
                f"{request.souschef} called at {last_s:.3f} and {now_s:.3f}",
            )

    def _keeps_below_c(self, owner: Owner, account: str, now_s: float) -> None:
        """A shard's part of C. Calls that took turns may leave together, after one slow commit."""
        site = self.sites[owner.shard]
        if now_s < site.slow_until_s + 10:
            return  # what took turns waits for one commit, for seconds
        times = self._calls_s.setdefault((owner.process.name, account), deque())
        times.append(now_s)
        while times[0] <= now_s - 1:
            times.popleft()
        held_s = 2 * COMMIT_SLOWEST * self.layout.commit_ms / 1000
        gap_s = gap_ms(self.layout.gatekeeper_calls, self.layout.control_shards) / 1000
        self.promises.hold(
            "Gatekeeper calls stay below their bound",
            len(times) <= (1 + held_s) / gap_s + 1,
            f"{owner.process.name}: {len(times)} calls of {account} in a second",
        )

    def committed(self, owner: Owner, tables: Collection[str]) -> None:
        super().committed(owner, tables)
        self._check_written(owner)

    def _check_written(self, owner: Owner) -> None:
        """No Engine has changed in an event that left it at that: an answer may have told it."""
        engines = [
            activation.entity
            for activation in owner.opened.host._live.values()
            if isinstance(activation.entity, Engine)
        ]
        if engines:
            unwritten = [
                engine.ctx.ref.key
                for engine in engines
                if engine._is_changed
                or engine._starts
                or engine._births
                or engine._rows._gathered
                or engine._rows._letters
            ]
            self.promises.hold("what an event changes is written", not unwritten, *unwritten)

    def let_go(self, shard: str) -> None:
        self.disk.forget(shard)

    def heal(self) -> None:
        """Faults end: good weather, every shard up, no zombies."""
        self.trace.note("heal")
        for shard, site in self.sites.items():
            site.crash_at.clear()
            site.full_until_s = site.slow_until_s = 0.0
            self.missing.clear()
            if self.workers is not None:
                self.workers.fails = 0
            self.limit_pages(site)
            for zombie in list(site.zombies):
                self._end_zombie(shard, zombie)
            if site.owner is None:
                self.boot(shard)
            else:
                self._wake(site.owner)
                site.owner.store.has_room_again()
        self.network.heal()

    def must_break(self, owner: Owner, error: BaseException) -> bool:
        site = self.sites[owner.shard]
        is_full = isinstance(error, StoreFailed) and error.data.get("sqlite") == "SQLITE_FULL"
        if is_full and self.is_full(site):
            self.faults["a commit fails, disk full"] += 1
            site.failing = self._commit_times.random() * 3
        return super().must_break(owner, error)

    def commit_delay(self, site: Site) -> float:
        """How long a commit takes, in seconds."""
        draw = self._commit_times.random()
        if self.loop.time() < site.slow_until_s:
            return self.layout.commit_ms * (0.25 + 1.5 * draw) * site.slow_times / 1000
        slow = COMMIT_SLOWEST / 1.75 if draw > 0.98 else 1.0
        return self.layout.commit_ms * (0.25 + 1.5 * draw) * slow / 1000

    def note_spreads(self) -> None:
        """Note whether the SousChefs of a workflow followed its load."""
        sql = f"SELECT 1 FROM account_workflows WHERE souschefs > {self.layout.souschefs}"
        shards = self.placement.control_names()
        self.faults["a workflow has more SousChefs"] += sum(
            len(self.disk.rows(shard, sql)) for shard in shards
        )

    def _on_broken(self, broken: PromiseBroken) -> None:
        self.trace.note("BROKEN", broken)
        self.tail = self.trace.tail()

    def complain(self, process: SimProcess, context: dict[str, Any]) -> None:
        """A process has an error that nobody takes."""
        error = context.get("exception")
        told = f"{process.name}: {context.get('message')}: {error!r}"
        self.trace.note("error", told)
        owners = [o for site in self.sites.values() for o in (*site.zombies, site.owner) if o]
        broken = any(o.process is process and o.store.broken is not None for o in owners)
        if broken and isinstance(error, SystemFault):
            return  # it hears so wherever it writes, until its process ends
        self.promises.hold("no error is lost", False, told)

    # --- front ends -------------------------------------------------------------------------

    def crash_front_end(self, index: int) -> None:
        """A front end dies, and another one takes its place."""
        front = self.fronts.pop(index % len(self.fronts))
        self.faults["front end died"] += 1
        self.trace.note("crash", front.name)
        self.network.killed(front.process)
        front.process.kill()
        self.open_front_end()

    async def ask(
        self,
        front: FrontEnd,
        work: Callable[[], Coroutine[Any, Any, T]],
        asked: list[EntityRef] | None = None,
    ) -> T:
        """Run `work()` in a front end's process; which entities it calls is added to `asked`.

        Raises:
            FrontEndDied: the process died first.
        """
        return await self.enter_front_end(front, work, lambda: ASKED.set(asked))

    def close(self) -> None:
        """End all processes and close all files."""
        if self.workers is not None:
            self.workers.close()
        super().close()
        self.disk.close()
