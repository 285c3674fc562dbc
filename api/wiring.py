"""What is plugged where: a whole runtime, embedded in this process or on Ray.

* `embedded(path, workflows)` / `start_embedded(path, app_path=...)`: all shards in this process,
  and no Ray (nor its import).
* `wiring_ray.start_ray(path, app_path=...)`: each shard a supervised Ray actor, over sockets.

Both give a `Runtime` with the same `control_plane` and `client()`. An app is a Python file; its
workflows (and `DurableObject` classes) are found by importing it, here and in every shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..actors.topology import ShardSpec, directory_id
from ..actors.worker import ChildLauncher
from ..engines.bundle_store import BundleStore
from ..engines.codec_names import Given, codecs_of
from ..engines.workflow import refuse_at_import
from ..gatekeeper.messages import LimitsChange
from ..gatekeeper.planes import MADE_ON, Plane
from ..migration.formats import DIR_UPGRADES
from ..runtime import limits
from ..runtime.clock import SystemClock
from ..runtime.datadir import DataDir, check_store
from ..runtime.entropy import SystemEntropy
from ..runtime.errors import InvalidArgument
from ..runtime.frames_socket import runtime_directory
from ..runtime.guarded import is_a, shown
from ..runtime.ids import EntityRef
from ..runtime.link_local import LocalLinks
from ..runtime.memory import resident_bytes
from ..runtime.opening import check_room
from ..runtime.payload_codec import Codecs
from ..runtime.process import ProcessMeter
from ..runtime.rpc import Router
from .apps import App
from .client import Client
from .client_embedded import EmbeddedBackend
from .embedded_shard import EmbeddedShard
from .service import ControlPlane
from .shard_code import bundles_of, keep_app, place_code
from .shards import Faults, OpenShard, ShardSettings, open_shard, settled
from .sources import sources_of

DEFAULT_ACCOUNT = "default"
DEFAULT_RATES = (
    limits.CREATES_PER_SECOND_DEFAULT,
    limits.CREATES_PER_SECOND_OF_WORKFLOW_DEFAULT,
)
"""Creates per second of an account, and of a workflow, that has set none."""
NO_RATES = (limits.CREATES_PER_SECOND_MAX, limits.CREATES_PER_SECOND_MAX)
V1_RULES = (limits.V1_RUNNING_MAX, limits.V1_CREATES_MAX, 0)
"""Of accounts on V1: how many may run, and be created in V1_CREATES_WINDOW_MS. The third is a
deliberate fault, for checkers: of every so many creates one has no Engine (0: none)."""


class Runtime:
    """A running toque. Made by the functions of this module.

    Attributes:
        control_plane: the operations, for HTTP and for clients in this process.
        router: calls any entity.
        placement: which shards there are.
        workflows: names of the app's workflows.
        process: figures of this process.
        shards: how another process reaches the shards; None: they are in this one.
        takes_params: those of them whose `run` names a type for its params.
    """

    def __init__(
        self, router: Router, app: App | None, bundles: BundleStore | None, process: ProcessMeter
    ) -> None:
        self.router = router
        self.shards: ShardSpec | None = None
        self.process = process
        self.placement = router.placement
        self.entropy = SystemEntropy()
        self.control_plane = ControlPlane(router, self.placement, SystemClock(), self.entropy)
        self.workflows = [definition.name for definition in app.definitions] if app else []
        self.takes_params = (
            [d.name for d in app.definitions if d.payload_type is not Any] if app else []
        )
        self._app = app
        self.control_plane.deploys.store = bundles
        self.control_plane.versions.graphs = self.control_plane.deploys.graphs
        self.control_plane.versions.sources = sources_of(
            app.definitions if app else (), self.control_plane.deploys.sources
        )

    def client(self, account: str = DEFAULT_ACCOUNT) -> Client:
        """The SDK client, without HTTP."""
        return Client(EmbeddedBackend(self.control_plane, account), self.entropy)

    def object(self, kind: str, key: str) -> ObjectStub:
        """A stub of a user's entity: `await runtime.object("Counter", "a").add(1)`."""
        return ObjectStub(self.router, EntityRef(kind, key))

    async def deploy(
        self, account: str, running_max: int | None, control_plane: Plane | None = None
    ) -> None:
        """Register the app's workflows with an account, and set its limit if one is given.

        The account is made if it is missing, on a control plane (None: on V2). Who starts the app
        owns the directory, so names that other scripts had are taken over.

        Raises:
            AccountAlreadyExists: the account was made on another control plane.
        """
        check_plane(control_plane)
        plane, app = self.control_plane, self._app
        await plane.accounts.ensure_account(account, control_plane)
        if app is not None and app.code is not None:
            classes = [(d.name, d.class_name) for d in app.definitions]
            if classes:
                await plane.deploys.take_app(account, app.script, app.code.code_hash, classes)
        for definition in app.definitions if app is not None and app.code is None else ():
            await plane.deploys.take_workflow(
                account,
                app.script if app else "",
                definition.code_hash,
                definition.name,
                definition.class_name,
            )
        if running_max is not None:
            await plane.limits.of_account(account, LimitsChange(running_max=running_max))

    async def close(self) -> None:
        """End background work and links. Shards are closed by who opened them."""
        self.control_plane.refuse()
        await self.control_plane.close()
        self.router.close()


