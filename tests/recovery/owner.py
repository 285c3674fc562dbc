"""A process that owns one shard and serves it on a socket of its own, without Ray.

    python -m tests.recovery.owner FILE SHARD ADDRESS TOKEN BUSY_MS

Prints a JSON object per line: `failed` for each attempt to open that fails, `open` with its epoch
and address, `broken` with the code of what broke its store, after which it ends. So does SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from tests.recovery.ledger import Ledger
from toque.api.shards import OpenShard, ShardSettings, open_shard
from toque.engines.code_host import InProcessCodeHost
from toque.runtime import limits
from toque.runtime.clock import SystemClock
from toque.runtime.entropy import SystemEntropy
from toque.runtime.errors import to_wire
from toque.runtime.ids import Placement
from toque.runtime.link_socket import LinkServer, SocketLinks
from toque.runtime.opening import keep_opening


def say(what: str, **more: object) -> None:
    """One line."""
    print(json.dumps({"what": what, **more}), flush=True)


async def main(file: str, shard: str, address: str, token: str, busy_ms: str) -> None:
    limits.STORE_BUSY_MAX_MS = int(busy_ms)
    loop = asyncio.get_running_loop()
    secret, entropy = bytes.fromhex(token), SystemEntropy()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def end(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(error)

    loop.add_signal_handler(signal.SIGTERM, end, None)

    async def open_once() -> OpenShard:
        return open_shard(
            shard,
            Path(file),
            ShardSettings(Placement(1, 1), objects=[Ledger]),
            loop=loop,
            clock=SystemClock(),
            entropy=entropy,
            links=SocketLinks(lambda _: address, secret, loop, entropy),
            code_host=InProcessCodeHost(loop),
            on_broken=end,
        )

    opened = await keep_opening(open_once, lambda error, _: say("failed", error=to_wire(error)[0]))
    assert opened is not None
    server = LinkServer(shard, opened.epoch, secret, entropy, opened.serve_session)
    say("open", epoch=opened.epoch, address=await server.listen(address))
    error = await ended
    if error is not None:
        say("broken", error=to_wire(error)[0])
    await asyncio.sleep(0)  # what was answered in this turn leaves
    await server.close()
    await opened.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
