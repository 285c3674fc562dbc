"""What the control plane costs the account, and whether it is fair; on Ray.

1. 2,000 creates go through: calls at the Gatekeeper, by SousChef and second.
2. `Busy` queues 1,000 instances of 0.2 s, then `Late` queues 10, at a limit of 20: when has each
   of `Late`'s started?

    python bench/control_plane.py
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from datetime import datetime
from pathlib import Path

from toque.api.client import Client
from toque.api.wiring import NO_RATES
from toque.api.wiring_ray import RayRuntime, start_ray
from toque.gatekeeper.messages import ACCOUNT_KIND, GATEKEEPER_KIND
from toque.runtime.ids import EntityRef

APP = Path(__file__).with_name("slow_app.py")
ACCOUNT = "default"


async def gatekeeper_calls(runtime: RayRuntime) -> int:
    """How many cycle calls the Gatekeeper has taken."""
    shown = await runtime.router.call(EntityRef(GATEKEEPER_KIND, ACCOUNT), "statistics")
    return int(shown["calls"])


async def count_calls(runtime: RayRuntime, client: Client) -> None:
    """2,000 creates, 32 in flight, each waited for."""
    souschefs = 2
    for n in (200, 2_000, 4_000):
        before, start = await gatekeeper_calls(runtime), time.perf_counter()
        numbers = iter(range(n))

        async def worker(numbers: object = numbers) -> None:
            for _ in numbers:  # type: ignore[attr-defined]
                await client.create_instance("Quick", wait=60)

        await asyncio.gather(*(worker() for _ in range(32)))
        seconds = time.perf_counter() - start
        calls = await gatekeeper_calls(runtime) - before
        bound = souschefs * (int(seconds) + 1)
        print(
            f"{n} creates in {seconds:.2f} s: {calls} calls at the Gatekeeper "
            f"(bound: one per SousChef and second = {bound}) {'ok' if calls <= bound else 'OVER'}"
        )


async def measure_fairness(runtime: RayRuntime, client: Client) -> None:
    """See the module."""
    await runtime.router.call(EntityRef(ACCOUNT_KIND, ACCOUNT), "set_limits", 20)
    await client.create_instances("Busy", ({} for _ in range(1_000)))
    asked = time.time()
    late = [await client.create_instance("Late") for _ in range(10)]
    shown = [await instance.wait(timeout=120) for instance in late]
    starts = sorted(datetime.fromisoformat(one.start).timestamp() - asked for one in shown)
    verdict = "ok" if starts[-1] <= 3 else "OVER"
    print(
        f"Late's ten started {starts[0]:.2f} to {starts[-1]:.2f} s after they were asked for, "
        f"behind 1,000 of Busy at a limit of 20 (bound: three cycles = 3 s) {verdict}"
    )


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as folder:
        starting = start_ray(folder, app_path=APP, creates_per_second=NO_RATES)
        async with starting as runtime, runtime.client() as client:
            await client.create_instance("Quick", wait=60)
            await count_calls(runtime, client)
            await measure_fairness(runtime, client)


if __name__ == "__main__":
    asyncio.run(main())
