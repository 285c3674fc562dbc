"""What is filled with copies is what the API would have made: they wait, wake and end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.fill import fill
from toque import WorkflowEntrypoint, embedded


class Wait(WorkflowEntrypoint):
    """Waits for an event."""

    async def run(self, event, step):
        return (await step.wait_for_event("wait", "go", timeout="7 days")).payload


class Nap(WorkflowEntrypoint):
    """Sleeps."""

    async def run(self, event, step):
        await step.sleep("nap", "7 days")
        return "rested"


async def test_copies_wake_by_event_and_by_time(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with embedded(data, [Wait, Nap], data_shards=2) as runtime:
        client = runtime.client()
        for workflow in ("Wait", "Nap"):
            made = await client.create_instances(workflow, [{"id": f"m{n}"} for n in range(6)])
            for one in made:
                async for _ in client.instance(workflow, one.id).events(types=["workflow_waiting"]):
                    break
    fill(data, "Wait", 40)
    fill(data, "Nap", 20, int(time.time() * 1000))
    async with embedded(data, [Wait, Nap]) as runtime:
        client = runtime.client()
        for number in (0, 17, 39):
            one = client.instance("Wait", f"w{number}")
            await one.send_event("go", number)
            assert await one.output(timeout=20) == number
        naps = [client.instance("Nap", f"w{number}") for number in range(20)]
        assert await asyncio.gather(*(nap.output(timeout=20) for nap in naps)) == ["rested"] * 20
        counts = (await client.get_workflow("Wait")).instances
        assert (counts["waiting"], counts["complete"]) == (43, 3)
