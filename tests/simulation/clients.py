"""What clients do in a run: create, send events, look, terminate, list, change limits.

Each client talks to some front end, repeats what fails by weather with the same request id, and
notes what it was told in `Claims`. Now and then it gives up, and then nothing may be known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from toque.api.changes import Change, StepRef
from toque.api.listing import ListQuery
from toque.api.service import NewInstance
from toque.engines.failures import StepNotFound, StepUndone
from toque.engines.ports import ENGINE_KIND
from toque.engines.views import InstanceView
from toque.gatekeeper.messages import ACCOUNT_KIND, GATEKEEPER_KIND
from toque.gatekeeper.refusals import QueueFull
from toque.runtime.codec import decode_json, encode_json
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InstanceFinished,
    InstanceNotFound,
    InvalidTransition,
    Overloaded,
    RequestRefused,
    SystemFault,
)
from toque.runtime.ids import ACCOUNT_OLD_KIND, EntityRef
from toque.testkit.parts import FrontEnd, FrontEndDied

from .making import Script
from .promises import FINAL, Claim
from .verdict import Errand
from .world import World

_WEATHER = (SystemFault, FrontEndDied, QueueFull)
"""A queue is never full here: but front ends that died, and whose reports come once more, hold room
for some seconds."""
_OF_ACCOUNT = frozenset({ACCOUNT_KIND, ACCOUNT_OLD_KIND, GATEKEEPER_KIND})
PAGE = 10


class GivenUp(Exception):
    """A client stopped trying; whether its call took effect is not known."""


class Clients:
    """Clients of a run.

    Args:
        world: where they live; says how patient they are.
        name: of their own generator, so that others may be left out.
    """

    def __init__(self, world: World, name: str = "all") -> None:
        self.world = world
        self.entropy = world.entropy(f"clients of {name}")

    async def attempt(
        self,
        what: str,
        work: Callable[[FrontEnd], Coroutine[Any, Any, Any]],
        *,
        stubborn: bool,
        engine: Claim | None = None,
    ) -> Any:
        """Ask front ends until one gives an answer that is no weather.

        `engine`: it is asked of that instance, so its Engine alone may be asked.
        """
        world = self.world
        while True:
            front = world.fronts[self.entropy.randrange(len(world.fronts))]
            asked: list[EntityRef] = []
            try:
                return await world.ask(front, lambda front=front: work(front), asked)
            except _WEATHER as error:
                world.faults["client tries again"] += 1
                world.faults["overloaded"] += isinstance(error, Overloaded)
                world.trace.note("weather", what, type(error).__name__)
                if not stubborn and self.entropy.random() < world.impatience:
                    world.faults["client gives up"] += 1
                    raise GivenUp(what) from None
            finally:
                if engine is not None:
                    self._took_one_hop(what, engine, asked)
            await asyncio.sleep(0.05 + self.entropy.random())

    def _took_one_hop(self, what: str, claim: Claim, asked: list[EntityRef]) -> None:
        """Besides the account, for what front ends keep of it, only the Engine was asked."""
        others = {ref for ref in asked if ref.kind not in _OF_ACCOUNT}
        begin, end = f"{claim.account}/", f"/{claim.id}"
        wrong = [
            f"{kind}({key})"
            for kind, key in sorted(others)
            if kind != ENGINE_KIND or not (key.startswith(begin) and key.endswith(end))
        ]
        self.world.promises.hold(
            "an operation goes to its Engine directly",
            not wrong and len(others) <= 1,
            what,
            *wrong,
        )

    # --- deploys and settings ---------------------------------------------------------------

    async def deploy(
        self, account: str, workflow: str, version: str = "v1", class_name: str = "Program"
    ) -> None:
        """Register a workflow, or another version of it."""
        ref = EntityRef(ACCOUNT_KIND, account)
        of = (workflow, class_name, "simulation", version)

        async def work(front: FrontEnd) -> None:
            await front.router.call(ref, "put_workflow", *of)

        await self.attempt("deploy", work, stubborn=True)

    async def set_limit(self, account: str, limit: int) -> None:
        """Change an account's limit."""
        ref = EntityRef(ACCOUNT_KIND, account)

        async def work(front: FrontEnd) -> None:
            await front.router.call(ref, "set_limits", limit)

        await self.attempt("set_limits", work, stubborn=True)
        self.world.trace.note("limit", account, limit)

    async def set_workflow_limit(
        self, account: str, workflow: str, running_max: int, weight: int = 1
    ) -> None:
        """Limit how many instances of one workflow may run, and set its weight."""
        ref = EntityRef(ACCOUNT_KIND, account)

        async def work(front: FrontEnd) -> None:
            await front.router.call(ref, "set_workflow_limits", workflow, weight, running_max)

        await self.attempt("set_workflow_limits", work, stubborn=True)

    async def set_souschefs(self, account: str, workflow: str, wanted: int | None) -> None:
        """Set over how many SousChefs a workflow is spread; None: as many as its load needs."""
        ref = EntityRef(ACCOUNT_KIND, account)

        async def work(front: FrontEnd) -> None:
            await front.router.call(ref, "set_souschefs", workflow, wanted)

        await self.attempt("set_souschefs", work, stubborn=True)

    # --- one instance -----------------------------------------------------------------------

    async def create(self, errand: Errand, request: int = 0) -> None:
        """Create an errand's instance; `request` tells several creates of one id apart.

        Now and then the create waits for the end, too.
        """
        world, claim = self.world, errand.claim
        request_id = f"{errand.id}-{request}"
        params = encode_json(errand.params(request))
        known = claim.known()
        wait_ms = 30_000 if self.entropy.randrange(6) == 0 else 0

        async def work(front: FrontEnd) -> Any:
            return await front.plane.create_instance(
                claim.account,
                claim.workflow,
                instance_id=errand.id,
                params=params,
                request_id=request_id,
                wait_ms=wait_ms,
            )

        try:
            view = await self.attempt(f"create {errand.id}", work, stubborn=False, engine=claim)
        except InstanceAlreadyExists:
            world.claims.refused_duplicate(claim, request_id)
            world.faults["create refused as a duplicate"] += 1
        else:
            world.trace.note("created", errand.id, request_id, view.status)
            world.claims.created(claim, request_id, params, view, known)

    async def create_surely(self, errand: Errand) -> None:
        """As `create`, until it is answered."""
        while not errand.claim.acked:
            await quietly(self.create(errand))

    async def create_batch(self, errands: list[Errand], batch: str) -> None:
        """Create several instances of one workflow with one request."""
        first = errands[0].claim
        bodies = [encode_json(errand.params(0)) for errand in errands]
        new = [NewInstance(e.id, body) for e, body in zip(errands, bodies, strict=True)]
        known = [errand.claim.known() for errand in errands]

        async def work(front: FrontEnd) -> Any:
            return await front.plane.create_instances(
                first.account, first.workflow, new, request_id=batch
            )

        made = await self.attempt(f"batch {batch}", work, stubborn=True)
        self.world.promises.hold(
            "a repeated batch gets the first answer", not made.existing, batch, made.existing
        )
        views = {view.id: view for view in made.created}
        for index, errand in enumerate(errands):
            self.world.claims.created(
                errand.claim, f"{batch}#{index}", bodies[index], views[errand.id], known[index]
            )
        self.world.trace.note("batch", batch, len(made.created))

    async def look(self, errand: Errand) -> Any:
        """Read the instance with its steps."""
        claim = errand.claim
        was_acked, known = claim.acked, claim.known()

        async def work(front: FrontEnd) -> Any:
            return await front.plane.get_instance(claim.account, claim.workflow, errand.id)

        try:
            view = await self.attempt(f"view {errand.id}", work, stubborn=True, engine=claim)
        except InstanceNotFound:
            self.world.claims.missing(claim, was_acked)
            return None
        self.world.claims.viewed(claim, view, known)
        errand.saw_steps(view)
        return view

    async def wait(self, errand: Errand) -> None:
        """Wait until the instance has ended."""
        claim = errand.claim

        async def work(front: FrontEnd) -> Any:
            return await front.plane.wait_instance(claim.account, claim.workflow, errand.id, 60_000)

        while True:
            was_acked, known = claim.acked, claim.known()
            try:
                view = await self.attempt(f"wait {errand.id}", work, stubborn=True, engine=claim)
            except InstanceNotFound:
                self.world.claims.missing(claim, was_acked)
                return
            self.world.claims.viewed(claim, view, known)
            if view.status in FINAL:
                return

    async def send_events(
        self, errand: Errand, event_type: str, count: int, first: int = 0
    ) -> None:
        """Send events of one type, each after the one before was acknowledged."""
        claim, world = errand.claim, self.world
        for number in range(first, first + count):
            await asyncio.sleep(self.entropy.random() ** 2 * 10)
            payload = encode_json(number)
            errand.sent[event_type].append(None)

            async def work(front: FrontEnd, number: int = number, payload: bytes = payload) -> int:
                at_ms: int = await front.plane.send_event(
                    claim.account,
                    claim.workflow,
                    errand.id,
                    event_type,
                    payload,
                    request_id=f"{errand.id}-{event_type}-{number}",
                )
                return at_ms

            try:
                at_ms = await self.attempt(f"event {errand.id}", work, stubborn=False, engine=claim)
            except (InstanceFinished, GivenUp):
                return
            except InstanceNotFound:
                world.claims.missing(claim, claim.acked)
                return
            errand.sent[event_type][number] = at_ms
            world.trace.note("event", errand.id, event_type, number)

    async def terminate(self, errand: Errand, *, rollback: bool = False) -> None:
        """Terminate the instance, perhaps after undoing what it did."""
        known = errand.claim.known()
        errand.may_be_terminated = True
        what = Change("terminate", rollback=rollback)
        try:
            request = "undo" if rollback else "end"
            view = await self._change(errand, what, request, stubborn=False)
        except GivenUp:
            return
        if view is not None and not rollback and errand.claim.known().restarts == known.restarts:
            self.world.promises.hold(
                "a terminated instance is terminated", view.status == "terminated", errand.id
            )

    async def restart(self, errand: Errand, number: int, fork: str = "") -> None:
        """Restart the instance, from a step if one is named; until it is answered."""
        claims, bodies = self.world.claims, self.world.bodies
        claims.restarting(errand.claim)
        before = None
        if fork:
            errand.fork = fork
            before = bodies.restarts_from(errand.run, errand.kept_by(fork))
        else:
            errand.drops.append(errand.claim.carried)
        what = Change("restart", from_step=StepRef(fork) if fork else None)
        try:
            await self._change(errand, what, f"restart-{number}", stubborn=True)
        except (StepNotFound, StepUndone, RequestRefused):
            bodies.restarts_from(errand.run, before)
            self.world.faults["restart refused"] += 1
        finally:
            claims.restarted(errand.claim)

    async def pause(self, errand: Errand, request: str) -> None:
        """Pause the instance; until it is answered."""
        await self._change(errand, Change("pause"), f"pause-{request}", stubborn=True)

    async def resume(self, errand: Errand, request: str) -> None:
        """Resume it; until it is answered."""
        await self._change(errand, Change("resume"), f"resume-{request}", stubborn=True)

    async def pause_a_while(self, errand: Errand, *, stubborn: bool) -> None:
        """Pause the instance, and resume it; a pause may come late, so until it has ended."""
        try:
            await self._change(errand, Change("pause"), "pause", stubborn=stubborn)
        except GivenUp:
            pass
        number = 0
        while errand.claim.final is None:
            is_short = self.entropy.randrange(3) == 0  # bodies in flight may go on
            await asyncio.sleep(self.entropy.random() * (0.6 if is_short else 15))
            number += 1
            resume = Change("resume")
            if await self._change(errand, resume, f"resume-{number}", stubborn=True) is None:
                return

    async def live_again(
        self,
        account: str,
        workflow: str,
        id: str,
        scripts: list[Script],
        *,
        goes: bool,
        stirs: bool = True,
    ) -> None:
        """One id has several lives: each is deleted, early or late; the last only if it `goes`.

        `stirs`: something else may have been done with it before.
        """
        world, hold = self.world, self.world.promises.hold
        world.ids[account, workflow].add(id)
        for life, script in enumerate(scripts):
            run = f"{account}/{workflow}/{id}#{life}"
            params = encode_json(script.params(run))

            async def create(front: FrontEnd, life: int = life, params: bytes = params) -> Any:
                return await front.plane.create_instance(
                    account, workflow, instance_id=id, params=params, request_id=f"{id}+{life}"
                )

            async def delete(front: FrontEnd, life: int = life) -> None:
                await front.plane.delete_instance(account, workflow, id, request_id=f"{id}-{life}")

            async def wait(front: FrontEnd) -> Any:
                return await front.plane.wait_instance(account, workflow, id, 60_000)

            try:
                view = await self.attempt(f"create {id}", create, stubborn=True)
            except InstanceAlreadyExists as error:
                hold("a deleted id is free at once", False, run, error)
                return
            self._is_of(run, view)
            is_last = life == len(scripts) - 1
            if is_last and not goes:
                while view.status not in FINAL:
                    view = await self.attempt(f"wait {id}", wait, stubborn=True)
                self._is_of(run, view)
                wanted = "errored" if script.doomed else "complete"
                hold("a program ends as it must", view.status == wanted, run, view.error)
                return
            await asyncio.sleep(self.entropy.random() ** 2 * 10)
            if stirs:
                await self._stir(account, workflow, id, f"{id}*{life}")
            try:
                await self.attempt(f"delete {id}", delete, stubborn=True)
            except InstanceNotFound as error:
                hold("a repeated delete gets the first answer", False, run, error)
                return
            hold("a repeated delete gets the first answer", True)
            hold("a deleted id is free at once", True)
            world.deleted.add(run)
            world.faults["deleted by a client"] += 1
            world.trace.note("deleted", run)

    def _is_of(self, run: str, view: InstanceView) -> None:
        shown = decode_json(view.params)["run"]
        self.world.promises.hold("a new life is its own", shown == run, run, shown)

    async def _stir(self, account: str, workflow: str, id: str, request: str) -> None:
        """Something may have been done with an instance before it is deleted."""
        changes = (*("pause", "cancel", "restart", Change("terminate", rollback=True), "", "", ""),)
        change = changes[self.entropy.randrange(len(changes))]
        if not change:
            return
        self.world.stirred += 1

        async def work(front: FrontEnd) -> Any:
            return await front.plane.change_status(
                account, workflow, id, change, request_id=request
            )

        try:
            await self.attempt(f"stir {id}", work, stubborn=True)
        except (InvalidTransition, RequestRefused):
            pass

    async def cancel(self, errand: Errand) -> None:
        """Cancel the instance."""
        errand.may_be_cancelled = True
        try:
            await self._change(errand, Change("cancel"), "cancel", stubborn=False)
        except GivenUp:
            pass

    async def _change(
        self, errand: Errand, change: Change, request: str, *, stubborn: bool
    ) -> InstanceView | None:
        """A change of status. None: refused, since it has ended (or is not there)."""
        claim, known, world = errand.claim, errand.claim.known(), self.world

        async def work(front: FrontEnd) -> Any:
            return await front.plane.change_status(
                claim.account,
                claim.workflow,
                errand.id,
                change,
                request_id=f"{errand.id}-{request}",
            )

        try:
            view: InstanceView = await self.attempt(
                f"{change.change} {errand.id}", work, stubborn=stubborn, engine=claim
            )
        except InvalidTransition:
            return None
        except RequestRefused:  # an answer that was lost had said why
            if change.from_step is not None:
                raise
            return None
        except InstanceNotFound:
            world.claims.missing(claim, claim.acked)
            return None
        world.faults[f"{_told(change)} by a client"] += 1
        world.trace.note(change.change, errand.id, view.status)
        world.claims.viewed(claim, view, known)
        return view

    # --- lists ------------------------------------------------------------------------------

    async def list_all(self, account: str, workflow: str) -> None:
        """Walk a list by cursor: each instance acknowledged before is on it, and none twice."""
        before = self._acknowledged(account, workflow)
        seen: list[str] = []
        cursor: str | None = None
        while True:
            query = ListQuery(cursor=cursor, per_page=PAGE)

            async def work(front: FrontEnd, query: ListQuery = query) -> Any:
                return await front.plane.list_instances(account, workflow, query)

            listed = await self.attempt(f"list {workflow}", work, stubborn=True)
            seen.extend(row.id for row in listed.page.rows)
            cursor = listed.cursor
            if cursor is None:
                break
        hold = self.world.promises.hold
        hold("a list shows nothing twice", len(seen) == len(set(seen)), seen)
        others = sorted(set(seen) - self.world.ids[account, workflow])
        hold("a list shows its own instances only", not others, account, workflow, others)
        missing = sorted(claim.id for claim in before if claim.id not in set(seen))
        hold("a list misses nothing acknowledged", not missing, workflow, missing)
        self.world.trace.note("listed", account, workflow, len(seen))

    def _acknowledged(self, account: str, workflow: str) -> list[Claim]:
        return [
            claim
            for claim in self.world.claims.acknowledged
            if (claim.account, claim.workflow) == (account, workflow)
        ]


def _told(change: Change) -> str:
    """A change, as it is counted."""
    if change.change == "restart":
        return "restarted from a step" if change.from_step else "restarted"
    if change.change == "terminate":
        return "terminated with rollback" if change.rollback else "terminated"
    return {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}[change.change]


async def quietly(work: Awaitable[None]) -> None:
    """Do it, or give it up."""
    try:
        await work
    except GivenUp:
        pass
