"""A simulation for a test: users' workflows on virtual time, in this process, from a seed.

    with Simulation([Order]) as sim:
        order = sim.create(Order, params={"total": 7})
        sim.advance("3 days")
        assert order.result() == "paid"

The code is toque's own from the control plane's operations down to SQLite; Ray, HTTP, threads and
real time are left out. A simulation is blocking and belongs to one thread.
"""

from __future__ import annotations

import inspect
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ..api.client import Client
from ..api.client_embedded import EmbeddedBackend
from ..api.client_values import InstanceStatus
from ..api.watched import waiting_lines
from ..api.wiring import DEFAULT_ACCOUNT, ObjectStub
from ..engines.durations import Duration, duration_ms
from ..engines.status import FINISHED
from ..engines.workflow import WorkflowDefinition, check_names, definition_of
from ..runtime.datadir import BLOBS_FOLDER
from ..runtime.entity import DurableObject
from ..runtime.errors import InstanceNotFound, InvalidArgument
from ..runtime.guarded import shown
from ..runtime.ids import EntityRef, engine_key
from ..runtime.limits import (
    TESTKIT_COMMITS_MAX,
    TESTKIT_MEMORY_FREE_BYTES,
    TESTKIT_STORY_LINES_SHOWN,
    TESTKIT_WAIT_MAX_MS,
)
from .bodies import UNSAID, Execution, Mock
from .bridge import bridged
from .driving import Driver
from .errors import WaitsForever
from .handles import SimInstance
from .histories import History
from .histories_sqlite import histories_in
from .mishaps import CALM, Mishaps
from .users import UsersWorld

T = TypeVar("T")
START = "2026-01-01T00:00:00Z"
_RESTS = frozenset({"waiting", "paused", *FINISHED})
_IN_MEMORY = "/dev/shm"


