"""A process that starts a cluster and supervises it, to be killed.

    python -m tests.cluster.starter DATA

Prints one JSON object per line: `ready` with the process numbers, each event of the supervisor,
`stopped` at the end. SIGINT stops it cleanly.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from toque.actors import cluster_ray, keeper, supervisor_ray, topology
from toque.runtime.ids import Placement

FACTORY = "tests.cluster.echo_host:build"


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def ray_settings() -> dict[str, str]:
    """What toque sets of them, for Ray to read when it starts."""
    ours = topology.process_environment("auth", ["json"])
    return {name: value for name, value in os.environ.items() if name in ours}


async def main(data_dir: str) -> None:
    settings = ray_settings()
    asking = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, asking.set)
    cluster = await cluster_ray.start_local(
        data_dir, placement=Placement(1, 1), factory=FACTORY, num_cpus=1
    )
    supervisor = supervisor_ray.Supervisor(
        cluster, lambda event: say(**event._asdict()), period_ms=100, silence_max_ms=2_000
    )
    supervisor.start()
    assert cluster.run is not None
    actors = {
        shard: (await cluster.ask(shard, "health", 5))["process"][0] for shard in cluster.specs
    }
    cluster_pids = {p.pid for p in keeper.offspring([os.getpid()])} - {os.getpid()}
    say(
        what="ready",
        actors=actors,
        raylet=next(p.pid for p in cluster.roots if "raylet/raylet" in keeper.command(p.pid)),
        keeper=cluster.run._keeper.pid,
        pids=sorted(cluster_pids),
        leftovers=cluster.leftovers_ended,
        run_dir=cluster.run.run_dir,
    )
    await asking.wait()
    await supervisor.close()
    await cluster.stop()
    say(what="stopped", environment_is_as_before=ray_settings() == settings)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
