"""V1 against V2 under the same rising load: how long creates take, and where each has enough.

For each control plane a server on Ray, whose account is on it; the same open loop of creates comes
to both, faster step by step, until a server has enough: it answers less than nine tenths of what
comes, or its slowest hundredth takes longer than a second. V1's rate of 100 creates in 10 s is
lifted: it would end V1 at ten a second, and hide what one entity for a whole account can do. Draws
docs/planes.svg.
"""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import matplotlib as mpl
import typer
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from toque.api.app_http import make_app
from toque.api.auth import TokenBook
from toque.api.server_http import HttpServer
from toque.api.serving import settle
from toque.api.wiring import DEFAULT_ACCOUNT, NO_RATES
from toque.api.wiring_ray import start_ray
from toque.loadtest.histograms import percentile
from toque.runtime import limits
from toque.runtime.clock import SystemClock

from .creates import Load
from .figures import table
from .server import APP

PLOT = Path(__file__).parents[1] / "docs" / "planes.svg"
RATES = (25, 50, 100, 150, 200, 300, 400, 500, 600, 800, 1_000, 1_200)
ENOUGH_P99_MS = 1_000.0
ENOUGH_SHARE = 0.9
NAMES = {"v1": "V1: one entity", "v2": "V2: Account, Gatekeeper, SousChefs"}
_COLOURS = {"v1": "#c2410c", "v2": "#1d4ed8"}


async def serve(folder: str, plane: str) -> None:
    """The server's process, until its input ends."""
    token = secrets.token_hex(16)
    async with start_ray(
        folder,
        app_path=APP,
        data_shards=2,
        creates_per_second=NO_RATES,
        control_plane="v1" if plane == "v1" else None,
        v1=(limits.V1_RUNNING_MAX, NO_RATES[0], 0),
    ) as runtime:
        app = make_app(
            runtime.control_plane, tokens=TokenBook({token: DEFAULT_ACCOUNT}), version="bench"
        )
        async with HttpServer(app, SystemClock()) as server:
            settle()
            print(json.dumps({"url": server.url, "token": token}), flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@asynccontextmanager
async def serving(plane: str) -> AsyncIterator[Load]:
    """A server of its own on a fresh directory, and calls to it."""
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        command = [sys.executable, "-m", "bench", "planes", "--role", plane, "--folder", folder]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches who started it, and closes its input
        )
        assert process.stdout is not None
        try:
            told = json.loads(await asyncio.to_thread(process.stdout.readline))
            headers = {"Authorization": f"Bearer {told['token']}"}
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
                yield Load(session, told["url"])
        finally:
            await asyncio.to_thread(process.communicate, "")


async def ended(load: Load) -> int:
    """How many instances have ended."""
    counts = (await load.get("/OneStep"))["result"]["instances"]
    return int(counts["complete"])


async def ramp(load: Load, rates: list[float], seconds: float) -> list[dict[str, float]]:
    """Each rate for some seconds, until the server has enough."""
    found: list[dict[str, float]] = []
    await load.create_at(20, count=40, workflow="OneStep")
    for rate in rates:
        before, start = await ended(load), time.perf_counter()
        took = await load.create_at(rate, count=int(rate * seconds), workflow="OneStep")
        spent = time.perf_counter() - start
        row = {
            "rate": rate,
            "answered_per_s": len(took) / spent,
            "ended_per_s": (await ended(load) - before) / (time.perf_counter() - start),
            "p50_ms": percentile(took, 0.5),
            "p99_ms": percentile(took, 0.99),
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        found.append(row)
        if row["p99_ms"] > ENOUGH_P99_MS or row["answered_per_s"] < ENOUGH_SHARE * rate:
            break
        await asyncio.sleep(1)
    return found


def plot(rows: dict[str, list[dict[str, float]]]) -> str:
    """The figures as SVG."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "toque", "font.size": 9,
             "axes.spines.right": False, "axes.spines.top": False}  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=(7.5, 3.0), layout="constrained")
        left, right = figure.subplots(1, 2)
        for plane, found in rows.items():
            rate = [row["rate"] for row in found]
            look: dict[str, Any] = {"marker": "o", "markersize": 3, "color": _COLOURS[plane]}
            left.plot(rate, [row["p99_ms"] for row in found], label=NAMES[plane], **look)
            right.plot(rate, [row["ended_per_s"] for row in found], label=NAMES[plane], **look)
        most = max(row["rate"] for found in rows.values() for row in found)
        right.plot([0, most], [0, most], color="#9ca3af", linewidth=0.8, linestyle=(0, (4, 3)))
        left.set_yscale("log")
        left.set_ylabel("a create's p99, ms")
        right.set_ylabel("instances ended a second")
        for axes in (left, right):
            axes.set_xlabel("creates a second")
            axes.grid(color="#d1d5db", linewidth=0.5)
        left.legend(frameon=False)
        text = io.StringIO()
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def report(rows: dict[str, list[dict[str, float]]]) -> str:
    """The figures as a Markdown table."""
    head = ["creates /s", "V1: p50 ms", "p99 ms", "ended /s", "V2: p50 ms", "p99 ms", "ended /s"]
    keys = ("p50_ms", "p99_ms", "ended_per_s")
    by_rate = {
        plane: {row["rate"]: [f"{row[key]:,.0f}" for key in keys] for row in found}
        for plane, found in rows.items()
    }
    nothing = ["-"] * len(keys)
    rates = sorted({rate for found in by_rate.values() for rate in found})
    lines = [
        [
            f"{rate:g}",
            *(cell for plane in NAMES for cell in by_rate.get(plane, {}).get(rate, nothing)),
        ]
        for rate in rates
    ]
    return table(head, lines)


async def measured(rates: list[float], seconds: float) -> dict[str, list[dict[str, float]]]:
    """Both planes, one after the other."""
    found = {}
    for plane in NAMES:
        async with serving(plane) as load:
            found[plane] = await ramp(load, rates, seconds)
    return found


def command(
    rates: Annotated[str, typer.Option(help="Creates a second, one after the other.")] = ",".join(
        map(str, RATES)
    ),
    seconds: Annotated[float, typer.Option(min=1, help="How long each.")] = 10,
    page: Annotated[bool, typer.Option("--plot/--no-plot", help="Write docs/planes.svg.")] = True,
    role: Annotated[str, typer.Option(hidden=True)] = "",
    folder: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """V1 against V2 under the same rising load, on Ray."""
    if role:
        asyncio.run(serve(folder, role))
        return
    rows = asyncio.run(measured([float(rate) for rate in rates.split(",")], seconds))
    print(report(rows))
    if page:
        PLOT.write_text(plot(rows), encoding="utf-8")