class Simulation:
    """See the module.

    Args:
        workflows: a workflow class or function, or several; `DurableObject` classes too.
        seed: decides ids, delays and mishaps: the same seed and test, the same run.
        start: the wall clock at the beginning: an ISO text with its offset, or a `datetime`
            with its zone.
        mishaps: what befalls it; none, if not given.

    Attributes:
        client: of the one account that there is; to be used in `run`, and in bodies of steps.

    Raises:
        InvalidArgument, WorkflowLoadError: one of these is not as it must be.
    """

    def __init__(
        self,
        workflows: Any,
        *,
        seed: int = 0,
        start: str | datetime = START,
        mishaps: Mishaps = CALM,
    ) -> None:
        given = list(workflows) if _is_many(workflows) else [workflows]
        objects = [one for one in given if _is_entity(one)]
        self._definitions = [definition_of(one) for one in given if not _is_entity(one)]
        check_names(self._definitions)
        if type(seed) is not int or seed < 0:
            raise InvalidArgument(f"the seed is {shown(seed)}; it must be a number, 0 or more.")
        start_ms = _instant_ms(start)
        self.seed = seed
        self.mishaps = mishaps
        self._folder = tempfile.TemporaryDirectory(prefix="toque-sim-", dir=_fast_folder())
        self._world = world = UsersWorld(
            seed, Path(self._folder.name), self._definitions, objects, start_ms, mishaps
        )
        self._front = world.open_front_end()
        entropy = world.entropy("client")
        self._driver = Driver(world, self._front, entropy.new_id)
        backend = EmbeddedBackend(self._front.plane, DEFAULT_ACCOUNT)
        self.client = Client(bridged(backend, self._front.process), entropy)
        try:
            for shard in world.sites:
                world.boot(shard)
            self._driver.run(lambda: world.deploy(self._front.plane))
        except BaseException:
            self.close()
            raise
        self._uuids = {name: uuid for uuid, name in world.names.items()}
        world.befall()

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it; instances that have not ended are gone. May be called again."""
        if not self._driver.is_closed:
            self._driver.is_closed = True
            self._world.close()
            self._folder.cleanup()

    # --- time -------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The wall clock of the simulation, in UTC."""
        return datetime.fromtimestamp(self._world.clock.now_ms() / 1000, UTC)

    def advance(self, by: Duration) -> None:
        """Let so much virtual time pass: seconds, `"3 days"` or a `timedelta`."""
        seconds = duration_ms(by, "the time to advance by", max_ms=_FAR_MS) / 1000
        self._driver.wait(lambda: False, seconds)

    def settle(self, within: Duration | None = None) -> None:
        """Let time pass until every instance rests: it has ended, waits, or is paused.

        What one has told another, as a child does at its end, has been taken then.

        Raises:
            WaitsForever: one still ran, or was queued, after `within` (None: two years, or 20,000
                commits).
        """
        world = self._world
        is_late = not self._wait(
            lambda: _RESTS.issuperset(world.statuses.values()) and not world.has_letters(),
            within,
        )
        if is_late:
            busy = [key for key, status in world.statuses.items() if status not in _RESTS]
            self._raise_late(f"{len(busy)} instances did not come to rest", within)

    def until(self, is_so: Callable[[], object], within: Duration | None = None) -> None:
        """Let time pass until `is_so()`, which is asked after each commit; it may use handles.

        Raises:
            WaitsForever: it was not so after `within` (None: two years, or 20,000
                commits).
        """
        until_s = self._world.loop.time() + _seconds(within)
        is_tired = self._tires(within)
        while not is_so():
            left_s = until_s - self._world.loop.time()
            if left_s <= 0 or is_tired():
                self._raise_late("what the test waits for did not come", within)
            self._driver.wait(partial(self._has_committed, self._world.commits), left_s)

    def _has_committed(self, since: int) -> bool:
        return self._world.commits > since

    def wait_for_end(self, instance: SimInstance, within: Duration | None) -> None:
        """Let time pass until an instance has ended; see `SimInstance.wait`."""
        key = engine_key(DEFAULT_ACCOUNT, self._uuid(instance.workflow), instance.id)
        if key not in self._world.statuses:
            instance.status()  # which says that there is none
        if not self._wait(lambda: self._world.statuses.get(key) in FINISHED, within):
            self._raise_late(f"{instance.workflow} {instance.id!r} has not ended", within)

    # --- instances --------------------------------------------------------------------------

    def create(
        self,
        workflow: Any,
        params: Any = None,
        id: str | None = None,
    ) -> SimInstance:
        """Make an instance.

        Args:
            workflow: its name, or the class or function itself.
            params: JSON-like data, dataclass, model, ...
            id: None: one is made.
        """
        name = self._name(workflow)
        made = self.ask(lambda key: self.client.create_instance(name, id, params, request_id=key))
        return SimInstance(self, name, made.id)

    def instance(self, workflow: Any, id: str) -> SimInstance:
        """A handle to an instance that something else has made: a workflow, or `run`."""
        return SimInstance(self, self._name(workflow), id)

    def instances(self) -> list[SimInstance]:
        """All instances, in the order of workflows and ids."""
        names = self._world.names
        parts = (key.split("/", 2) for key in self._world.statuses)
        found = sorted((names.get(uuid, uuid), id) for _, uuid, id in parts)
        return [SimInstance(self, name, id) for name, id in found]

    def history_of(self, instance: SimInstance) -> History:
        """The journal of an instance; see `SimInstance.history`."""
        self._driver.check()
        wanted = engine_key(DEFAULT_ACCOUNT, self._uuid(instance.workflow), instance.id)
        store = self._world.path_of("d0")
        blobs = Path(self._folder.name) / BLOBS_FOLDER / "d0"
        for found in histories_in(store, blobs, lambda key, _: key == wanted):
            return found
        raise InstanceNotFound(f"there is no instance {instance.id!r} of {instance.workflow!r}.")

    def ends(self) -> dict[str, InstanceStatus]:
        """How every instance stands, without its steps, by `workflow/id`."""
        return {f"{one.workflow}/{one.id}": one.status() for one in self.instances()}

    # --- bodies -----------------------------------------------------------------------------

    def mock_step(
        self,
        step: str,
        body: Callable[..., Any] | None = None,
        *,
        returns: Any = UNSAID,
        raises: BaseException | type[BaseException] | None = None,
        times: int | None = None,
        takes: Duration = 0,
        workflow: Any = None,
    ) -> Mock:
        """Replace the body of a step; its result is recorded as usual. The newest mock counts.

        Args:
            step: a step's name, or the public name of one use of it (`charge-2`); rollbacks are
                named `rollback charge`.
            body: called in its place, with what it names: `ctx` (a `MockContext`), and parameters
                of the body that it replaces. Async or not.
            returns: what to give; `raises`: what to raise: one of the three.
            times: how many executions it replaces; None: all.
            takes: virtual time before it gives or raises anything.
            workflow: of that workflow only.
        """
        name = None if workflow is None else self._name(workflow)
        return self._world.stage.mock(step, body, returns, raises, times, takes, name)

    def executions(self, step: str | None = None, workflow: Any = None) -> list[Execution]:
        """Which bodies ran, oldest first, repetitions after a crash included."""
        name = None if workflow is None else self._name(workflow)
        return [
            one
            for one in self._world.stage.executions
            if (step is None or step in (one.step, one.name)) and name in (None, one.workflow)
        ]

    def counts(self) -> Counter[tuple[str, str, str]]:
        """How often the body of each step ran: by workflow, instance and step."""
        return Counter(self._world.stage.counts)

    # --- the rest ---------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run async code of a client in virtual time, for example with `sim.client`."""
        if isinstance(work, Coroutine):
            given = work
            return self._driver.run(lambda: given)
        if not callable(work):
            raise InvalidArgument(
                f"what is to run is {shown(work)}; it must be a coroutine, or a function that "
                "gives one. Right: sim.run(place_order(sim.client))."
            )
        return self._driver.run(work)

    def object(self, kind: str, key: str) -> ObjectStub:
        """A stub of a user's entity: `sim.run(sim.object("Counter", "a").add(1))`."""
        return _Objects(self._front.router, EntityRef(kind, key))

    @property
    def digest(self) -> str:
        """A hash of all that has happened: equal for two runs if they were the same."""
        return self._world.trace.digest()

    @property
    def commits(self) -> int:
        """How many commits the shards have made, or were about to make when they died."""
        return self._world.commits

    def crash(self, shard: str = "d0", down: Duration = 1) -> None:
        """Kill the process of a shard now (`d0`: instances, `c0`: control); it comes back.

        Args:
            shard: which.
            down: after how much virtual time.
        """
        if shard not in self._world.sites:
            raise InvalidArgument(f"there is no shard {shown(shard)}; there are d0 and c0.")
        self._driver.check()
        self._world.story.tell(f"CRASH of shard {shard}, as the test says")
        self._world.crash(shard, "lost", duration_ms(down, "down") / 1000)

    def crash_at_commit(self, number: int, *, kept: bool, down: Duration = 1) -> None:
        """Kill the owner of whatever shard makes that commit, counted as `commits` does.

        Args:
            number: of the commit.
            kept: it is made, and nobody hears of it; else it is lost.
            down: after how much virtual time the shard comes back.
        """
        if type(number) is not int or number <= self.commits:
            raise InvalidArgument(
                f"the commit to crash at is {shown(number)}, and {self.commits} are made; it must "
                "be a later one. Right: sim.crash_at_commit(sim.commits + 1, kept=True)."
            )
        self._world.crash_at_commit = number, kept, duration_ms(down, "down") / 1000

    def story(self, last: int | None = None) -> str:
        """What has happened, a line each: commits, crashes, bodies; the newest 2,000 lines."""
        return "\n".join(self._world.story.lines(last))

    def ask(self, work: Callable[[str], Coroutine[Any, Any, T]]) -> T:
        """Run a call of the client with a request id, again if its outcome is unknown."""
        return self._driver.ask(work)

    # --- inside -----------------------------------------------------------------------------

    def _name(self, workflow: Any) -> str:
        name = workflow if isinstance(workflow, str) else _name_of(workflow, self._definitions)
        if name not in self._uuids:
            known = ", ".join(sorted(self._uuids)) or "none"
            raise InvalidArgument(
                f"workflow {shown(workflow)} is not in this simulation; known are {known}. "
                "Right: toque_sim([Order, Refund])."
            )
        return str(name)

    def _uuid(self, workflow: str) -> str:
        return self._uuids[workflow]

    def _wait(self, is_so: Callable[[], bool], within: Duration | None) -> bool:
        is_tired = self._tires(within)
        self._driver.wait(lambda: is_so() or is_tired(), _seconds(within))
        return is_so()

    def _tires(self, within: Duration | None) -> Callable[[], bool]:
        """Whether so much has happened since that waiting on takes hours: beside an instance that
        wakes every ten seconds two years are millions of commits."""
        world = self._world
        most = math.inf if within is not None else world.commits + TESTKIT_COMMITS_MAX
        return lambda: world.commits > most

    def _raise_late(self, what: str, within: Duration | None) -> None:
        """Say what everybody waits for."""
        waiting = []
        for one in self.instances():
            if not one.status().finished:
                waiting += [f"{one.workflow} {line}" for line in waiting_lines(one.why())]
        most = f"{_seconds(within):g} s of virtual time"
        if within is None:
            most = f"two years of virtual time, or {TESTKIT_COMMITS_MAX:,} commits"
        told = "\n  ".join(waiting) or "no instance is under way"
        raise WaitsForever(
            f"{what} after {most}. Now, at {self.now:%Y-%m-%d %H:%M:%S}:\n  {told}"
            f"\nWhat happened last:\n{self.story(TESTKIT_STORY_LINES_SHOWN)}"
        )