def check_plane(given: object) -> None:
    """Refuse what an account can't be made on (`InvalidArgument`); None is taken."""
    if given is not None and given not in MADE_ON:
        raise InvalidArgument(
            f"the control plane is {shown(given)}; it is one of {', '.join(MADE_ON)}. "
            "Right: control_plane='v1'."
        )


class ObjectStub:
    """Calls a user's entity from outside."""

    def __init__(self, router: Router, ref: EntityRef) -> None:
        self._router = router
        self._ref = ref

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args: self._router.call(self._ref, method, *args)


# --- embedded -------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def embedded(
    path: str | os.PathLike[str],
    workflows: Iterable[Any] = (),
    *,
    account: str = DEFAULT_ACCOUNT,
    running_max: int | None = None,
    data_shards: int | None = None,
    control_shards: int | None = None,
    codecs: Mapping[str, Given] | None = None,
    creates_per_second: tuple[int, int] = NO_RATES,
    control_plane: Plane | None = None,
    v1: tuple[int, int, int] = V1_RULES,
) -> AsyncIterator[Runtime]:
    """The whole system in this process, without Ray: for tests, notebooks and small apps.

    Args:
        path: the data directory; made if missing. Instances in it go on.
        workflows: workflow classes or functions, and `DurableObject` classes.
        account: the account that the workflows are registered with.
        running_max: how many instances may run at once (default 50,000, or as set before).
        data_shards, control_shards: for a new directory; 1 each if not given.
        codecs: for each account the codec of its payloads at rest, or several of which the first
            one writes; objects (see `runtime.payload_codec`) or names of them.
        creates_per_second: of an account, and of a workflow, whose limits were not set; here
            none by default, since who calls is this process itself.
        control_plane: that the account is made on, `"v1"` or `"v2"`; None: on `"v2"`, or as it
            was made. See docs/control-planes.md.
        v1: what accounts on V1 may do; see `V1_RULES`.

    Raises:
        InvalidArgument: the path or the workflows are none.
        AccountAlreadyExists: the account was made on another control plane.
        DataDirInUse, DataDirFormat: see `DataDir.open`.
        CodecMissing, CodecWrong: the directory has payloads that the codecs can't read.
        ProgramRunsAtImport: a worker imports the file, which must not run its program by that:
            it belongs under `if __name__ == "__main__":`.
    """
    refuse_at_import()
    if not is_a(path, (str, os.PathLike)) or not os.fspath(path) or "\0" in str(path):
        raise InvalidArgument(
            f"the data directory is {shown(path)}; it must be a path without NUL characters. "
            "Right: toque.embedded('data', [MyWorkflow])."
        )
    if inspect.isclass(workflows) or not is_a(workflows, Iterable):
        raise InvalidArgument(
            f"the workflows are {shown(workflows)}; they must be a list of workflow classes or "
            "functions. Right: toque.embedded('data', [MyWorkflow])."
        )
    app = App.from_objects(workflows)
    shards = data_shards, control_shards
    more = codecs_of(codecs), creates_per_second, control_plane, v1
    async with _embedded(path, app, account, running_max, shards, *more) as runtime:
        yield runtime


