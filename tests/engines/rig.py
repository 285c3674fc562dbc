"""An Engine on a real host and store with a SousChef that does what the test says.

Time is virtual. The commit under way can be held, and the process can be made to die at the n-th
commit, whose outcome ("kept" or "lost") the test chooses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from toque.engines.code_host import InProcessCodeHost
from toque.engines.engine import Engine
from toque.engines.env import EngineEnv, EngineFaults
from toque.engines.journal import STREAM_NAMED, STREAM_NAMES, ChildCall
from toque.engines.ports import Grant, StatusReport
from toque.engines.reporter import Reporter
from toque.engines.shard import EngineShard
from toque.engines.status import FINISHED
from toque.engines.views import CreateRequest, InstanceView, Parent, RollbackView, StepView
from toque.engines.workflow import WorkflowDefinition, definition_of
from toque.runtime import limits
from toque.runtime.blobs import BlobCollector, BlobStore
from toque.runtime.codec import decode_json, encode_json
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import Overloaded, SystemFault, WorkflowNotFound
from toque.runtime.host import Host, tables_of
from toque.runtime.ids import EntityRef, Placement, engine_key
from toque.runtime.limits import REPORT_RETRY_MS
from toque.runtime.link_local import LocalLinks
from toque.runtime.rpc import Router, ShardServer
from toque.runtime.simloop import LoopClock, VirtualTimeLoop
from toque.runtime.store_sqlite import SqliteStore
from toque.runtime.tables import Query

KEY = "acc/u1/i1"
COMMIT_S = 0.002
CLASSES = {"Engine": Engine, "EngineShard": EngineShard}
Outcome = Literal["lost", "kept"]


def on_virtual_time() -> asyncio.AbstractEventLoop:
    """For `pytest.mark.loop(factory=...)`."""
    return VirtualTimeLoop()


class Rig:
    """See the module's description.

    Attributes:
        reports: every report that reached the SousChef, in order.
        grants: what Engines answered to grants, in order: `(turn, taken)`.
        auto: grant each queued instance at once.
        deaf: reports are lost.
        refusals: what the next children are refused with, in order.
        asked: the ids of the children that were asked for, in order.
        births: children are made only once it is set; None: at once.
    """

    make_code: Callable[[Rig], InProcessCodeHost] = staticmethod(
        lambda rig: InProcessCodeHost(rig.loop, rig.definitions.values(), inline=True)
    )

    def __init__(self, folder: Path, faults: EngineFaults | None = None) -> None:
        self.folder = folder
        self.faults = faults or EngineFaults()
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.entropy = SeededEntropy(1)
        self.definitions: dict[str, WorkflowDefinition] = {}
        self.reports: list[StatusReport] = []
        self.grants: list[tuple[int, bool]] = []
        self.auto = True
        self.deaf = False
        self.refusals: list[Exception] = []
        self.asked: list[str] = []
        self.births: asyncio.Event | None = None
        self.epoch = 1
        self.crash_at: tuple[int, Outcome] | None = None
        self.crashes = 0
        self.commits = 0
        self.held: list[Any] | None = None
        self.open()

    # --- the process ------------------------------------------------------------------------

    def open(self) -> None:
        """Start the process: open the shard."""
        loop, rig = self.loop, self

        class Store(SqliteStore):
            def _commit_inline(self, batch: Any) -> None:
                if rig.held is not None:
                    rig.held.append((self, batch))
                    return
                rig.commits += 1
                if rig.crash_at is not None and rig.crash_at[0] == rig.commits:
                    rig.restart(rig.crash_at[1])
                    return
                super()._commit_inline(batch)

        links = LocalLinks(loop)
        self.router = Router(Placement(1, 1, frozenset()), links, loop)
        self.store = Store.open(
            self.folder / "d0.sqlite",
            tables=tables_of(CLASSES),
            loop=loop,
            writer="inline",
            commit_delay=lambda: COMMIT_S,
            name="d0",
        )
        self.code = self.make_code(self)
        blobs = BlobStore(self.folder / "blobs")
        blobs.sweep(row[0] for row in self.store.query_now(STREAM_NAMES))
        self.collector = BlobCollector(
            blobs, lambda name: bool(self.store.query_now(STREAM_NAMED, (name,))), loop, 0
        )
        self.reporter = Reporter(loop, self._souschef, lambda ref: self.host.peek(ref))
        env = EngineEnv(
            loop=loop,
            shard="d0",
            store=self.store,
            code_host=self.code,
            reporter=self.reporter,
            local=lambda ref: self.host.local(ref),
            crowded=lambda: self.host.crowded,
            faults=self.faults,
            blobs=self.collector,
            children=RigChildren(self),
        )
        envs = {"Engine": env, "EngineShard": env}
        self.host = Host(
            "d0", self.store, self.clock, self.entropy, loop, self.router, CLASSES, envs
        )
        links.register("d0", ShardServer(self.host, loop))
        self.host.start()

    def crash(self, outcome: Outcome = "lost") -> None:
        """The process is killed. What waits for it hears nothing any more."""
        self.crashes += 1
        self.reporter.close()
        self.store.crash(outcome)
        self.host.close()
        self.router.close()
        self.held = None

    def restart(self, outcome: Outcome = "lost") -> None:
        """The process is killed and started again."""
        self.crash(outcome)
        self.open()

    def hold_commits(self) -> None:
        """From now on commits stand still."""
        self.held = []

    def release_commits(self) -> None:
        """Let held commits, and later ones, go through."""
        held, self.held = self.held or [], None
        for store, batch in held:
            store._commit_inline(batch)

    async def close(self) -> None:
        """End everything in good order."""
        self.reporter.close()
        self.host.close()
        self.router.close()
        self.release_commits()
        if self.store.broken is None:
            await self.store.close()

    # --- the SousChef -----------------------------------------------------------------------

    def _souschef(self, ref: EntityRef, method: str, reports: list[StatusReport]) -> Any:
        assert (ref.kind, method) == ("SousChef", "report")
        answer = self.loop.create_future()
        if self.deaf:
            answer.set_exception(ConnectionError("lost"))
            return answer
        self.reports += reports
        for report in reports:
            if self.auto and report.state == "queued":
                self.loop.call_soon(self.grant, report)
        answer.set_result(None)
        return answer

    def grant(self, report: StatusReport, **changes: Any) -> asyncio.Future[Any]:
        """Grant what a report asks for."""
        fields = {"key": report.key, "run_id": report.run_id, "turn": report.turn, **changes}
        grant = Grant(**fields)
        answer = self.call("grant_many", "acc/u1/0", self.epoch, [grant], kind="EngineShard")

        def taken(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            if error is None:
                self.grants.append((grant.turn, done.result()[0]))
            elif isinstance(error, Overloaded):  # a SousChef says it again
                self.loop.call_later(
                    REPORT_RETRY_MS / 1_000, partial(self.grant, report, **changes)
                )

        answer.add_done_callback(taken)
        return answer

    # --- calls ------------------------------------------------------------------------------

    def define(self, workflow: Any, code_hash: str = "h1") -> WorkflowDefinition:
        """Load a workflow class or decorated function."""
        definition = definition_of(workflow, code_hash)
        self.definitions[definition.name] = definition
        self.code.register(definition)
        return definition

    def call(
        self, method: str, *args: Any, key: str = KEY, kind: str = "Engine"
    ) -> asyncio.Future[Any]:
        """Call an entity, as a front end does."""
        if kind == "EngineShard":
            key = "d0"
        return self.router.call(EntityRef(kind, key), method, *args, timeout_ms=700_000)

    def create_call(self, workflow: Any, params: Any = None, **fields: Any) -> asyncio.Future[Any]:
        """Send a create."""
        name = workflow if isinstance(workflow, str) else self.define(workflow).name
        request: dict[str, Any] = {
            "workflow": name,
            "class_name": name,
            "version_id": "v1",
            "code_hash": "h1",
            "params": encode_json(params),
            "request_id": "r1",
            "souschefs": 1,
            "source": "api",
            "wait_ms": 0,
        }
        key = fields.pop("key", KEY)
        return self.call("create", CreateRequest(**{**request, **fields}), key=key)

    async def create(self, workflow: Any, params: Any = None, **fields: Any) -> InstanceView:
        """Create an instance."""
        return view_of(await self.create_call(workflow, params, **fields))

    async def run(self, workflow: Any, params: Any = None, **fields: Any) -> Any:
        """Create an instance, and wait for its result."""
        await self.create(workflow, params, **fields)
        view = await self.ended(fields.get("key", KEY))
        assert view.error is None, view.error
        return decode_json(view.output or b"null")

    async def view(self, key: str = KEY) -> InstanceView:
        """The instance with its steps."""
        return view_of(await self.call("view", True, False, key=key))

    async def step(self, name: str, key: str = KEY) -> StepView:
        """One of its steps."""
        return next(s for s in (await self.view(key)).steps if s.name == name)

    async def ended(self, key: str = KEY) -> InstanceView:
        """The instance when it has ended."""
        return await self.until(lambda view: view.status in FINISHED, key)

    async def status(self, status: str, key: str = KEY) -> InstanceView:
        """The instance when it has a status."""
        return await self.until(lambda view: view.status == status, key)

    async def until(self, wanted: Callable[[InstanceView], bool], key: str = KEY) -> InstanceView:
        """The instance when something holds of it. Crashes do not matter."""
        pause = 0.01
        for _ in range(2_000):
            view = await self._read(key)
            if view is not None and wanted(view):
                return view
            await self.pass_time(pause)
            pause *= 1.01
        raise AssertionError(f"never so: {await self.view(key)}")

    async def _read(self, key: str) -> InstanceView | None:
        crashes = self.crashes
        reading = self.call("view", True, False, key=key)
        while not reading.done():
            await self.pass_time(COMMIT_S)
            if self.crashes != crashes:
                reading.cancel()
                return None
        if isinstance(reading.exception(), Overloaded):
            return None
        return view_of(reading.result())

    async def pass_time(self, seconds: float) -> None:
        """Virtual time passes."""
        done = self.loop.create_future()
        self.loop.call_later(seconds, done.set_result, None)
        await done

    def due_alarms(self) -> list[Any]:
        """All alarms but those of expiry, which are days away."""
        soon = self.clock.now_ms() + limits.DAY_MS
        return [row for row in self.rows("alarms") if row[2] < soon]

    async def do(
        self, operation: str, request_id: str = "", *args: Any, key: str = KEY
    ) -> InstanceView:
        """An operation on an instance."""
        return view_of(await self.call(operation, request_id, *args, key=key))

    def rows(self, table: str) -> list[Any]:
        """All committed rows of a table."""
        return self.store.query_now(Query("all rows", f"SELECT * FROM {table}"))


class RigChildren:
    """Makes children as a front end does."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    async def start(self, account: str, call: ChildCall, parent: Parent) -> str:
        """See `ChildrenPort`."""
        rig = self.rig
        rig.asked.append(call.id)
        if rig.births is not None:
            await rig.births.wait()
        if rig.refusals:
            raise rig.refusals.pop(0)
        if call.workflow not in rig.definitions:
            raise WorkflowNotFound(f"there is no workflow {call.workflow!r}.")
        key = engine_key(account, "u1", call.id)
        params = decode_json(call.params)
        await rig.create_call(call.workflow, params, key=key, request_id=call.call, parent=parent)
        return key


async def insist(rig: Rig, call: Callable[[], asyncio.Future[Any]]) -> None:
    """Call again, with the same request id, until the process has lived through it."""
    while True:
        crashes, answer = rig.crashes, call()
        while not answer.done() and rig.crashes == crashes:
            await rig.pass_time(0.002)
        if answer.done() and answer.exception() is None:
            return
        if answer.done():
            assert isinstance(answer.exception(), SystemFault), answer.exception()
        else:
            answer.cancel()


def view_of(result: Any) -> InstanceView:
    """A plain result as a view."""
    return msgspec.convert(result, InstanceView)


@asynccontextmanager
async def rigged(folder: Path, faults: EngineFaults | None = None) -> AsyncIterator[Rig]:
    """A rig, closed at the end."""
    rig = Rig(folder, faults)
    try:
        yield rig
    finally:
        await rig.close()


def unplaced(view: Any) -> Any:
    """An error, or what holds one, without the lines that raised it."""
    if isinstance(view, RollbackView):
        return msgspec.structs.replace(view, error=unplaced(view.error))
    return view if view is None else msgspec.structs.replace(view, at=())
