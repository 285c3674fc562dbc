"""The migration campaign: a server's account moves from V1 to V2 under load, and nothing is amiss.

    python -m tests.recovery.migration [--kill] [--finished 20000] [--queued 10000] ...

A real server on Ray is filled on V1 and moved while creates, reads, lists, events and pauses go on
(see `moving`); with `--kill` random shard actors are killed with SIGKILL meanwhile. Prints what
came out; exits with 1 if anything was violated or a request failed, or if creates during the move
took too long.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.recovery.moving import FULL, Figures, Move, Sizes, pause, percentile
from tests.recovery.server import Server
from toque.api.client_http import connect
from toque.api.wiring import DEFAULT_ACCOUNT
from toque.migration.refusals import MigrationRefused

P99_MAX_S = 1.0
KILL_GAP_S = (3.0, 8.0)


async def kill_some(server: Server, chance: random.Random, killed: list[float], move: Move) -> None:
    """Kill a random shard actor again and again, while there is load."""
    while not move.is_over:
        await pause(chance.uniform(*KILL_GAP_S))
        actors = await asyncio.to_thread(server.actors)
        if actors:
            killed.append(time.time())
            await asyncio.to_thread(server.kill, [chance.choice(actors)])


async def campaign(sizes: Sizes, *, kill: bool, seed: int, data_shards: int = 2) -> Figures:
    """Fill a server, move its account, and prove."""
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        data, log = Path(folder, "data"), Path(folder, "log")
        more = [str(sizes.lost_births)]
        server = await asyncio.to_thread(Server, data, log, data_shards, sizes.limit, more)
        killed: list[float] = []
        try:
            boss = connect(server.url, f"operator-{server.token}")
            async with server.client() as client, boss:

                async def start() -> None:
                    while True:
                        try:
                            await boss.migrations.start(DEFAULT_ACCOUNT)
                        except MigrationRefused:  # a shard was just killed
                            await pause(0.2)
                        else:
                            return

                async def migration() -> Any:
                    return await boss.migrations.status(DEFAULT_ACCOUNT)

                move = Move(client, start, migration, data, sizes, seed)
                try:
                    await move.fill()
                    print(f"filled: {await move.counts()}", flush=True)
                    await _moved(move, server, random.Random(seed) if kill else None, killed)
                    await move.finish()
                finally:
                    move.close()
        finally:
            await asyncio.to_thread(server.stop)
    figures = move.figures
    figures.kills = len(killed)
    p99_s = percentile(figures.creates_s, 99)
    if p99_s > P99_MAX_S and not kill:
        figures.violations.append(f"p99 of creates while it moved is {p99_s:.2f} s")
    if figures.failed:
        figures.violations.append(f"requests failed: {dict(figures.failed)}")
    if kill and not killed:
        figures.violations.append("nothing was killed")
    return figures


async def _moved(
    move: Move, server: Server, chance: random.Random | None, killed: list[float]
) -> None:
    """Move the account, and kill what there is meanwhile, if it is to be."""
    if chance is None:
        await move.run()
        return
    killing = asyncio.create_task(kill_some(server, chance, killed, move))
    try:
        await move.run()
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, value in FULL._asdict().items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(value), default=value)
    parser.add_argument("--kill", action="store_true", help="kill random shard actors meanwhile")
    parser.add_argument("--seed", type=int, default=1)
    options = vars(parser.parse_args())
    kill, seed = options.pop("kill"), options.pop("seed")
    figures = asyncio.run(campaign(Sizes(**options), kill=kill, seed=seed))
    print(figures.told())
    sys.exit(1 if figures.violations else 0)


if __name__ == "__main__":
    main()
