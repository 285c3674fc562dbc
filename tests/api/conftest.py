"""A control plane in memory, behind the router's port: for shapes, paging, cache and repeats.

Calls are encoded and decoded as on the wire. Faults are put in by hand: `lose` drops the call
before or after it took effect.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.client import Client
from toque.api.client_embedded import EmbeddedBackend
from toque.api.client_http import HttpBackend
from toque.api.server_http import HttpServer
from toque.api.service import ControlPlane
from toque.engines.failures import StepNotFound
from toque.engines.views import (
    AttemptView,
    BufferedEvents,
    CreateRequest,
    ErrorView,
    EventPage,
    IndexRow,
    InstanceEvent,
    InstanceView,
    PageRequest,
    StepView,
    WaitingView,
    WaitReason,
)
from toque.gatekeeper.messages import (
    AccountInfo,
    AccountSnapshot,
    IdentitySnapshot,
    RateReply,
    RateRequest,
    Settings,
    TokenRecord,
    VersionRecord,
    WorkflowRecord,
)
from toque.runtime.clock import ManualClock
from toque.runtime.codec import pack
from toque.runtime.entropy import SeededEntropy
from toque.runtime.errors import (
    InstanceAlreadyExists,
    InstanceFinished,
    InstanceNotFound,
    InvalidTransition,
    OutcomeUnknown,
    ShardUnavailable,
)
from toque.runtime.ids import EntityRef, Placement, split_engine_key

TOKEN = "dev-token"
FINAL = {"complete", "errored", "terminated"}


class FakeEngine:
    """An instance: its view, and who waits for its end."""

    def __init__(self, view: InstanceView, request_id: str) -> None:
        self.view = view
        self.request_id = request_id
        self.ended = asyncio.Event()
        self.events: dict[str, tuple[str, bytes]] = {}
        self.done: list[tuple[Any, ...]] = []
        self.retention: Any = None
        self.default_retention: Any = None
        self.steps_max = 0


class FakeRouter:
    """Answers as the entities would."""

    def __init__(self, placement: Placement, clock: ManualClock) -> None:
        self.placement = placement
        self.clock = clock
        self.workflows: dict[str, dict[str, WorkflowRecord]] = {}
        self.versions: dict[str, list[VersionRecord]] = {}
        self.generation = 1
        self.engines: dict[str, FakeEngine] = {}
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, deque[tuple[Exception, bool]]] = {}
        self.finishes_at_once = False
        self.steps: list[StepView] = []
        self.hold: dict[str, asyncio.Event] = {}
        self.clearings: dict[str, tuple[str, list[str], str]] = {}
        self.clearing_sources: list[str] = []
        self.events: list[InstanceEvent] = []
        self.settings: dict[str, Settings] = {}
        self.accounts: dict[str, AccountInfo] = {}
        self.tokens: dict[str, TokenRecord] = {}

    # --- set-up ---

    def add_workflow(self, name: str, account: str = "default") -> WorkflowRecord:
        self.generation += 1
        now = self.clock.now_ms()
        record = WorkflowRecord(
            name, f"uuid-{account}-{name}", "Entry", "app", "v1", "hash", now, now, 2,
            self.generation,
        )  # fmt: skip
        self.workflows.setdefault(account, {})[name] = record
        return record

    def lose(self, method: str, times: int = 1, *, after: bool = False) -> None:
        """Make the next calls of `method` fail, before or after they took effect."""
        error = OutcomeUnknown("lost reply") if after else ShardUnavailable("no owner")
        self.faults.setdefault(method, deque()).extend([(error, after)] * times)

    def fail(self, method: str, error: Exception, times: int = 1) -> None:
        self.faults.setdefault(method, deque()).extend([(error, False)] * times)

    def engine(self, instance_id: str) -> FakeEngine:
        return next(e for key, e in self.engines.items() if split_engine_key(key)[2] == instance_id)

    def finish(self, instance_id: str, output: bytes = b'{"done":true}') -> None:
        engine = self.engine(instance_id)
        engine.view = msgspec.structs.replace(
            engine.view, status="complete", output=output, ended_ms=self.clock.now_ms()
        )
        engine.ended.set()

    # --- the port ---

    def call(
        self,
        ref: EntityRef,
        method: str,
        *args: Any,
        timeout_ms: int | None = None,
        decode: Callable[[Any], Any] = msgspec.msgpack.decode,
    ) -> asyncio.Future[Any]:
        self.calls[method] += 1
        work = self._answer(ref, method, pack(args), decode)
        return asyncio.get_running_loop().create_task(work)

    async def _answer(
        self, ref: EntityRef, method: str, args: bytes, decode: Callable[[Any], Any]
    ) -> Any:
        await asyncio.sleep(0)
        if method in self.hold:
            await self.hold[method].wait()
        faults = self.faults.get(method)
        fault = faults.popleft() if faults else None
        if fault and not fault[1]:
            raise fault[0]
        handler = getattr(self, f"{ref.kind}_{method}")
        result = handler(ref.key, *msgspec.msgpack.decode(args))
        if asyncio.iscoroutine(result):
            result = await result
        if fault:
            raise fault[0]
        return decode(pack(result))

    # --- entities ---

    def Identity_snapshot(self, key: str, known: int) -> IdentitySnapshot:
        return IdentitySnapshot(1, list(self.accounts.values()), list(self.tokens.values()))

    def Gatekeeper_lease_rates(self, account: str, raw: Any) -> RateReply:
        request = msgspec.convert(raw, RateRequest)
        leases = dict.fromkeys(("", *request.arrivals), 10**9)
        return RateReply(request.seq, leases, dict.fromkeys(request.arrivals, 10**6), 1_000)

    def Account_snapshot(self, account: str, known: int) -> AccountSnapshot:
        records = list(self.workflows.get(account, {}).values())
        return AccountSnapshot(
            self.generation,
            50_000,
            records if known < self.generation else None,
            self.settings,
        )

    def Account_delete_workflow(self, account: str, name: str) -> WorkflowRecord:
        self.generation += 1
        return self.workflows[account].pop(name)

    def Clearing_begin(
        self, key: str, how: str, statuses: list[str], job: str, source: str
    ) -> bool:
        self.clearing_sources.append(source)
        return self.clearings.setdefault(key, (how, statuses, job))[2] == job

    def Clearing_is_running(self, key: str) -> bool:
        return key in self.clearings

    def Account_list_versions(self, account: str, name: str) -> list[VersionRecord]:
        return self.versions.get(name, [])

    async def Engine_create(self, key: str, raw: Any) -> InstanceView:
        request = msgspec.convert(raw, CreateRequest)
        _, uuid, instance_id = split_engine_key(key)
        engine = self.engines.get(key)
        if engine is not None and engine.request_id != request.request_id:
            raise InstanceAlreadyExists(f"instance {instance_id!r} exists.", {"id": instance_id})
        if engine is None:
            now = self.clock.now_ms()
            view = InstanceView(
                instance_id, "run1", request.workflow, uuid, request.version_id,
                request.code_hash, "queued", request.source, request.params, None, None,
                now, now, None, None, now, 0,
            )  # fmt: skip
            engine = self.engines[key] = FakeEngine(view, request.request_id)
            engine.retention = request.retention
            engine.default_retention = request.default_retention
            engine.steps_max = request.steps_max
            if self.finishes_at_once:
                self.finish(instance_id)
        if request.wait_ms:
            return await self.Engine_wait(key, request.wait_ms)
        return engine.view

    def _known(self, key: str) -> FakeEngine:
        engine = self.engines.get(key)
        if engine is None:
            raise InstanceNotFound(f"there is no instance {split_engine_key(key)[2]!r}.")
        return engine

    def Engine_view(self, key: str, with_steps: bool, newest_first: bool) -> InstanceView:
        view = self._known(key).view
        steps = view.steps or self.steps
        steps = list(reversed(steps)) if newest_first else steps
        return msgspec.structs.replace(view, steps=steps if with_steps else [])

    async def Engine_wait(self, key: str, wait_ms: int) -> InstanceView:
        engine = self._known(key)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await engine.ended.wait()
        except TimeoutError:
            pass
        return msgspec.structs.replace(engine.view, steps=[])

    def Engine_send_event(self, key: str, kind: str, payload: bytes, request_id: str) -> int:
        engine = self._known(key)
        if engine.view.status in FINAL:
            raise InstanceFinished("it has ended.")
        engine.events[request_id] = (kind, payload)
        return self.clock.now_ms()

    def _moved(self, key: str, status: str, *done: Any) -> InstanceView:
        engine = self._known(key)
        if engine.view.status in FINAL and done[0] != "restart":
            raise InvalidTransition(f"it is {engine.view.status}.")
        engine.view = msgspec.structs.replace(engine.view, status=status)
        engine.done.append(done)
        return engine.view

    def Engine_terminate(
        self, key: str, request_id: str, rollback: bool, source: str
    ) -> InstanceView:
        view = self._moved(key, "terminated", "terminate", rollback, source)
        engine = self._known(key)
        error = ErrorView("Terminated", "by request")
        engine.view = msgspec.structs.replace(view, error=error)
        engine.ended.set()
        return engine.view

    def Engine_events(
        self, key: str, cursor: int, limit: int, types: list[str], wait_ms: int
    ) -> EventPage:
        self._known(key)
        events = [event for event in self.events if event.no > cursor]
        return EventPage(events, events[-1].no if events else cursor, True)

    def Engine_waiting(self, key: str) -> WaitingView:
        self._known(key)
        reason = WaitReason("event", "ask-1", 1_700_000_000_000, 1_700_000_060_000, "answer")
        buffered = BufferedEvents("answr", 2, 1_700_000_000_000, False)
        return WaitingView(
            "waiting", 1_700_000_000_000, [reason], 0, [buffered], True, 0, False, "v1", "h", False
        )

    def Engine_pause(self, key: str, request_id: str) -> InstanceView:
        return self._moved(key, "paused", "pause")

    def Engine_resume(self, key: str, request_id: str) -> InstanceView:
        return self._moved(key, "queued", "resume")

    def Engine_cancel(self, key: str, request_id: str, source: str) -> InstanceView:
        return self._moved(key, "running", "cancel", source)

    def Engine_restart(
        self, key: str, request_id: str, name: str, count: int, kind: str
    ) -> InstanceView:
        if name == "nowhere":
            raise StepNotFound("there is no step 'nowhere'.")
        return self._moved(key, "queued", "restart", name, count, kind)

    def Engine_delete(self, key: str, request_id: str) -> bool:
        self._known(key)
        del self.engines[key]
        return True

    def ShardInfo_statistics(self, shard: str) -> dict[str, int]:
        return {"epoch": 1}

    def ShardInfo_probe(self, shard: str) -> None:
        """It can commit."""

    def Gatekeeper_statistics(self, account: str) -> dict[str, int]:
        return {}

    def _mine(self, shard: str, account: str, uuid: str) -> list[InstanceView]:
        prefix = f"{account}/{uuid}/"
        return [
            engine.view
            for key, engine in self.engines.items()
            if key.startswith(prefix) and self.placement.shard_of(EntityRef("Engine", key)) == shard
        ]

    def EngineShard_counts_at_least(
        self, shard: str, account: str, uuid: str, prefix: str = ""
    ) -> dict[str, int]:
        mine = self._mine(shard, account, uuid)
        return dict(Counter(view.status for view in mine if view.id.startswith(prefix)))

    EngineShard_counts = EngineShard_counts_at_least

    def EngineShard_list_page(self, shard: str, raw: Any) -> list[IndexRow]:
        request = msgspec.convert(raw, PageRequest)
        rows = [
            IndexRow(v.id, v.status, v.created_ms, v.started_ms, v.ended_ms, v.modified_ms,
                     v.version_id, v.source)
            for v in self._mine(shard, request.account, request.workflow_uuid)
            if (not request.statuses or v.status in request.statuses)
            and (request.since_ms is None or v.created_ms >= request.since_ms)
            and (request.until_ms is None or v.created_ms < request.until_ms)
            and v.id.startswith(request.prefix)
        ]  # fmt: skip

        def place(created_ms: int, instance_id: str) -> tuple[int, str]:
            return (0 if request.prefix else created_ms), instance_id

        rows.sort(key=lambda row: place(row.created_ms, row.id), reverse=request.newest_first)
        if request.after is not None:
            after = place(*request.after)
            if request.newest_first:
                rows = [row for row in rows if place(row.created_ms, row.id) < after]
            else:
                rows = [row for row in rows if place(row.created_ms, row.id) > after]
        return rows[: request.limit]


STEPS = [
    StepView("charge-1", "step", 1_700_000_000_000, None, None, False,
             attempts=[AttemptView(1_700_000_000_000, 1_700_000_001_000, False,
                                   ErrorView("ValueError", "no"))],
             attempts_total=1, retries_limit=5, retry_delay_ms=10_000, backoff="constant",
             timeout_ms=600_000, retry_at_ms=1_700_000_011_000),
    StepView("nap-1", "sleep", 1_700_000_000_000, 1_700_000_060_000, None, False),
    StepView("approval-1", "waitForEvent", 1_700_000_000_000, 1_700_086_400_000, None, False,
             event_type="approval"),
]  # fmt: skip


class Plane:
    """A control plane over the fake router, and ways to reach it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.placement = Placement(data_shards=3)
        self.router = FakeRouter(self.placement, self.clock)
        self.router.add_workflow("orders")
        self.service = ControlPlane(self.router, self.placement, self.clock, SeededEntropy(1))
        self.token = TOKEN
        self.steps = STEPS

    def embedded(self, account: str = "default") -> Client:
        return Client(EmbeddedBackend(self.service, account), SeededEntropy(2))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[HttpServer]:
        """A real server on a loopback port."""
        tokens = TokenBook({TOKEN: "default", "other-token": "other"})
        app = make_app(self.service, tokens=tokens, version="test")
        try:
            async with HttpServer(app, self.clock) as server:
                yield server
        finally:
            await self.service.close()

    @asynccontextmanager
    async def client(
        self, *, token: str | None = TOKEN, account: str = "default", retry_for_ms: int = 3_000
    ) -> AsyncIterator[Client]:
        """The SDK against a real server."""
        entropy = SeededEntropy(3)
        async with self.serving() as server:
            backend = HttpBackend(server.url, token, account, entropy, retry_for_ms=retry_for_ms)
            async with Client(backend, entropy) as client:
                yield client


@pytest.fixture
def plane() -> Plane:
    return Plane()
