"""Steps that need resources, and instances in a Ray actor of their own, on a local Ray.

    python examples/resource_step.py

`render` makes the frames of a film. Each frame is a step that asks for a CPU and a `lens`, of
which this machine has two: Ray runs at most two frames at a time, in worker processes of its own,
which it uses again (frames as quick as these may all come from one), and a third waits for a lens.
Nothing is held while the film waits for its title. `studio` does the same with
`placement = "actor"`: the whole instance has a process of its own, and gives it up while it waits.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any

import toque
from toque.api.wiring_ray import start_ray

LENS = {"num_cpus": 1, "resources": {"lens": 1}}


def draw(frame: int) -> dict[str, int]:
    """A frame; stands for work that keeps a processor or a GPU busy."""
    light = sum(n * n for n in range(frame * 1_000))
    return {"frame": frame, "light": light, "process": os.getpid()}


@toque.workflow
async def render(event: toque.WorkflowEvent[int], step: toque.WorkflowStep) -> dict[str, Any]:
    """All frames, then the title that somebody sends."""
    frames = await asyncio.gather(
        *(step.do(f"frame {n}", partial(draw, n), ray_options=LENS) for n in range(event.payload))
    )
    title = await step.wait_for_event("title", "title")
    return {"title": title.payload, "frames": frames, "shard": await step.do("shard", os.getpid)}


class Studio(toque.WorkflowEntrypoint):
    """An instance with an actor of its own."""

    name = "studio"
    placement = "actor"
    ray_options = {"num_cpus": 0.5, "runtime_env": {"env_vars": {"STUDIO": "B"}}}

    async def run(self, event: toque.WorkflowEvent[Any], step: toque.WorkflowStep) -> Any:
        """Which studio this is, and its process before and after a pause."""
        before = await step.do("before", os.getpid)
        await step.sleep("a break", "50 ms")
        after = await step.do("after", os.getpid)
        return [os.environ["STUDIO"], before, after]


async def main(data: Path) -> dict[str, Any]:
    """What both of them made."""
    async with start_ray(
        data, app_path=__file__, data_shards=1, num_cpus=2, resources={"lens": 2}
    ) as runtime:
        client = runtime.client()
        studio = await client.create_instance("studio")
        film = await client.create_instance("render", params=3)
        await film.send_event("title", "Whales")
        made = await film.wait(raise_on_error=True)
        return {"film": made.output, "studio": (await studio.wait(raise_on_error=True)).output}


if __name__ == "__main__":
    print(asyncio.run(main(Path(".toque/resource_step"))))
