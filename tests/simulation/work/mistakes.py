"""Workflows with an author's mistake in them: each ends as it must, and does nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from toque.runtime.codec import encode_json
from toque.runtime.errors import InstanceFinished, InvalidTransition, RequestRefused
from toque.testkit.parts import FrontEnd

from ..clients import Clients
from ..mistakes import AFTER, BEFORE, EVENT, MISTAKEN, MISTAKES, VARIANT, Asked, Mistake
from ..promises import FINAL
from .base import Work

_MADE = 6
_MADE_OFTEN = 24
_ENDS = "an author's mistake ends as it says"
_NOTHING_MORE = "what follows a mistake never begins"
_ONE_WAY = "a run that does not repeat itself begins nothing more"


class Mistakes(Work):
    """See the module. The workflow is one that no other item uses."""

    name = "mistakes"
    part_of = 50
    counts = ("an author made a mistake", "run did not repeat itself")

    async def prepare(self) -> None:
        chance = self.run.chance("mistaken account")
        accounts = self.run.plan.accounts
        self._account = accounts[chance.randrange(len(accounts))]
        await Clients(self.world, "mistakes").deploy(self._account, MISTAKEN, class_name="Mistaken")

    def begin(self) -> Iterable[Awaitable[None]]:
        on = self.world.switches.on
        made = _MADE_OFTEN if "mistakes" in self.run.focus.often else _MADE
        return [self._make(n) for n in range(made) if on(f"mistake {n}")]

    async def _make(self, number: int) -> None:
        world, name = self.world, f"mistake {number}"
        chance, clients = self.run.chance(name), Clients(world, name)
        may_exit = "exit" in self.run.modes
        names = [name for name, mistake in MISTAKES.items() if may_exit or not mistake.exits]
        what = names[chance.randrange(len(names))]
        one = _One(clients, self._account, f"odd/{number}", what)
        await asyncio.sleep(chance.random() * 25)
        world.faults["an author made a mistake"] += 1
        view = await one.play()
        self._judge(one, view)

    def _judge(self, one: _One, view: Any) -> None:
        mistake, hold = one.mistake, self.world.promises.hold
        error = view.error.name if view.error is not None else ""
        says = view.error.message if view.error is not None else ""
        undone = view.rollback.outcome if view.rollback is not None else ""
        told = f"{one.run}, {one.what}: {view.status}, {view.error}, rolled back: {undone!r}"
        status = "terminated" if mistake.cancels else "errored" if error else "complete"
        is_right = error in mistake.ends and view.status == status and undone in mistake.undone
        hold(_ENDS, is_right and (error != mistake.ends[0] or mistake.says in says), told)
        names = [e.step for e in self.world.bodies.executions if e.run == one.run]
        begun = mistake.params or BEFORE in names
        hold(_NOTHING_MORE, begun and (AFTER not in names or one.what == "none"), told, names)
        if mistake.again:
            self.world.faults["run did not repeat itself"] += error == "NonDeterminism"
            variants = {name for name in names if name.startswith(VARIANT)}
            hold(_ONE_WAY, len(variants) <= 1, told, sorted(variants))


class _One:
    """One instance with a mistake."""

    def __init__(self, clients: Clients, account: str, id: str, what: str) -> None:
        self.clients = clients
        self.account = account
        self.id = id
        self.what = what
        self.mistake: Mistake = MISTAKES[what]
        self.run = f"{account}/{MISTAKEN}/{id}#0"

    async def play(self) -> Any:
        """Create it and see to its end; gives how it stands then."""
        mistake, id = self.mistake, self.id
        params = mistake.params or encode_json(Asked(self.what, self.run))
        view = await self._ask(
            "create_instance", instance_id=id, params=params, request_id=f"{id}+"
        )
        if mistake.event:
            await self._send(mistake.event)
        if mistake.again:
            await self._until_it_waits("on")
            await self._change("pause")
            while (view := await self._ask("get_instance", id)).status == "waitingForPause":
                await asyncio.sleep(0.5)
            await self._change("resume")
            await self._send(b"0")
        elif mistake.cancels:
            await self._until_it_waits("long")
            await self._change("cancel")
        while view.status not in FINAL:
            view = await self._ask("wait_instance", id, 60_000)
        return view

    async def _until_it_waits(self, name: str) -> None:
        while True:
            view = await self._ask("get_instance", self.id)
            waits = any(step.name == f"{name}-1" for step in view.steps)
            if view.status in FINAL or (view.status == "waiting" and waits):
                return
            await asyncio.sleep(0.5)

    async def _send(self, payload: bytes) -> None:
        try:
            await self._ask("send_event", self.id, EVENT, payload, request_id=f"{self.id}-sent")
        except InstanceFinished:
            pass

    async def _change(self, change: str) -> None:
        try:
            await self._ask("change_status", self.id, change, request_id=f"{self.id}-{change}")
        except (InvalidTransition, RequestRefused):
            pass  # it has ended

    async def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        async def work(front: FrontEnd) -> Any:
            ask: Callable[..., Awaitable[Any]] = getattr(front.plane, method)
            return await ask(self.account, MISTAKEN, *args, **options)

        return await self.clients.attempt(f"{method} {self.id}", work, stubborn=True)


ITEM = Mistakes
