"""Parents and children: a workflow whose instances start instances of itself, and what must hold.

A script is a list of acts `[how, name, ms, acts of the child]`. `work` is a step, `nap` a sleep,
`stop` an error, `forever` a sleep that outlasts the run, `again` continues as new with the acts
after it. The others start a child:

`run` waits for it at once, `later` after a nap, `idle` never; `lost` waits for one that fails,
`hasty` gives the wait up after a while, `quick` gives up the start; `left` abandons the child,
`killed` has it terminated; `taken` wants an id that is in use, `unknown` a workflow that there is
not. `all` and `first` join several, whose acts are a list each; of `first` only one ends by itself.

Children of `idle`, `hasty`, `quick` and `killed` never end by themselves: who is left of them is an
orphan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from toque.engines.failures import (
    ChildFailed,
    ChildIdTaken,
    ChildWorkflowNotFound,
    NonRetryableError,
)
from toque.engines.journal import Instance
from toque.engines.workflow import WorkflowDefinition
from toque.runtime.codec import encode_json, unpack

from .codecs import sealing
from .program import BodyHooks
from .promises import FINAL

if TYPE_CHECKING:
    from .world import World

FAMILY = "family"
"""The workflow's name."""
ENDLESS = ("idle", "hasty", "quick", "killed")
RACES = ("hasty", "quick")
"""Whose outcome hangs on who is first."""
LEFT = "left-"
"""In ids of children that are abandoned."""
JOINS = ("all", "first")
CHILDREN = ("run", "later", "lost", "left", "taken", "unknown", *JOINS, *ENDLESS)
HEARD = {
    "run": ("complete",),
    "later": ("complete",),
    "lost": ("errored",),
    "hasty": ("given up",),
    "quick": ("given up", "started"),
    "all": ("joined",),
    "first": ("joined",),
    "taken": ("id taken",),
    "unknown": ("no workflow",),
}
"""What a parent may hear that nothing has befallen."""
_QUICK = {"retries": {"limit": 2, "delay": 0.2, "backoff": "constant"}}
_LONG_S = 30 * 24 * 3_600
_ONCE = "a child is made once"
_RIGHT = "a parent hears how its child ended"
_STAYS = "what a parent has heard stays"
_ORPHAN = "no orphan is left"
_GOES_ON = "an abandoned child goes on"


class KinHooks(BodyHooks, Protocol):
    """Where they report."""

    def lives(self, run: str, life: str) -> None:
        """An instance begins to execute, in that life."""

    def heard(self, run: str, life: str, name: str, child: str, told: Any) -> None:
        """A parent hears of a child, at first or once more."""


class Kin:
    """What is known of families."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lives: dict[str, str] = {}
        self._heard: dict[tuple[str, str, str], Any] = {}

    def lives(self, run: str, life: str) -> None:
        """See `KinHooks`; nobody restarts a child, so it has one life."""
        if is_child(run):
            first = self._lives.setdefault(run, life)
            self._world.promises.hold(_ONCE, first == life, f"{run}: {first}, then {life}")

    def heard(self, run: str, life: str, name: str, child: str, told: Any) -> None:
        """See `KinHooks`."""
        hold = self._world.promises.hold
        known = self._heard.setdefault((run, life, name), told)
        if not name.startswith(RACES):  # `run` is told before the commit: a crash may decide anew
            hold(_STAYS, known == told, f"{run} {name} in {life}: {known}, then {told}")
        status, tokens = told
        if status not in FINAL:
            return
        is_so = self.status_of(run.split("/", 1)[0], child)
        hold(_RIGHT, is_so == status, f"{run} {name}: {child} is {is_so}, not {told}")
        whose = f"{'/'.join(run.split('/', 2)[:2])}/{child}#0"
        for step, token in tokens:
            self._world.bodies.ended_with(whose, step, token)

    def status_of(self, account: str, id: str) -> str | None:
        """The committed status of an instance; None: there is none."""
        for key, status in self.rows():
            if key.startswith(f"{account}/") and key.split("/", 2)[2] == id:
                return status
        return None

    def rows(self) -> list[tuple[str, str]]:
        """Keys and statuses of all families' instances."""
        sql = "SELECT entity, status FROM instances ORDER BY entity"
        world = self._world
        return [
            (key, status)
            for shard in world.placement.data_names()
            for key, status in world.disk.rows(shard, sql)
            if key.split("/", 2)[2].startswith("kin/")
        ]

    def _calls(self) -> list[tuple[str, str]]:
        """Keys of children, with what names their start."""
        sql = "SELECT entity, blob FROM instances ORDER BY entity"
        world, codecs = self._world, sealing()
        found = []
        for shard in world.placement.data_names():
            for key, blob in world.disk.rows(shard, sql):
                if key.split("/", 2)[2].startswith("kin/"):
                    seal = codecs.seal(key.split("/", 1)[0])
                    instance: Instance = unpack(seal.open(blob), Instance)
                    if instance.parent is not None:
                        found.append((key, instance.parent.call))
        return found

    def judge(self) -> None:
        """Everything has ended."""
        hold = self._world.promises.hold
        by_call: dict[str, str] = {}
        for key, call in self._calls():
            other = by_call.setdefault(call, key)
            hold(_ONCE, other == key, f"{call} has made {other} and {key}")
        for key, status in self.rows():
            if is_child(key):
                hold(_ORPHAN, status in FINAL, f"{key} is {status}")
            if LEFT in key.rsplit("/", 1)[1]:
                hold(_GOES_ON, status == "complete", f"{key} is {status}")


