"""The smallest workflow, and how to run it: in this process, without Ray.

    python examples/hello.py Ada

Two steps and a sleep. Kill it while it sleeps and start it again with the same data directory:
the first step does not run a second time.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import toque


class Hello(toque.WorkflowEntrypoint):
    """Greets somebody, after a moment's thought."""

    async def run(self, event: toque.WorkflowEvent[str], step: toque.WorkflowStep) -> str:
        name = await step.do("look up the name", lambda: event.payload.title())
        await step.sleep("think", 0.2)
        return await step.do("greet", lambda: f"Hello, {name}!")


async def main(data: Path, name: str) -> str:
    async with toque.embedded(data, [Hello]) as runtime:
        status = await runtime.client().run_instance("Hello", params=name)
        return status.output_as(str)


if __name__ == "__main__":
    print(asyncio.run(main(Path(".toque/hello"), *(sys.argv[1:] or ["world"]))))
