"""One open shard: which entities it hosts and what each of them gets.

The same function opens a shard in a Ray actor, in the embedded runtime and in the simulator;
only the loop, the clock, the links and the store's writer differ. Control shards hold accounts
(Account, Gatekeeper, SousChefs), data shards hold Engines and users' own entities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..engines.code_host import CodeHost
from ..engines.engine import Engine
from ..engines.env import EngineEnv, EngineFaults
from ..engines.journal import STREAM_NAMED, STREAM_NAMES
from ..engines.reporter import Reporter
from ..engines.shard import EngineShard
from ..gatekeeper.account import Account
from ..gatekeeper.gatekeeper import Gatekeeper, GatekeeperEnv
from ..gatekeeper.identity import Identity
from ..gatekeeper.slots import GatekeeperFaults
from ..gatekeeper.spread import SpreadRules
from ..gatekeeper.workflow_registry import AccountEnv
from ..migration.account_old import AccountOld
from ..migration.background import Background
from ..migration.formats import STORE_UPGRADES
from ..migration.migration import Migration, MigrationEnv
from ..migration.old_kitchen import AccountOldEnv
from ..runtime import limits
from ..runtime.blobs import BlobCollector, BlobStore
from ..runtime.clock import Clock
from ..runtime.datadir import BLOBS_FOLDER
from ..runtime.entity import DurableObject
from ..runtime.entropy import Entropy
from ..runtime.errors import InvalidArgument
from ..runtime.handler_notes import HandlerNotes, handler_notes_path
from ..runtime.host import Host, HostFaults, tables_of
from ..runtime.ids import EntityRef, Placement
from ..runtime.link_local import LocalLinks
from ..runtime.payload_codec import NO_CODECS, Codecs
from ..runtime.process import ProcessMeter
from ..runtime.rpc import LinkFactory, Router, Session, ShardServer
from ..runtime.shard_info import ShardInfo
from ..runtime.store_sqlite import SqliteStore
from ..runtime.upgrades import StoreUpgrade
from ..souschef.clearing import Clearing, ClearingEnv
from ..souschef.env import SousChefEnv
from ..souschef.pacing import Pacer, gap_ms
from ..souschef.souschef import SousChef
from .children import ShardChildren
from .codecs import settle_codecs
from .figures import ShardFigures

CONTROL_CLASSES: dict[str, type[DurableObject]] = {
    cls.KIND: cls
    for cls in (
        Account,
        AccountOld,
        Clearing,
        Gatekeeper,
        Identity,
        Migration,
        SousChef,
        ShardInfo,
    )
}
DATA_CLASSES: dict[str, type[DurableObject]] = {
    cls.KIND: cls for cls in (Engine, EngineShard, ShardInfo)
}


@dataclass(frozen=True)
class Faults:
    """Deliberate faults for checkers; all off in earnest.

    Attributes:
        lost_births: on V1, every so manieth create's one message to its Engine is not sent.
    """

    host: HostFaults = field(default_factory=HostFaults)
    engine: EngineFaults = field(default_factory=EngineFaults)
    gatekeeper: GatekeeperFaults = field(default_factory=GatekeeperFaults)
    lost_births: int = 0


@dataclass(frozen=True)
class ShardSettings:
    """What all shards of a runtime have in common.

    Attributes:
        placement: which shards there are.
        running_max: slots of an account that has set no limit of its own.
        souschefs: over how many SousChefs a new workflow is spread at first, and at least while
            the number is automatic.
        creates_per_second: of an account, and of a workflow, that has set none.
        gatekeeper_calls: how many calls a second an account's Gatekeeper may get.
        spread: how many creates a second, and how many queued, one SousChef of a workflow is for.
        v1: slots of an account on control plane V1, and creates in V1_CREATES_WINDOW_MS.
        objects: users' entity classes.
        writer: where commits run; see `SqliteStore.open`.
        commit_delay: for the inline writer.
        synchronous: see `SqliteStore.open`.
        store: the class that opens the file (simulation watches its commits).
        memory_bytes: how much memory the process has; see `Host`.
        process: tells figures of the process, for metrics.
        retention: how long instances are kept after success, and after another end, in ms, if
            their create does not say.
        codecs: what payloads go through on their way to disk.
        upgrades: what leads stores of older formats to the newest one.
        faults: deliberate faults.
    """

    placement: Placement
    running_max: int = limits.RUNNING_PER_ACCOUNT_DEFAULT
    souschefs: int = limits.SOUSCHEFS_PER_WORKFLOW_DEFAULT
    creates_per_second: tuple[int, int] = (
        limits.CREATES_PER_SECOND_MAX,
        limits.CREATES_PER_SECOND_MAX,
    )
    gatekeeper_calls: int = limits.GATEKEEPER_CALLS_PER_SECOND_MAX
    spread: tuple[int, int] = (limits.SOUSCHEF_CREATES_PER_SECOND, limits.SOUSCHEF_QUEUED)
    v1: tuple[int, int] = (limits.V1_RUNNING_MAX, limits.V1_CREATES_MAX)
    objects: Sequence[type[DurableObject]] = ()
    writer: Literal["thread", "inline"] = "thread"
    commit_delay: Callable[[], float] | None = None
    synchronous: Literal["FULL", "NORMAL", "OFF"] = "FULL"
    store: type[SqliteStore] = SqliteStore
    memory_bytes: Callable[[], int] | None = None
    process: ProcessMeter | None = None
    retention: tuple[int, int] = (limits.RETENTION_DEFAULT_MS, limits.RETENTION_DEFAULT_MS)
    codecs: Codecs = NO_CODECS
    upgrades: Sequence[StoreUpgrade] = STORE_UPGRADES
    faults: Faults = field(default_factory=Faults)


class OpenShard:
    """An open shard: store, host and server. Made by `open_shard`."""

    def __init__(
        self,
        store: SqliteStore,
        host: Host,
        router: Router,
        reporter: Reporter | None,
        code_host: CodeHost,
        blobs: BlobCollector | None,
        upgrading: Background,
        children: ShardChildren,
    ) -> None:
        self.store = store
        self._children = children
        self._blobs = blobs
        self._upgrading = upgrading
        self.host = host
        self.router = router
        self.server = ShardServer(host, host.loop)
        self._reporter = reporter
        self._code_host = code_host

    @property
    def holds_instances(self) -> bool:
        """Whether it is a data shard."""
        return self._reporter is not None

    @property
    def epoch(self) -> int:
        """This owner's epoch."""
        return self.store.epoch

    @property
    def broken(self) -> BaseException | None:
        """Why the shard can't go on, if so."""
        return self.store.broken

    @property
    def streams(self) -> BlobStore | None:
        """Where streams are kept; None: on a control shard."""
        return None if self._blobs is None else self._blobs.blobs

    def serve_session(self, send: Callable[[bytes], None]) -> Session:
        """A session for a new link."""
        return self.server.session(send)

    def statistics(self) -> dict[str, Any]:
        """Counters, plain data."""
        return {
            "shard": self.host.shard,
            "epoch": self.epoch,
            **self.host.statistics(),
            **self._code_host.statistics(),
        }

    def stop(self) -> None:
        """Deliver nothing more; what is not committed is given up."""
        if self._reporter is not None:
            self._reporter.close()
        if self._blobs is not None:
            self._blobs.close()
        self._upgrading.close()
        self._children.stop()
        self.host.close()
        self.router.close()

    async def drain(self) -> None:
        """Make durable what has been written so far."""
        if self.store.broken is None:
            await self.store.flush()

    async def close(self) -> None:
        """Stop, end user code, commit what is pending and close the file."""
        self.stop()
        await self._children.close()
        await self._code_host.aclose()
        await self.store.close()
        if self.host.notes is not None:
            self.host.notes.close()


