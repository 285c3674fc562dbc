"""A process that runs the workflows of `worker_app`, to be killed by them or from outside.

    python -m tests.engines.worker_victim FOLDER WORKFLOW PARAMS

Goes on with the instance `victim` if there is one; prints its outcome.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.engines.worker_app import Held, Poison
from toque.api.wiring import embedded
from toque.runtime.errors import InstanceAlreadyExists


async def main(folder: str, workflow: str, params: str) -> None:
    async with embedded(Path(folder) / "data", [Held, Poison]) as runtime:
        client = runtime.client()
        try:
            victim = await client.create_instance(workflow, "victim", json.loads(params))
        except InstanceAlreadyExists:
            victim = await client.get_instance(workflow, "victim")
        status = await victim.wait(30)
        steps = (await victim.status()).steps
        errors = [one.error.message for step in steps for one in step.attempts if one.error]
        told = {"output": status.output, "pid": os.getpid(), "errors": errors}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
