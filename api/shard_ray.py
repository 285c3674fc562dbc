"""Opens a shard in its Ray actor: the factory that `wiring_ray.start_ray` names.

It imports nothing of clients and front ends: a shard that was killed is back the sooner.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

from ..actors.code_host_ray import RayLauncher
from ..actors.keeper import identify
from ..actors.resources_ray import RayResources
from ..actors.topology import ShardSpec
from ..engines.codec_names import codecs_of
from ..engines.resource_body import TaskLost
from ..runtime import limits
from ..runtime.clock import SystemClock
from ..runtime.datadir import check_store, store_path
from ..runtime.entropy import SystemEntropy
from ..runtime.link_socket import SocketLinks
from ..runtime.memory import resident_bytes
from ..runtime.opening import check_room
from ..runtime.process import ProcessMeter
from .apps import App
from .shard_code import bundles_of, place_code
from .shards import Faults, OpenShard, ShardSettings, open_shard, settled


async def build_shard(spec: ShardSpec) -> OpenShard:
    """Open a shard in its actor."""
    loop = asyncio.get_running_loop()
    store = bundles_of(Path(spec.data_dir))
    app_path = spec.settings["app"]
    if app_path is None:
        app = App.from_objects(())
    else:
        app = App.from_file(app_path, store, spec.settings["code_hash"])
    app.keep_in(store)
    entropy = SystemEntropy()
    # Long-lived objects of many instances make full collections dear and find nothing.
    gc.set_threshold(*limits.GC_THRESHOLDS)
    gc.freeze()
    me = identify(os.getpid())
    watched = tuple(one for one in (me, spec.starter) if one is not None)
    code_host = place_code(
        app,
        spec.shard,
        Path(spec.data_dir),
        run_dir=spec.run_dir,
        trusted=spec.settings["trusted"],
        launcher=RayLauncher(is_one_machine=spec.listen == "unix"),
        loop=loop,
        watched=watched,
        resources=RayResources(None, TaskLost),
        owns_loop=True,
    )
    process = ProcessMeter(loop)
    running_max, creates_max, lost_births = spec.settings["v1"]
    settings = ShardSettings(
        spec.placement,
        objects=app.objects,
        memory_bytes=resident_bytes,
        process=process,
        codecs=codecs_of(spec.settings.get("codecs")),
        creates_per_second=tuple(spec.settings["creates_per_second"]),
        v1=(running_max, creates_max),
        faults=Faults(lost_births=lost_births),
    )
    path = store_path(Path(spec.data_dir), spec.shard)
    check_store(Path(spec.data_dir), spec.shard)
    check_room(path)
    opened = open_shard(
        spec.shard,
        path,
        settings,
        loop=loop,
        clock=SystemClock(),
        entropy=entropy,
        links=SocketLinks(spec.socket_address, spec.token, loop, entropy),
        code_host=code_host,
    )
    opened = await settled(opened, settings)
    process.start()  # for as long as the process lives
    return opened
