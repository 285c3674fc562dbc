"""Servers in the test's own process, and options small enough for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from toque.api.app_http import make_app
from toque.api.auth import ADMIN, OPERATOR, WRITE, Principal, TokenBook
from toque.api.server_http import HttpServer
from toque.api.wiring import NO_RATES, start_embedded
from toque.loadtest.fleet import Access
from toque.loadtest.options import Options, resolved
from toque.loadtest.targets_http import APP
from toque.runtime.clock import SystemClock

EVERY_S = 0.2
TOKENS = {"operator": Principal(OPERATOR, ADMIN), "writer": Principal("default", WRITE)}
SMALL: dict[str, dict[str, Any]] = {
    "burst": {"count": 40},
    "steady": {"rate": 40.0, "duration_s": 0.5},
    "ramp": {"rate": 40.0, "duration_s": 0.3, "rate_max": 80.0, "slo": ["error_rate=0"]},
    "queue": {"count": 130, "limit": 40, "hold_s": 0.02},
    "waiters": {"count": 120},
    "noisy-neighbour": {
        "count": 400, "limit": 4, "hold_s": 0.05, "rate": 10.0, "duration_s": 0.6, "quiet": 2,
    },
    "mixed": {"rate": 60.0, "duration_s": 0.7},
}  # fmt: skip


def small(scenario: str, **more: Any) -> Options:
    """A scenario at a scale for tests."""
    return resolved(scenario, **{**SMALL[scenario], "drain_s": 20.0, **more})


@asynccontextmanager
async def serving(
    folder: Path, app: Path | None = APP, rates: tuple[int, int] = NO_RATES
) -> AsyncIterator[str]:
    """A server; gives its url. Tokens: TOKENS."""
    async with start_embedded(folder / "data", app_path=app, creates_per_second=rates) as runtime:
        served = make_app(
            runtime.control_plane,
            tokens=TokenBook(TOKENS),
            version="test",
            process=runtime.process,
        )
        async with HttpServer(served, SystemClock()) as server:
            yield server.url


def access(url: str, token: str = "operator") -> Access:
    """How it is reached."""
    return Access(url, token, "default", 64)
