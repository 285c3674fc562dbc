"""A whole runtime on Ray to which code is deployed while instances wait and a shard is killed.

    python -m tests.cluster.deployed DATA

Prints what it saw as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from toque.api import wiring_ray
from toque.engines.archive import Bundle

BASE = "import toque\n\n\n@toque.workflow\nasync def base(event, step):\n    return 1\n"
V1 = b"""
import os
import toque


class Order(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        pid = await step.do("pid", lambda: os.getpid())
        await step.wait_for_event("ok", "ok", timeout="1 hour")
        return ["v1", pid, await step.do("again", lambda: os.getpid())]
"""
V2 = b"""
import os
import toque
from helpers import VERSION


class Order(toque.WorkflowEntrypoint):
    async def run(self, event, step):
        await step.do("check", lambda: True)
        return [VERSION, os.getpid()]
"""


async def deploy(runtime: wiring_ray.RayRuntime, account: str, files: dict[str, bytes]) -> None:
    deploys = runtime.control_plane.deploys
    await deploys.deploy(account, "shop", Bundle(files).to_zip())


async def output(runtime: wiring_ray.RayRuntime, account: str = "default") -> Any:
    status = await runtime.client(account).run_instance("Order", timeout=60)
    assert status.success, status.error
    return status.output


async def play(runtime: wiring_ray.RayRuntime) -> dict[str, Any]:
    """Deploy, let one wait, deploy again, kill the shard, and see who ends on what."""
    v2 = {"app.py": V2, "helpers.py": b"VERSION = 'v2'"}
    await deploy(runtime, "default", {"app.py": V1})
    old = await runtime.client().create_instance("Order", "old")
    async for event in old.events():
        if event.type == "workflow_waiting":
            break
    await deploy(runtime, "default", v2)
    await deploy(runtime, "other", v2)
    new, other = await output(runtime), await output(runtime, "other")
    shard = runtime.supervisor.health["d0"]["process"][0]
    os.kill(shard, signal.SIGKILL)
    await old.send_event("ok")
    status = await old.wait(60)
    after = await output(runtime)
    return {
        "shard": shard,
        "old": status.output,
        "error": status.error,
        "new": new,
        "other": other,
        "after": after,
    }


async def main(data: str) -> None:
    app = Path(data).parent / "base.py"
    app.write_text(BASE)
    async with wiring_ray.start_ray(data, app_path=app, data_shards=1, num_cpus=1) as runtime:
        await runtime.supervisor.wait_seen()
        seen = await play(runtime)
    print(json.dumps(seen, default=str))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
