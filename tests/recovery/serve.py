"""The process under test: a control plane on Ray, served over HTTP, until SIGINT or worse.

    python -m tests.recovery.serve DATA PORT TOKEN LIMIT DATA_SHARDS [LOST_BIRTHS]

With LOST_BIRTHS its account is on V1, with the workflows of `moving_flow`, without a rate, and of
every so many creates one has no Engine (0: none).

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
from toque.api.auth import ADMIN, OPERATOR, Principal, TokenBook
from toque.api.server_http import HttpServer
from toque.api.wiring import DEFAULT_ACCOUNT, NO_RATES
from toque.api.wiring_ray import start_ray
from toque.runtime.clock import SystemClock

APP = Path(__file__).with_name("flow.py")
MOVING_APP = Path(__file__).with_name("moving_flow.py")


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def main(
    data: str, port: int, token: str, limit: int, data_shards: int, lost_births: int | None = None
) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopping.set)

    def on_event(event: Event) -> None:
        say(**event._asdict())

    async with start_ray(
        data,
        app_path=APP if lost_births is None else MOVING_APP,
        running_max=limit,
        data_shards=data_shards,
        num_cpus=2,
        on_event=on_event,
        creates_per_second=NO_RATES,
        control_plane=None if lost_births is None else "v1",
        v1=(limit, NO_RATES[0], lost_births or 0),
    ) as runtime:
        boss = Principal(OPERATOR, ADMIN, "boss", "operator")
        app = make_app(
            runtime.control_plane,
            tokens=TokenBook({token: DEFAULT_ACCOUNT, f"operator-{token}": boss}),
            version="0",
        )
        server = HttpServer(app, SystemClock(), port=port)
        await server.start()
        say(what="ready")
        await stopping.wait()
        await server.stop()


if __name__ == "__main__":
    folder, port, token, *numbers = sys.argv[1:]
    asyncio.run(main(folder, int(port), token, *map(int, numbers)))
