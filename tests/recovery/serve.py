"""The process under test: a control plane on Ray, served over HTTP, until SIGINT or worse.

    python -m tests.recovery.serve DATA PORT TOKEN LIMIT DATA_SHARDS

Prints one JSON object per line: `ready`, and each event of the supervisor.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from toque.actors.supervisor_ray import Event
from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.server_http import HttpServer
from toque.api.wiring import DEFAULT_ACCOUNT, NO_RATES
from toque.api.wiring_ray import start_ray
from toque.runtime.clock import SystemClock

APP = Path(__file__).with_name("flow.py")


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def main(data: str, port: int, token: str, limit: int, data_shards: int) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopping.set)

    def on_event(event: Event) -> None:
        say(**event._asdict())

    async with start_ray(
        data,
        app_path=APP,
        running_max=limit,
        data_shards=data_shards,
        num_cpus=1,
        on_event=on_event,
        creates_per_second=NO_RATES,
    ) as runtime:
        app = make_app(
            runtime.control_plane,
            tokens=TokenBook({token: DEFAULT_ACCOUNT}),
            version="0",
        )
        server = HttpServer(app, SystemClock(), port=port)
        await server.start()
        say(what="ready")
        await stopping.wait()
        await server.stop()


if __name__ == "__main__":
    folder, port, token, limit, data_shards = sys.argv[1:]
    asyncio.run(main(folder, int(port), token, int(limit), int(data_shards)))
