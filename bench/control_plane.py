"""What the control plane costs the account, and whether it is fair; on Ray.

1. Creates go through, each waited for: calls at the Gatekeeper, by SousChef and second.
2. `Busy` queues 1,000 instances of 0.2 s, then `Late` queues 10, at a limit of 20: when has each
   of `Late`'s started?
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import typer

from toque.api.client import Client
from toque.api.wiring import NO_RATES
from toque.api.wiring_ray import RayRuntime, start_ray
from toque.gatekeeper.messages import ACCOUNT_KIND, GATEKEEPER_KIND
from toque.runtime.ids import EntityRef

from . import asked, sections
from .figures import table
from .server import APP

ACCOUNT = "default"


class Counted(NamedTuple):
    """Creates that went through, and the calls that the Gatekeeper took meanwhile."""

    creates: int
    seconds: float
    calls: int
    souschefs: int

    @property
    def bound(self) -> int:
        """One call of each SousChef, and of the front end, in each second that was touched."""
        return (self.souschefs + 1) * (int(self.seconds) + 1)


async def statistics(runtime: RayRuntime) -> Any:
    """The Gatekeeper's."""
    return await runtime.router.call(EntityRef(GATEKEEPER_KIND, ACCOUNT), "statistics")


async def count_calls(runtime: RayRuntime, client: Client, n: int) -> Counted:
    """So many creates, 32 in flight, each waited for."""
    before, start = await statistics(runtime), time.perf_counter()
    numbers = iter(range(n))

    async def worker() -> None:
        for _ in numbers:
            await client.create_instance("OneStep", wait=60)

    await asyncio.gather(*(worker() for _ in range(32)))
    seconds = time.perf_counter() - start
    after = await statistics(runtime)
    return Counted(n, seconds, after["calls"] - before["calls"], after["holders"])


async def measure_fairness(runtime: RayRuntime, client: Client) -> list[float]:
    """When, in seconds after they were asked for, `Late`'s ten have started."""
    await runtime.router.call(EntityRef(ACCOUNT_KIND, ACCOUNT), "set_limits", 20)
    await client.create_instances("Busy", ({} for _ in range(1_000)))
    asked = time.time()
    late = [await client.create_instance("Late") for _ in range(10)]
    shown = [await instance.wait(timeout=120) for instance in late]
    return sorted(datetime.fromisoformat(one.start).timestamp() - asked for one in shown)


def report(counted: list[Counted], starts: list[float]) -> str:
    """The section."""
    head = ["creates", "in, s", "SousChefs", "calls at the Gatekeeper", "bound"]
    rows = [
        [f"{c.creates:,}", f"{c.seconds:.2f}", str(c.souschefs), str(c.calls), str(c.bound)]
        for c in counted
    ]
    return f"""## The account's load, and fairness

`python -m bench control-plane`, on Ray. The bound is one call a second of each
SousChef, and of the front end.

{table(head, rows)}

At a limit of 20 a workflow has queued 1,000 instances of 0.2 s. Ten of another workflow, asked for
then, started after {starts[0]:.2f} to {starts[-1]:.2f} s (bound: three cycles, 3 s).
"""


async def _measured(creates: list[int]) -> tuple[list[Counted], list[float]]:
    with tempfile.TemporaryDirectory(prefix="toque-bench-") as folder:
        starting = start_ray(folder, app_path=APP, creates_per_second=NO_RATES)
        async with starting as runtime, runtime.client() as client:
            await client.create_instance("OneStep", wait=60)
            counted = [await count_calls(runtime, client, n) for n in creates]
            return counted, await measure_fairness(runtime, client)


def command(
    creates: Annotated[str, typer.Option(help="How many, one after the other.")] = "200,2000,4000",
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """Calls at the Gatekeeper, and how soon a newcomer starts."""
    counts = [int(n) for n in asked.numbers(creates, "--creates", 1)]
    counted, starts = asyncio.run(_measured(counts))
    text = report(counted, starts)
    print(text)
    if page:
        worst = max(one.calls / one.bound for one in counted)
        figures = {"calls_per_souschef_s": worst, "late_s": starts[-1]}
        sections.put("control-plane", text, figures=figures)
