"""A process that works on a data directory until a fault point ends it; see test_fault_points.

    python -m tests.recovery.depositor DATA LOG FIRST COUNT

Takes deposits FIRST, FIRST + 1, ... into each ledger and creates an instance with each, and prints
a JSON object per line for what it was told: `read` (what it found), `deposited`, `created`. With
COUNT 0 it waits until all is at rest instead, and prints `settled`. Ends with 0 if nothing ended
it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import toque
from tests.recovery import flow
from tests.recovery.ledger import KEYS, Ledger, Three
from toque.api.wiring import Runtime
from toque.runtime import limits

_LOOK_S = 0.02


def say(what: str, **more: Any) -> None:
    """One line, whole, at once: the process may end right after."""
    print(json.dumps({"what": what, **more}), flush=True)


async def read(runtime: Runtime) -> dict[str, list[str]]:
    """By ledger: its sum, what its alarm saw, and the sum of its copy."""
    found = {}
    for key in KEYS:
        mine = await runtime.object(Ledger.KIND, key).read()
        copy = await runtime.object(Ledger.KIND, f"{key}-copy").read()
        found[key] = [*mine, copy[0]]
    return found


async def deposit(runtime: Runtime, key: str, numbers: range) -> None:
    """One deposit after the other."""
    for number in numbers:
        await runtime.object(Ledger.KIND, key).deposit(number)
        say("deposited", key=key, number=number)


async def create(runtime: Runtime, log: str, numbers: range) -> None:
    """One instance after the other."""
    client = runtime.client()
    for number in numbers:
        await client.create_instance("Three", f"i{number}", params=log)
        say("created", id=f"i{number}")


async def settle(runtime: Runtime) -> None:
    """Wait until alarms and messages have come to rest and all instances have ended; tell."""
    while True:
        found = await read(runtime)
        if all(total == rung == copy for total, rung, copy in found.values()):
            break
        await flow.work_for(_LOOK_S)
    client = runtime.client()
    ends = {}
    async for line in client.list_instances("Three"):
        status = await client.instance("Three", line.id).wait(30)
        ends[line.id] = [status.status, status.output]
    say("settled", ledgers=found, instances=ends)


async def main(data: str, log: str, first: int, count: int) -> None:
    limits.CHECKPOINT_PAGES = 40  # so that some end while it works
    async with toque.embedded(data, [Ledger, Three]) as runtime:
        say("read", ledgers=await read(runtime))
        if not count:
            await settle(runtime)
            return
        numbers = range(first, first + count)
        await asyncio.gather(
            create(runtime, log, numbers), *(deposit(runtime, key, numbers) for key in KEYS)
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
