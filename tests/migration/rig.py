"""An account on V1 in a whole runtime without front ends: real shards, virtual time.

Shards may be killed, with the commit under way lost or kept, and opened again. The most that ran
at any instant is watched from inside: each body says when it begins and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toque.api.shards import Faults, OpenShard, ShardSettings, open_shard
from toque.engines.code_host import InProcessCodeHost
from toque.engines.views import CreateRequest, IndexRow, InstanceView, PageRequest
from toque.engines.workflow import definition_of, workflow
from toque.gatekeeper.messages import AccountSnapshot, GatekeeperStatistics, WorkflowRecord
from toque.migration.account_old import AccountOld
from toque.migration.messages import (
    Asked,
    Forwarded,
    Frozen,
    OldCreate,
    OldStatus,
    RegistryPart,
    old_key,
)
from toque.runtime.entropy import SeededEntropy
from toque.runtime.ids import ACCOUNT_OLD_KIND, EntityRef, Placement
from toque.runtime.link_local import LocalLinks
from toque.runtime.payload_codec import NO_CODECS, Codecs
from toque.runtime.rpc import Router
from toque.runtime.simloop import LoopClock

T = TypeVar("T")

ACME = "mill"
"""AccountOld and the entities of V2 live on different shards with this name."""
OLD = EntityRef(ACCOUNT_OLD_KIND, old_key(ACME))
ACCOUNT = EntityRef("Account", ACME)
GATEKEEPER = EntityRef("Gatekeeper", ACME)
COMMIT_S = 0.002


class Bodies:
    """Who runs, told by the bodies themselves."""

    def __init__(self) -> None:
        self.running = self.most = self.begun = 0
        self._at: list[int] = []

    async def work(self, seconds: float) -> float:
        """A step's body."""
        self.running += 1
        self.begun += 1
        self.most = max(self.most, self.running)
        self._at.append(self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
        return seconds

    def most_of(self, first: int) -> int:
        """The most that ran when one of them began, from the first-th on."""
        return max(self._at[first:])


class Rig:
    """See the module."""

    def __init__(
        self,
        folder: Path,
        *,
        running_max: int = 50,
        v1: tuple[int, int] = (20, 1_000),
        lost_births: int = 0,
        retention_ms: int = 3_600_000,
        data_shards: int = 2,
        control_shards: int = 2,
        codecs: Codecs = NO_CODECS,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.folder = folder
        self.bodies = bodies = Bodies()

        @workflow
        async def work(event: Any, step: Any) -> Any:
            return await step.do("work", lambda: bodies.work(event.payload or 0))

        @workflow
        async def ask(event: Any, step: Any) -> Any:
            return (await step.wait_for_event("ask", "answer", timeout="1 day")).payload

        self.definitions = [definition_of(work, "h1"), definition_of(ask, "h1")]
        self.settings = ShardSettings(
            Placement(data_shards, control_shards),
            running_max=running_max,
            v1=v1,
            writer="inline",
            commit_delay=lambda: COMMIT_S,
            synchronous="OFF",
            retention=(retention_ms, retention_ms),
            codecs=codecs,
            faults=Faults(lost_births=lost_births),
        )
        self.links = LocalLinks(self.loop)
        self.router = Router(self.settings.placement, self.links, self.loop)
        self.shards: dict[str, OpenShard] = {}
        self.records: dict[str, WorkflowRecord] = {}
        self._requests = 0
        self._ending: list[asyncio.Task[None]] = []
        (folder / "shards").mkdir(exist_ok=True)
        for name in self.settings.placement.names():
            self.open(name)

    # --- shards -----------------------------------------------------------------------------

    def open(self, shard: str) -> None:
        """Open a shard, as a new owner."""
        opened = open_shard(
            shard,
            self.folder / "shards" / f"{shard}.sqlite",
            self.settings,
            loop=self.loop,
            clock=self.clock,
            entropy=SeededEntropy(f"{shard} {self.loop.time()}"),
            links=self.links,
            code_host=InProcessCodeHost(self.loop, self.definitions, inline=True),
        )
        self.links.register(shard, opened.server)
        self.shards[shard] = opened

    def crash(self, shard: str, outcome: Any = "lost") -> None:
        """Kill a shard and open it again at once."""
        opened = self.shards[shard]
        opened.store.crash(outcome)
        opened.stop()
        self._ending.append(self.loop.create_task(opened._code_host.aclose()))
        self.router.close()
        self.router = Router(self.settings.placement, self.links, self.loop)
        self.open(shard)

    @property
    def data(self) -> list[str]:
        """The data shards."""
        return self.settings.placement.data_names()

    def home(self, ref: EntityRef) -> str:
        """The shard of an entity."""
        return self.settings.placement.shard_of(ref)

    def entity(self) -> AccountOld:
        """The live AccountOld."""
        found = self.shards[self.home(OLD)].host.local(OLD)
        assert isinstance(found, AccountOld)
        return found

    async def close(self) -> None:
        """Close all shards."""
        self.router.close()
        for opened in self.shards.values():
            await opened.close()
        await asyncio.gather(*self._ending)

    # --- calls ------------------------------------------------------------------------------

    async def call(self, expected: type[T] | Any, ref: EntityRef, method: str, *args: Any) -> T:
        """A call from outside, its answer decoded."""
        found: T = msgspec.convert(await self.router.call(ref, method, *args), expected)
        return found

    async def old(self, expected: type[T] | Any, method: str, *args: Any) -> T:
        """A call to AccountOld."""
        return await self.call(expected, OLD, method, *args)

    async def begin(self, **workflows: str) -> None:
        """Make the account one of V1, with some workflows: name=class name."""
        await self.call(None, ACCOUNT, "set_plane", "v1")
        await self.old(None, "begin")
        for name in workflows or ("work", "ask"):
            self.records[name] = await self.old(
                WorkflowRecord, "put_workflow", name, name, "app", "h1", False
            )

    def key(self, instance_id: str, workflow: str = "work") -> str:
        """An Engine's key."""
        return f"{ACME}/{self.records[workflow].uuid}/{instance_id}"

    def request(
        self,
        workflow: str = "work",
        *,
        params: bytes = b"0.01",
        request_id: str = "",
        souschefs: int = 0,
        wait_ms: int = 0,
        **more: Any,
    ) -> CreateRequest:
        """A create as front ends make it."""
        self._requests += 1
        record = self.records[workflow]
        return CreateRequest(
            record.name,
            record.class_name,
            record.version_id,
            record.code_hash,
            params,
            request_id or f"request-{self._requests}",
            souschefs,
            "api",
            wait_ms,
            **more,
        )

    async def create(
        self, instance_id: str, workflow: str = "work", **request: Any
    ) -> InstanceView:
        """A create on V1."""
        told = OldCreate(self.key(instance_id, workflow), self.request(workflow, **request))
        return await self.old(InstanceView, "create", told)

    async def create_v2(
        self, instance_id: str, workflow: str = "work", **request: Any
    ) -> InstanceView:
        """A create on V2, as a front end makes one while the account heals."""
        key = self.key(instance_id, workflow)
        await self.ask(key, creates=True)
        told = self.request(workflow, souschefs=1, **request)
        return await self.call(InstanceView, EntityRef("Engine", key), "create", told)

    async def forward(
        self, expected: type[T] | Any, instance_id: str, method: str, *args: Any,
        workflow: str = "work", timeout_ms: int = 30_000,
    ) -> T:  # fmt: skip
        """An operation on V1."""
        told = Forwarded(self.key(instance_id, workflow), method, list(args), timeout_ms)
        return await self.old(expected, "forward", told)

    async def view(self, instance_id: str, workflow: str = "work") -> InstanceView:
        """What the Engine itself says."""
        ref = EntityRef("Engine", self.key(instance_id, workflow))
        return await self.call(InstanceView, ref, "view", False, False)

    def page(self, workflow: str = "work", **more: Any) -> PageRequest:
        """A request for a page."""
        values: dict[str, Any] = {
            "after": None, "newest_first": False, "limit": 1_000, "statuses": [],
            "since_ms": None, "until_ms": None,
        }  # fmt: skip
        return PageRequest(ACME, self.records[workflow].uuid, **{**values, **more})

    async def rows(self, workflow: str = "work", **more: Any) -> list[IndexRow]:
        """V1's list."""
        return await self.old(list[IndexRow], "list_page", self.page(workflow, **more))

    async def rows_v2(self, workflow: str = "work", **more: Any) -> list[IndexRow]:
        """V2's list, of one page, oldest first; the unborn too."""
        request = self.page(workflow, **more)
        found = await self.old(list[IndexRow], "unborn_page", request)
        for shard in self.data:
            ref = EntityRef("EngineShard", shard)
            found += await self.call(list[IndexRow], ref, "list_page", request)
        return sorted(found, key=lambda row: (row.created_ms, row.id))

    async def counts(self, workflow: str = "work", prefix: str = "") -> dict[str, int]:
        """V1's counts."""
        uuid = self.records[workflow].uuid
        return await self.old(dict[str, int], "counts", uuid, prefix)

    async def status(self) -> OldStatus:
        """How AccountOld stands."""
        return await self.old(OldStatus, "status")

    async def gatekeeper(self) -> GatekeeperStatistics:
        """How the Gatekeeper stands."""
        return await self.call(GatekeeperStatistics, GATEKEEPER, "statistics")

    async def snapshot(self) -> AccountSnapshot:
        """What Account tells front ends."""
        return await self.call(AccountSnapshot, ACCOUNT, "snapshot", -1)

    # --- the move ---------------------------------------------------------------------------

    async def freeze(self, migration_id: str = "m1") -> Frozen:
        """The first step."""
        return await self.old(Frozen, "freeze", migration_id)

    async def adopt(self, frozen: Frozen) -> None:
        """Gatekeeper and Account take over."""
        migration_id = frozen.migration_id
        await self.call(None, GATEKEEPER, "adopt", migration_id, frozen)
        after = None
        while True:
            part = await self.old(RegistryPart, "registry_part", migration_id, after)
            await self.call(None, ACCOUNT, "adopt_part", migration_id, part)
            after = part.after
            if after is None:
                break
        await self.call(None, ACCOUNT, "adopt", migration_id)

    async def move(self, migration_id: str = "m1") -> Frozen:
        """From V1 to V2, healing."""
        frozen = await self.freeze(migration_id)
        await self.adopt(frozen)
        await self.old(None, "route", migration_id)
        return frozen

    async def heal(self, migration_id: str = "m1") -> None:
        """Until nobody is unborn."""
        while await self.old(int, "heal", migration_id):
            await asyncio.sleep(0.1)
        await self.old(None, "healed", migration_id)
        await self.call(None, ACCOUNT, "healed", migration_id)

    async def abort(self, migration_id: str = "m1") -> None:
        """Back to V1."""
        await self.old(None, "abort", migration_id)
        await self.call(None, GATEKEEPER, "abandon", migration_id)
        await self.call(None, ACCOUNT, "abandon", migration_id)

    async def ask(self, key: str, *, creates: bool) -> Asked:
        """What front ends ask while the account heals."""
        return await self.old(Asked, "ask", key, creates)

    async def until(self, what: Any, within_s: float = 60) -> None:
        """Wait until `what()` holds, looking less and less often."""
        start_s = self.loop.time()
        while not await what():
            if self.loop.time() - start_s > within_s:
                raise AssertionError(f"not within {within_s} s: {await self.status()}")
            await asyncio.sleep(max(0.01, (self.loop.time() - start_s) / 20))

    async def until_ended(self, number: int, within_s: float = 60) -> None:
        """Wait until so many of V1 have ended."""

        async def ended() -> bool:
            return (await self.status()).ended >= number

        await self.until(ended, within_s)


@asynccontextmanager
async def rig_at(folder: Path, **options: Any) -> AsyncIterator[Rig]:
    """An account on V1, with the workflows `work` and `ask`."""
    rig = Rig(folder, **options)
    try:
        await rig.begin()
        yield rig
    finally:
        await rig.close()
