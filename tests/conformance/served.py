"""A live server for clients that are not ours: an embedded runtime behind HTTP, in a thread.

Blocking clients need a server that runs beside them; so it has a loop and a thread of its own, and
one serves a whole module of tests. It is closed in good order: the thread is joined.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.server_http import HttpServer
from toque.api.wiring import start_embedded
from toque.gatekeeper.planes import Plane
from toque.runtime.clock import SystemClock

TOKEN = "conformance"
OPERATORS_TOKEN = "operator"
ACCOUNT = "default"
APP = Path(__file__).with_name("shop_app.py")


class Served(NamedTuple):
    """Where the server is, and who may call it."""

    url: str
    token: str = TOKEN
    account: str = ACCOUNT

    @property
    def base_url(self) -> str:
        """What Cloudflare's clients are told instead of their own."""
        return f"{self.url}/client/v4"


class _Thread(threading.Thread):
    """Serves until `stopping` is set."""

    def __init__(self, data: Path, control_plane: Plane) -> None:
        super().__init__(name="served")
        self.url = ""
        self.failed: BaseException | None = None
        self.ready = threading.Event()
        self._data = data
        self._control_plane = control_plane
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.failed = error
        finally:
            self.ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with start_embedded(
            self._data, app_path=APP, data_shards=2, control_plane=self._control_plane
        ) as runtime:
            tokens = TokenBook({TOKEN: ACCOUNT, OPERATORS_TOKEN: "*"})
            app = make_app(runtime.control_plane, tokens=tokens, version="test")
            async with HttpServer(app, SystemClock()) as server:
                self.url = server.url
                self.ready.set()
                await self._stopping.wait()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        if self._loop is not None and self._stopping is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.join()


@contextmanager
def live_server(data: Path, control_plane: Plane = "v2") -> Iterator[Served]:
    """A server on loopback over the workflows of `shop_app.py`; on which plane the account is."""
    thread = _Thread(data, control_plane)
    thread.start()
    try:
        thread.ready.wait()
        if thread.failed is None:
            yield Served(thread.url)
    finally:
        thread.stop()
    if thread.failed is not None:
        raise thread.failed
