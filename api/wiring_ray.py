"""The runtime on Ray: one supervised actor per shard, reached over sockets.

This process keeps the cluster: it starts Ray (or uses one that is there, of many nodes), makes the
actors, watches them, and takes all of it down at the end. State is in the shards' stores alone;
whatever dies is opened again from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from ..actors.cluster_ray import Cluster, attach, start_local
from ..actors.supervisor_ray import Event, Supervisor
from ..actors.topology import shard_specs
from ..engines.bundle_store import BundleStore
from ..engines.codec_names import Given, names_of
from ..gatekeeper.planes import Plane
from ..migration.formats import DIR_UPGRADES
from ..runtime.clock import SystemClock
from ..runtime.datadir import DataDir
from ..runtime.entropy import SystemEntropy
from ..runtime.link_socket import SocketLinks
from ..runtime.process import ProcessMeter
from ..runtime.rpc import Router
from .apps import App
from .shard_code import bundles_of, keep_app
from .wiring import DEFAULT_ACCOUNT, DEFAULT_RATES, V1_RULES, Runtime

_FACTORY = "toque.api.shard_ray:build_shard"
_RUN_FOLDER = "run"
"""In the data directory: where the shards of a cluster of many nodes say how they are reached."""


class RayRuntime(Runtime):
    """A running toque on Ray.

    Attributes:
        supervisor: watches the shard actors; `supervisor.events` tells what happened to them.
    """

    def __init__(
        self,
        router: Router,
        app: App,
        bundles: BundleStore,
        supervisor: Supervisor,
        process: ProcessMeter,
    ) -> None:
        super().__init__(router, app, bundles, process)
        self.supervisor = supervisor


@contextlib.asynccontextmanager
async def start_ray(
    path: str | os.PathLike[str],
    *,
    app_path: str | os.PathLike[str] | None,
    account: str = DEFAULT_ACCOUNT,
    running_max: int | None = None,
    data_shards: int | None = None,
    control_shards: int | None = None,
    num_cpus: int | None = None,
    resources: dict[str, float] | None = None,
    on_event: Callable[[Event], None] | None = None,
    codecs: Mapping[str, Given] | None = None,
    creates_per_second: tuple[int, int] = DEFAULT_RATES,
    address: str | None = None,
    control_plane: Plane | None = None,
    v1: tuple[int, int, int] = V1_RULES,
) -> AsyncIterator[RayRuntime]:
    """A local Ray cluster, or one that is there, with one supervised actor per shard.

    Args:
        path: the data directory; made if missing. Instances in it go on.
        app_path: the file with the workflows; None: only code that is deployed runs.
        account, running_max, data_shards, control_shards, control_plane: as for `embedded`.
        v1: see `V1_RULES`.
        num_cpus: CPUs that Ray may use for steps with resources of their own.
        resources: custom resources that this machine has, for such steps.
        on_event: told of each `Event` of the supervisor.
        codecs: as for `embedded`, by names only.
        creates_per_second: of an account, and of a workflow, whose limits were not set.
        address: of a Ray cluster to use, all of whose nodes see `path` and the app's file, and
            have their own CPUs and resources. None: a local one is started.

    Raises:
        WorkflowLoadError, DataDirInUse, DataDirFormat, ClusterStartFailed
    """
    app = App.from_objects(()) if app_path is None else App.from_file(app_path)
    loop, clock = asyncio.get_running_loop(), SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        directory = DataDir.open(
            Path(path),
            data_shards=data_shards,
            control_shards=control_shards,
            created_ms=clock.now_ms(),
            upgrades=DIR_UPGRADES,
        )
        stack.callback(directory.close)
        await asyncio.to_thread(keep_app, app, directory)
        settings = _code_of(app, app_path, account)
        settings |= {"codecs": names_of(codecs), "v1": v1}
        settings |= {"creates_per_second": creates_per_second}
        if address is None:
            cluster = await _start(directory, settings, num_cpus, resources)
        else:
            cluster = await _attach(address, directory, settings)
        stack.push_async_callback(cluster.stop)
        directory.note_stores_made()
        supervisor = Supervisor(cluster, on_event)
        supervisor.start()
        stack.push_async_callback(supervisor.close)
        links = SocketLinks(cluster.spec.socket_address, cluster.spec.token, loop, SystemEntropy())
        process = ProcessMeter(loop)
        process.start()
        stack.callback(process.close)
        router = Router(directory.placement, links, loop)
        runtime = RayRuntime(router, app, bundles_of(directory.path), supervisor, process)
        runtime.shards = cluster.spec
        stack.push_async_callback(runtime.close)
        await runtime.deploy(account, running_max, control_plane)
        yield runtime


async def _start(
    directory: DataDir,
    settings: dict[str, Any],
    num_cpus: int | None,
    resources: dict[str, float] | None,
) -> Cluster:
    """The shards as actors of a Ray of this process's own."""
    return await start_local(
        directory.path,
        placement=directory.placement,
        factory=_FACTORY,
        settings=settings,
        num_cpus=num_cpus,
        resources=resources,
    )


async def _attach(address: str, directory: DataDir, settings: dict[str, Any]) -> Cluster:
    """The shards as actors of a cluster that is there, which reach each other over TCP."""
    run_dir = directory.path / _RUN_FOLDER
    run_dir.mkdir(mode=0o700, exist_ok=True)
    for left in run_dir.glob("front-*"):  # figures of a former server's front ends
        left.unlink(missing_ok=True)
    entropy = SystemEntropy()
    specs = shard_specs(
        data_dir=str(directory.path),
        run_dir=str(run_dir),
        placement=directory.placement,
        token=bytes.fromhex(entropy.new_id() + entropy.new_id()),
        factory=_FACTORY,
        settings=settings,
        starter=None,
        listen="tcp",
    )
    return await attach(address, specs)


def _code_of(app: App, app_path: str | os.PathLike[str] | None, account: str) -> dict[str, Any]:
    """What a shard needs to know of the app."""
    return {
        "app": None if app_path is None else os.path.realpath(app_path),
        "code_hash": app.code.code_hash if app.code is not None else None,
        "trusted": account,
    }