class _Objects(ObjectStub):
    """A stub whose calls are coroutines, so that `Simulation.run` takes them."""

    def __getattr__(self, method: str) -> Any:
        call = super().__getattr__(method)

        async def called(*args: Any) -> Any:
            return await call(*args)

        return called


_FAR_MS = 100 * TESTKIT_WAIT_MAX_MS


def _fast_folder() -> str | None:
    """Where files cost least: in memory, if there is such a place and it has room."""
    try:
        has_room = shutil.disk_usage(_IN_MEMORY).free > TESTKIT_MEMORY_FREE_BYTES
    except OSError:
        return None
    return _IN_MEMORY if has_room and os.access(_IN_MEMORY, os.W_OK) else None


def _seconds(within: Duration | None) -> float:
    if within is None:
        return TESTKIT_WAIT_MAX_MS / 1000
    return duration_ms(within, "within", max_ms=_FAR_MS) / 1000


def _is_many(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, type))


def _is_entity(one: Any) -> bool:
    return inspect.isclass(one) and issubclass(one, DurableObject)


def _name_of(workflow: Any, definitions: list[WorkflowDefinition]) -> str | None:
    return next((one.name for one in definitions if one.entry is workflow), None)


def _instant_ms(start: Any) -> int:
    try:
        at = datetime.fromisoformat(start) if isinstance(start, str) else start
        is_known = isinstance(at, datetime) and at.tzinfo is not None
    except ValueError:
        is_known = False
    if not is_known:
        raise InvalidArgument(
            f"the start is {shown(start)}; it must be an instant with its offset from UTC. "
            "Right: start='2026-01-01T00:00:00Z'."
        )
    return round(at.timestamp() * 1000)
