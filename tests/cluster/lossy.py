"""A runtime on a Ray that loses a part of its calls and of their answers. One story.

    python -m tests.cluster.lossy DATA

Ray's own fault injection drops requests and replies of calls to actors. Prints what was seen as
one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from tests.recovery import flow

SHARE_PERCENT = 10
LOSSES = {
    "CoreWorkerService.grpc_client.PushTask": {
        "num_failures": -1,
        "req_failure_prob": SHARE_PERCENT,
        "resp_failure_prob": SHARE_PERCENT,
    }
}
CALLS = 200
ADDS = 300
ROOT = Path(__file__).parents[2]


async def asked(runtime: RayRuntime) -> int:
    """How many of so many calls of an actor failed."""
    failed = 0
    for _ in range(CALLS):
        try:
            await runtime.supervisor._cluster.ask("d0", "health", 5)
        except (RayError, TimeoutError):
            failed += 1
    return failed


async def added(runtime: RayRuntime, numbers: range) -> list[int]:
    """The additions that were acknowledged; none is repeated."""
    known = []
    for number in numbers:
        try:
            ref = EntityRef("Ledger", "left")
            await runtime.router.call(ref, "add", number, timeout_ms=2_000)
        except ToqueError:
            continue
        known.append(number)
    return known


async def main(data: str) -> None:
    app = ROOT / "tests" / "recovery" / "ledger.py"
    async with start_ray(data, app_path=app, data_shards=1, num_cpus=1) as runtime:
        await runtime.supervisor.wait_seen()
        failed, known = await asyncio.gather(asked(runtime), added(runtime, range(ADDS)))
        quietly = [event._asdict() for event in runtime.supervisor.events]
        pid = runtime.supervisor.health["d0"]["process"][0]
        os.kill(pid, signal.SIGKILL)
        number = ADDS
        async with asyncio.timeout(60):
            while not (more := await added(runtime, range(number, number + 1))):
                number += 1
                await flow.work_for(0.05)
        known += more + await added(runtime, range(number + 1, number + 50))
        total, _rung = await runtime.object("Ledger", "left").read()
    print(json.dumps({"failed": failed, "events": quietly, "known": known, "total": total}))


if __name__ == "__main__":
    os.environ.update({"RAY_testing_rpc_failure": json.dumps(LOSSES)})  # read at Ray's import
    from ray.exceptions import RayError

    from toque.api.wiring_ray import RayRuntime, start_ray
    from toque.runtime.errors import ToqueError
    from toque.runtime.ids import EntityRef

    asyncio.run(main(sys.argv[1]))