def open_shard(
    shard: str,
    path: Path,
    settings: ShardSettings,
    *,
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    entropy: Entropy,
    links: LinkFactory,
    code_host: CodeHost,
    on_broken: Callable[[BaseException], None] | None = None,
) -> OpenShard:
    """Open a shard and start its entities.

    Args:
        shard: its name, `d0`, `c0`, ...
        path: its store file.
        settings: what it has in common with the others.
        loop, clock, entropy: the shard's.
        links: how it reaches other shards; its calls to itself stay inside.
        code_host: where workflow code comes from.
        on_broken: called once when the store takes no more commits.
    """
    is_data = shard.startswith("d")
    classes = _classes(settings, is_data)
    store = settings.store.open(
        path,
        tables=tables_of(classes),
        loop=loop,
        writer=settings.writer,
        commit_delay=settings.commit_delay,
        name=shard,
        synchronous=settings.synchronous,
        upgrades=settings.upgrades,
    )
    notes = None
    if is_data and settings.objects and settings.writer == "thread":  # users' code, in earnest
        kinds = [cls.KIND for cls in settings.objects]
        notes = HandlerNotes(handler_notes_path(path.parent.parent, shard), kinds)
    own = LocalLinks(loop, elsewhere=links)
    router = Router(settings.placement, own, loop)
    host = Host(
        shard,
        store,
        clock,
        entropy,
        loop,
        router,
        classes,
        {},
        on_broken=on_broken,
        faults=settings.faults.host,
        memory_bytes=settings.memory_bytes,
        notes=notes,
    )
    reporter = Reporter(loop, router.call, _peeker(host)) if is_data else None
    blobs = _blobs(store, path.parent.parent / BLOBS_FOLDER / shard, loop) if is_data else None
    children = ShardChildren(router, settings.placement, clock, entropy)
    host.set_envs(_envs(settings, host, store, reporter, code_host, blobs, children))
    upgrading = Background(store, settings.upgrades, loop)
    opened = OpenShard(store, host, router, reporter, code_host, blobs, upgrading, children)
    own.register(shard, opened.server)
    host.start()
    upgrading.start()
    return opened


