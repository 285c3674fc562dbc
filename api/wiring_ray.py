"""The runtime on Ray: one supervised actor per shard, reached over sockets.

This process keeps the cluster: it starts Ray, makes the actors, watches them, and takes all of it
down at the end. State is in the shards' stores alone; whatever dies is opened again from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from ..actors.cluster_ray import start_local
from ..actors.supervisor_ray import Event, Supervisor
from ..engines.bundle_store import BundleStore
from ..engines.codec_names import Given, names_of
from ..runtime.clock import SystemClock
from ..runtime.datadir import DataDir
from ..runtime.entropy import SystemEntropy
from ..runtime.link_socket import SocketLinks
from ..runtime.process import ProcessMeter
from ..runtime.rpc import Router
from .apps import App
from .shard_code import bundles_of, keep_app
from .wiring import DEFAULT_ACCOUNT, DEFAULT_RATES, Runtime


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
) -> AsyncIterator[RayRuntime]:
    """A local Ray cluster with one supervised actor per shard.

    Args:
        path: the data directory; made if missing. Instances in it go on.
        app_path: the file with the workflows; every shard imports it. None: only code that is
            deployed runs.
        account, running_max, data_shards, control_shards: as for `embedded` (2 data shards).
        num_cpus: CPUs that Ray may use for steps with resources of their own.
        resources: custom resources that this machine has, for such steps.
        on_event: told of each `Event` of the supervisor.
        codecs: as for `embedded`, by names only.
        creates_per_second: of an account, and of a workflow, whose limits were not set.

    Raises:
        WorkflowLoadError, DataDirInUse, DataDirFormat, ClusterStartFailed
    """
    app = App.from_objects(()) if app_path is None else App.from_file(app_path)
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        directory = DataDir.open(
            Path(path),
            data_shards=data_shards,
            control_shards=control_shards,
            created_ms=SystemClock().now_ms(),
        )
        stack.callback(directory.close)
        await asyncio.to_thread(keep_app, app, directory)
        cluster = await start_local(
            directory.path,
            placement=directory.placement,
            factory="toque.api.shard_ray:build_shard",
            settings={
                "app": None if app_path is None else os.path.realpath(app_path),
                "code_hash": app.code.code_hash if app.code is not None else None,
                "trusted": account,
                "codecs": names_of(codecs),
                "creates_per_second": creates_per_second,
            },
            num_cpus=num_cpus,
            resources=resources,
        )
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
        await runtime.deploy(account, running_max)
        yield runtime