@contextlib.asynccontextmanager
async def start_embedded(
    path: str | os.PathLike[str],
    *,
    app_path: str | os.PathLike[str] | None,
    account: str = DEFAULT_ACCOUNT,
    running_max: int | None = None,
    data_shards: int | None = None,
    control_shards: int | None = None,
    codecs: Mapping[str, Given] | None = None,
    creates_per_second: tuple[int, int] = DEFAULT_RATES,
    control_plane: Plane | None = None,
    v1: tuple[int, int, int] = V1_RULES,
) -> AsyncIterator[Runtime]:
    """As `embedded`, with the workflows of a file, with the usual rates of creates, and `V1_RULES`.

    Without a file only code that is deployed runs.
    """
    app = App.from_objects(()) if app_path is None else App.from_file(app_path)
    shards = data_shards, control_shards
    more = codecs_of(codecs), creates_per_second, control_plane, v1
    async with _embedded(path, app, account, running_max, shards, *more) as runtime:
        yield runtime


@contextlib.asynccontextmanager
async def _embedded(
    path: str | os.PathLike[str],
    app: App,
    account: str,
    running_max: int | None,
    shards: tuple[int | None, int | None],
    codecs: Codecs,
    creates_per_second: tuple[int, int],
    control_plane: Plane | None,
    v1: tuple[int, int, int],
) -> AsyncIterator[Runtime]:
    check_plane(control_plane)
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        directory = DataDir.open(
            Path(path),
            data_shards=shards[0],
            control_shards=shards[1],
            created_ms=clock.now_ms(),
            upgrades=DIR_UPGRADES,
        )
        stack.callback(directory.close)
        process = ProcessMeter(loop)
        process.start()
        stack.callback(process.close)
        await asyncio.to_thread(keep_app, app, directory)
        settings = ShardSettings(
            directory.placement,
            objects=app.objects,
            memory_bytes=resident_bytes,
            process=process,
            codecs=codecs,
            creates_per_second=creates_per_second,
            v1=v1[:2],
            faults=Faults(lost_births=v1[2]),
        )
        run_dir = runtime_directory(f"e-{directory_id(str(directory.path))}")
        stack.callback(_remove_if_empty, run_dir)
        stack.callback(shutil.rmtree, run_dir, ignore_errors=True)
        links = LocalLinks(loop)
        opened: list[EmbeddedShard] = []
        stack.push_async_callback(_close_all, opened)
        for shard in directory.placement.names():
            open_once = partial(
                _open_embedded, shard, app, directory, settings, links, run_dir, account
            )
            one = EmbeddedShard(shard, links, open_once, loop)
            await one.open()
            opened.append(one)
        directory.note_stores_made()
        router = Router(directory.placement, links, loop)
        runtime = Runtime(router, app, bundles_of(directory.path), process)
        stack.push_async_callback(runtime.close)
        await runtime.deploy(account, running_max, control_plane)
        yield runtime


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


async def _open_embedded(
    shard: str,
    app: App,
    directory: DataDir,
    settings: ShardSettings,
    links: LocalLinks,
    run_dir: str,
    account: str,
    on_broken: Callable[[BaseException], None],
) -> OpenShard:
    loop = asyncio.get_running_loop()
    path = directory.store_path(shard)
    check_store(directory.path, shard)
    check_room(path)
    code_host = place_code(
        app,
        shard,
        directory.path,
        run_dir=run_dir,
        trusted=account,
        launcher=ChildLauncher(),
        loop=loop,
    )
    try:
        opened = open_shard(
            shard,
            path,
            settings,
            loop=loop,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            links=links,
            code_host=code_host,
            on_broken=on_broken,
        )
        return await settled(opened, settings)
    except BaseException:
        await code_host.aclose()
        raise


async def _close_all(shards: list[EmbeddedShard]) -> None:
    for shard in shards:
        shard.stop()
    for shard in shards:
        await shard.close()
