"""An account on V1 that moves to V2 while its instances run; now and then it is held or taken back.

The account is this item's own. Every third of its creates on V1 has no Engine until the account
heals, so an instance of it can only end if the move does. Some ids are created a second time by
another request: before, while and after the account heals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any

from toque.migration.messages import MIGRATION_KIND, MigrationStatus, old_key
from toque.migration.refusals import AbortRefused, MigrationRefused, MigrationUnderWay
from toque.runtime.ids import ACCOUNT_OLD_KIND, EntityRef
from toque.testkit.parts import FrontEnd

from ..clients import Clients, quietly
from ..making import ProgramMaker, waits_of
from ..program import EVENT_TYPES
from .base import Work
from .jobs import after

ACCOUNT = "moves"
_WORKFLOWS = ("alpha", "delta")
_JOBS = 10
_OLD = EntityRef(ACCOUNT_OLD_KIND, old_key(ACCOUNT))


async def make_on_v1(clients: Clients) -> None:
    """Make the account."""

    async def make(front: FrontEnd) -> None:
        await front.plane.accounts.ensure_account(ACCOUNT, "v1")

    await clients.attempt("make on V1", make, stubborn=True)


async def deploy_on_v1(clients: Clients, workflow: str) -> None:
    """Register a workflow with it."""

    async def deploy(front: FrontEnd) -> None:
        what = (workflow, "Program", "simulation", "v1", True)
        await front.router.call(_OLD, "put_workflow", *what)

    await clients.attempt("deploy on V1", deploy, stubborn=True)


class Moving(Work):
    """See the module."""

    name = "moving"
    part_of = 30
    counts = (
        "an account moved",
        "a move was held",
        "a move was taken back",
        "it was too late to take a move back",
        "an id was created again while its account moved",
    )

    async def prepare(self) -> None:
        clients = Clients(self.world, "moving set-up")
        await make_on_v1(clients)
        for workflow in _WORKFLOWS:
            await deploy_on_v1(clients, workflow)

    def begin(self) -> Iterable[Awaitable[None]]:
        on = self.world.switches.on
        work: list[Awaitable[None]] = [self._move()]
        work += [self._job(number) for number in range(_JOBS) if on(f"moving job {number}")]
        for number, workflow in enumerate(_WORKFLOWS):
            walk = partial(Clients(self.world, f"moving {number}").list_all, ACCOUNT, workflow)
            work.append(after(12.0 + 8 * number, walk))
        return work

    # --- instances --------------------------------------------------------------------------

    async def _job(self, number: int) -> None:
        run, name = self.run, f"moving job {number}"
        chance, clients = run.chance(name), Clients(self.world, name)
        draw = chance.randrange
        maker = ProgramMaker(chance, size=3, focus=run.focus, extra=run.modes)
        scripts = [maker.script() for _ in range(1 + draw(2))]
        workflow = _WORKFLOWS[draw(len(_WORKFLOWS))]
        errand = run.errand(ACCOUNT, workflow, f"moving/{number}", scripts)
        waits = waits_of(scripts[0].ops)
        events = {kind: draw(waits + 1) if waits else 0 for kind in EVENT_TYPES}
        times = [chance.random() * 15, chance.random() * 40]
        befalls = draw(6)
        await asyncio.sleep(times[0])
        await clients.create_surely(errand)
        also: list[Awaitable[Any]] = [
            clients.send_events(errand, kind, n) for kind, n in events.items() if n
        ]
        if len(scripts) > 1:
            also.append(self._again(clients, errand, times[1]))
        if befalls == 0:
            also.append(after(times[1], partial(clients.terminate, errand)))
        if befalls == 1:
            pause = partial(clients.pause_a_while, errand, stubborn=False)
            also.append(after(times[1] / 2, pause))
        await asyncio.gather(clients.wait(errand), *also)

    async def _again(self, clients: Clients, errand: Any, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.world.faults["an id was created again while its account moved"] += 1
        await quietly(clients.create(errand, 1))

    # --- the move ---------------------------------------------------------------------------

    async def _move(self) -> None:
        """Until it is made, whatever comes between."""
        chance, clients = self.run.chance("move"), Clients(self.world, "move")
        number = 0
        await asyncio.sleep(3 + chance.random() * 15)
        while True:
            number += 1
            found = await self._ask(clients, "start", f"move-{number}", 0)
            if chance.randrange(2):
                await asyncio.sleep(chance.random() ** 2 * 2)
                await self._ask(clients, "pause", f"hold-{number}")
                self.world.faults["a move was held"] += 1
                await asyncio.sleep(chance.random() * 10)
            if chance.randrange(3) == 0 and await self._taken_back(clients, f"back-{number}"):
                await asyncio.sleep(chance.random() * 8)
                continue
            await self._ask(clients, "resume", f"go-{number}")
            while found.state not in ("aborted", "drained", "retired"):
                await asyncio.sleep(1.0)
                found = await self._ask(clients, "status")
            if found.state != "aborted":
                self.world.faults["an account moved"] += 1
                return

    async def _taken_back(self, clients: Clients, request: str) -> bool:
        """Ask for it; that some shard is away may put the verdict off."""
        try:
            found = await self._ask(clients, "abort", request)
        except AbortRefused:
            self.world.faults["it was too late to take a move back"] += 1
            return False
        while found.state == "aborting":
            await asyncio.sleep(0.5)
            found = await self._ask(clients, "status")
        is_back = found.state == "aborted"
        self.world.faults["a move was taken back"] += is_back
        told = "a move that was taken back was never there"
        self.world.promises.hold(told, not is_back or found.plane in ("v1", ""), found)
        return is_back

    async def _ask(self, clients: Clients, method: str, *args: Any) -> MigrationStatus:
        async def work(front: FrontEnd) -> MigrationStatus:
            caller = front.plane._caller
            ref = EntityRef(MIGRATION_KIND, ACCOUNT)
            found: MigrationStatus = await caller.call(
                MigrationStatus, caller.deadline(), ref, method, *args
            )
            return found

        while True:
            try:
                found = await clients.attempt(f"{method} the move", work, stubborn=True)
            except (MigrationRefused, MigrationUnderWay) as refused:  # a shard is away, say
                self.world.trace.note("refused", method, refused)
                await asyncio.sleep(1.0)
            else:
                self.world.trace.note("move", method, found.state, found.plane)
                return found

    # --- the end ----------------------------------------------------------------------------

    async def judge(self) -> None:
        world = self.world
        hold = world.promises.hold
        found = await self._ask(Clients(world, "moved"), "status")
        hold("a move comes to its end", found.state in ("drained", "retired"), found)
        for shard in world.placement.control_names():
            unborn = world.disk.rows(shard, "SELECT entity, id FROM account_old_unborn")
            hold("every instance of V1 has an Engine", not unborn, *unborn)
        for workflow in _WORKFLOWS:
            await Clients(world, "moved lists").list_all(ACCOUNT, workflow)


ITEM = Moving
