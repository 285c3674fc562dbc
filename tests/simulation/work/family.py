"""Instances that start instances, and what may befall them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from toque.api.changes import Change, StepRef
from toque.engines.failures import StepNotFound, StepUndone
from toque.runtime.codec import decode_json
from toque.runtime.entropy import Entropy
from toque.runtime.errors import InstanceNotFound, InvalidTransition, RequestRefused
from toque.testkit.parts import FrontEnd

from ..clients import Clients
from ..kin import CHILDREN, ENDLESS, FAMILY, HEARD, JOINS, params_of
from ..promises import FINAL
from .base import Work

_MADE = 4
_MADE_OFTEN = 12
_ENDS = "a parent ends as it must"
_BEFALLS = ("terminate", "cancel", "restart", "restart", "fork", "fork", "pause", "delete")


class Family(Work):
    """See the module. The workflow is one that no other item uses."""

    name = "family"
    part_of = 25
    counts = (
        "a workflow has children",
        *(f"a parent is told to {what}" for what in sorted(set(_BEFALLS))),
    )

    async def prepare(self) -> None:
        chance = self.run.chance("family account")
        accounts = self.run.plan.accounts
        self._account = accounts[chance.randrange(len(accounts))]
        await Clients(self.world, "family").deploy(self._account, FAMILY, class_name="Family")

    def begin(self) -> Iterable[Awaitable[None]]:
        on = self.world.switches.on
        made = _MADE_OFTEN if "family" in self.run.focus.often else _MADE
        return [self._make(n) for n in range(made) if on(f"family {n}")]

    async def _make(self, number: int) -> None:
        world, name = self.world, f"family {number}"
        chance = self.run.chance(name)
        one = _One(Clients(world, name), self._account, f"kin/{number}", _acts(chance, 2))
        befalls = _BEFALLS[chance.randrange(len(_BEFALLS))] if chance.randrange(2) else ""
        if "fork" in self.run.focus.often:
            befalls = "fork"
        after_s = chance.random() * 12
        await asyncio.sleep(chance.random() * 25)
        world.faults["a workflow has children"] += 1
        await one.create()
        if befalls:
            await asyncio.sleep(after_s)
            world.faults[f"a parent is told to {befalls}"] += 1
            await one.befall(befalls, chance)
        view = await one.ended()
        if view is not None and befalls in ("", "pause"):
            self._judge(one, view)

    def _judge(self, one: _One, view: Any) -> None:
        """Nothing has befallen it: it ends as its script says."""
        hold = self.world.promises.hold
        stops = any(how == "stop" for how, *_ in one.acts)
        status = "errored" if stops else "complete"
        hold(_ENDS, view.status == status, one.id, view.status, view.error)
        if view.status == "complete":
            for name, how, outcome in decode_json(view.output):
                right = HEARD.get(how, ("started",))
                hold(_ENDS, outcome in right, f"{one.id} {name}: {how} is {outcome}")

    async def judge(self) -> None:
        self.world.kin.judge()


def _acts(chance: Entropy, depth: int, is_child: bool = False) -> list[Any]:
    """A script."""
    draw = chance.randrange
    acts: list[Any] = []
    for number in range(1 + draw(4)):
        how = ("work", "work", "nap", *CHILDREN)[draw(3 + (len(CHILDREN) if depth else 0))]
        name, ms = f"{how}{number}", 1 + int(3_000 * chance.random() ** 2)
        if how not in CHILDREN:
            acts.append([how, name, ms, []])
            continue
        if how == "quick":
            ms = 1 + draw(60)  # while it is being made
        inner = _acts(chance, depth - 1, True)
        if how in JOINS:
            inner = [inner, _acts(chance, depth - 1, True)]
            if how == "first":
                inner[1].append(["forever", "forever", 0, []])
        if how in ENDLESS:
            inner.append(["forever", "forever", 0, []])
        elif how == "lost":
            inner.append(["stop", "stop", 0, []])
        acts.append([how, name, ms, inner])
    if not is_child:
        if draw(4) == 0:
            acts.append(["stop", "stop", 0, []])
        elif draw(5) == 0:
            acts.insert(draw(len(acts) + 1), ["again", "again", 0, []])
    return acts


class _One:
    """One instance at the head of a family."""

    def __init__(self, clients: Clients, account: str, id: str, acts: list[Any]) -> None:
        self.clients = clients
        self.account = account
        self.id = id
        self.acts = acts

    async def create(self) -> None:
        params = params_of(self.account, self.acts)
        await self._ask(
            "create_instance", instance_id=self.id, params=params, request_id=f"{self.id}+"
        )

    async def ended(self) -> Any:
        """How it stands when it has ended; None: it is deleted."""
        while True:
            try:
                view = await self._ask("wait_instance", self.id, 60_000)
            except InstanceNotFound:
                return None
            if view.status in FINAL:
                return view

    async def befall(self, what: str, chance: Entropy) -> None:
        """Something happens to it, in whatever state it is."""
        if what == "delete":
            await self._quietly("delete_instance", self.id, request_id=f"{self.id}-delete")
            self.clients.world.faults["deleted by a client"] += 1
        elif what == "pause":
            await self._change(Change("pause"), "pause")
            await asyncio.sleep(chance.random() * 8)
            await self._change(Change("resume"), "resume")
            await asyncio.sleep(8)  # a pause that came late
            await self._change(Change("resume"), "resume2")
        elif what in ("restart", "fork"):
            if chance.randrange(2):
                await self.ended()
            step = None
            if what == "fork":
                step = self._any_step(await self._ask("get_instance", self.id), chance)
            self.clients.world.stirred += 1
            await self._change(Change("restart", from_step=step), what)
        else:
            await self._change(Change(what), what)  # type: ignore[arg-type]

    def _any_step(self, view: Any, chance: Entropy) -> StepRef | None:
        types = {"step": "do", "sleep": "sleep", "startChild": "startChild", "child": "child"}
        steps = [step for step in view.steps if step.type in types]
        if not steps:
            return None
        step = steps[chance.randrange(len(steps))]
        name, _, count = step.name.rpartition("-")
        return StepRef(name, int(count), types[step.type])

    async def _change(self, change: Change, request: str) -> None:
        await self._quietly("change_status", self.id, change, request_id=f"{self.id}-{request}")

    async def _quietly(self, method: str, *args: Any, **options: Any) -> None:
        try:
            await self._ask(method, *args, **options)
        except (InvalidTransition, RequestRefused, InstanceNotFound, StepNotFound, StepUndone):
            pass  # it has ended, or is not as it was thought to be

    async def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        async def work(front: FrontEnd) -> Any:
            ask: Callable[..., Awaitable[Any]] = getattr(front.plane, method)
            return await ask(self.account, FAMILY, *args, **options)

        return await self.clients.attempt(f"{method} {self.id}", work, stubborn=True)


ITEM = Family