async def settled(opened: OpenShard, settings: ShardSettings) -> OpenShard:
    """The shard just opened, if its payloads can be read; else it is closed, untouched.

    Raises:
        CodecMissing, CodecWrong
    """
    try:
        if opened.holds_instances:
            settle_codecs(opened.store, settings.codecs)
    except Exception:
        await opened.close()
        raise
    return opened


def _blobs(store: SqliteStore, folder: Path, loop: asyncio.AbstractEventLoop) -> BlobCollector:
    """The shard's streams; what no row names is removed."""
    blobs = BlobStore(folder)
    if folder.is_dir():
        blobs.sweep(row[0] for row in store.query_now(STREAM_NAMES))
    return BlobCollector(blobs, lambda name: bool(store.query_now(STREAM_NAMED, (name,))), loop)


def _classes(settings: ShardSettings, is_data: bool) -> dict[str, type[DurableObject]]:
    if not is_data:
        return dict(CONTROL_CLASSES)
    classes = dict(DATA_CLASSES)
    for cls in settings.objects:
        if cls.KIND in classes or cls.KIND in CONTROL_CLASSES:
            raise InvalidArgument(f"the entity kind {cls.KIND!r} is taken; rename the class.")
        classes[cls.KIND] = cls
    return classes


def _envs(
    settings: ShardSettings,
    host: Host,
    store: SqliteStore,
    reporter: Reporter | None,
    code_host: CodeHost,
    blobs: BlobCollector | None,
    children: ShardChildren,
) -> dict[str, Any]:
    engines: EngineEnv | None = None
    accounts = AccountEnv(settings.running_max, settings.souschefs, settings.creates_per_second)
    souschefs = _souschefs(settings, host)
    envs: dict[str, Any] = {
        Account.KIND: accounts,
        AccountOld.KIND: AccountOldEnv(
            epoch=souschefs.epoch,
            totals=souschefs.totals,
            pacer=souschefs.pacer,
            store=store,
            account=accounts,
            running_max=settings.v1[0],
            creates_max=settings.v1[1],
            retention=settings.retention,
            codecs=settings.codecs,
            lost_births=settings.faults.lost_births,
        ),
        Gatekeeper.KIND: GatekeeperEnv(
            settings.running_max,
            settings.faults.gatekeeper,
            settings.creates_per_second,
            settings.gatekeeper_calls,
            SpreadRules(*settings.spread, least=settings.souschefs),
        ),
        SousChef.KIND: souschefs,
        Clearing.KIND: ClearingEnv(settings.placement.data_names()),
        Migration.KIND: MigrationEnv(settings.placement.names(), settings.v1[0]),
    }
    if reporter is not None:
        engines = EngineEnv(
            loop=host.loop,
            shard=host.shard,
            store=host.store,
            code_host=code_host,
            reporter=reporter,
            local=host.local,
            crowded=lambda: host.crowded,
            faults=settings.faults.engine,
            blobs=blobs,
            retention=settings.retention,
            codecs=settings.codecs,
            children=children,
        )
        envs[Engine.KIND] = envs[EngineShard.KIND] = engines
    envs[ShardInfo.KIND] = ShardFigures(
        host, store, code_host, settings.process, engines, souschefs, settings.running_max
    )
    return envs


def _souschefs(settings: ShardSettings, host: Host) -> SousChefEnv:
    control_shards = len(settings.placement.control_names())
    pacer = Pacer(host.loop, gap_ms(settings.gatekeeper_calls, control_shards))
    return SousChefEnv(epoch=lambda: host.store.epoch, pacer=pacer)


def _peeker(host: Host) -> Callable[[EntityRef], Engine | None]:
    def peek(ref: EntityRef) -> Engine | None:
        entity = host.peek(ref)
        return entity if isinstance(entity, Engine) else None

    return peek


def shard_info(shard: str) -> EntityRef:
    """The entity that tells how a shard does."""
    return EntityRef(ShardInfo.KIND, shard)