def is_child(name: str) -> bool:
    """Whether a run, or a key, is of one that another one started (`kin/n` are clients')."""
    return name.split("/", 2)[2].count("/") > 1


def family_entry(hooks: KinHooks) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
    """`run` for one process."""

    async def run(event: Any, step: Any) -> list[Any]:
        given = event.payload
        member = _Member(given, event, step, hooks)
        hooks.lives(member.run, member.life)
        acts = list(given["acts"])
        while acts:
            how, name, ms, inner = acts.pop(0)
            if how == "again":
                step.continue_as_new({**given, "acts": acts})
            await member.act(how, name, ms, inner)
        return member.seen if is_child(member.run) else member.told

    return run


def family(hooks: KinHooks) -> WorkflowDefinition:
    """The workflow for one process."""
    return WorkflowDefinition(FAMILY, "Family", family_entry(hooks), "v1")


class _Member:
    def __init__(self, given: Any, event: Any, step: Any, hooks: KinHooks) -> None:
        self.account: str = given["account"]
        self.id: str = event.instance_id
        self.run = f"{self.account}/{FAMILY}/{self.id}#0"
        self.life: str = step._core.whose.run
        self.step = step
        self.hooks = hooks
        self.seen: list[Any] = []
        self.told: list[Any] = []

    async def act(self, how: str, name: str, ms: int, inner: list[Any]) -> None:
        if how == "work":
            self.seen.append([name, await self.step.do(name, self._body(name, ms), config=_QUICK)])
        elif how == "nap":
            await self.step.sleep(name, ms / 1000)
        elif how == "forever":
            await self.step.sleep(name, _LONG_S)
        elif how == "stop":
            raise NonRetryableError("it stops", "Stopped")
        else:
            if how in JOINS:
                child, outcome, tokens = await self._join(how, name, inner)
            else:
                child, outcome, tokens = await self._child(how, name, ms, inner)
            self.told.append([name, how, outcome])
            self.hooks.heard(self.run, self.life, name, child, [outcome, tokens])

    def _body(self, name: str, ms: int) -> Callable[..., Any]:
        known = list(self.seen) if is_child(self.run) else []  # others are restarted from steps

        async def body(ctx: Any) -> Any:
            token = self.hooks.begin(self.run, self.life, name, ctx.attempt, known, False)
            await asyncio.sleep(ms / 1000)
            self.hooks.end(token)
            return token

        return body

    async def _join(self, how: str, name: str, acts: list[Any]) -> tuple[str, str, Any]:
        kids = [
            await self.step.start_child(
                f"{name}-{number}", FAMILY, {"account": self.account, "acts": inner}
            )
            for number, inner in enumerate(acts)
        ]
        got = await self.step.join(name, kids, mode=how, losers="cancel")
        is_whole = how == "first" or len(got) == len(kids)
        return "", "joined" if is_whole else "short", []

    async def _child(self, how: str, name: str, ms: int, inner: list[Any]) -> tuple[str, str, Any]:
        step, params = self.step, {"account": self.account, "acts": inner}
        options: dict[str, Any] = {}
        if how == "left":
            id = f"{self.id}/{LEFT}{name}-{self.life[:12]}"
            options = {"id": id, "on_parent_end": "abandon"}
        elif how == "killed":
            options = {"on_parent_end": "terminate"}
        elif how == "taken":
            options = {"id": self.id}
        workflow = "nobody" if how == "unknown" else FAMILY
        child = None
        try:
            if how in ("hasty", "quick"):
                async with asyncio.timeout(ms / 1000):
                    if how == "hasty":
                        await step.run_child(name, workflow, params, **options)
                    else:
                        await step.start_child(name, workflow, params, **options)
                return "", "started", []
            child = await step.start_child(name, workflow, params, **options)
            if how in ("idle", "left", "killed"):
                return child.id, "started", []
            if how == "later":
                await step.sleep(f"{name}-gap", ms / 1000)
            return child.id, "complete", await child.result()
        except TimeoutError:
            return "", "given up", []
        except ChildFailed as error:
            return error.data["id"], error.data["status"], []
        except ChildIdTaken:
            return "", "id taken", []
        except ChildWorkflowNotFound:
            return "", "no workflow", []


def params_of(account: str, acts: list[Any]) -> bytes:
    """Of a create."""
    return encode_json({"account": account, "acts": acts})
