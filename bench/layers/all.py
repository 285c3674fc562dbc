"""The micro-benchmarks of all layers, as one table. A minute; `--only` takes some of them."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from .. import sections
from ..figures import shown, table
from . import Row, commit, fairness, http, replay, step, transport

Measure = Callable[[Path, float], Awaitable[list[Row]]]
LAYERS: dict[str, Measure] = {
    "commit": commit.measure,
    "step": step.measure,
    "replay": replay.measure,
    "transport": transport.measure,
    "fairness": fairness.measure,
    "http": http.measure,
}


async def measure(names: Iterable[str], scale: float) -> list[Row]:
    """Some layers, each on a fresh directory."""
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="tq") as folder:
            found = await LAYERS[name](Path(folder), scale)
        for row in found:
            print(f"{row.layer}: {row.what}: {row.us:.1f} us, {row.ratio:.2f} x", flush=True)
        rows += found
    return rows


def figures(rows: list[Row]) -> dict[str, float]:
    """Microseconds and ratio by layer and unit."""
    found = {}
    for row in rows:
        name = f"{row.layer} {row.what}".replace(",", "").replace(" ", "_")
        found |= {f"{name}_us": row.us, f"{name}_ratio": row.ratio}
    return found


def report(rows: list[Row]) -> str:
    """The section."""
    head = ["layer", "unit", "us", "against", "us", "times"]
    lines = [
        [row.layer, row.what, shown(row.us), row.bare, shown(row.bare_us), shown(row.ratio)]
        for row in rows
    ]
    return f"""## Layers

`python -m bench layers`: each layer against something bare that does the least of the same, in
turns within one run, medians. Commits and steps as a caller waits for them, and their CPU; all else
is CPU. To find the layer in which a regression lies.

{table(head, lines)}
"""


def command(
    only: Annotated[str, typer.Option(help=f"Some of: {', '.join(LAYERS)}.")] = "",
    scale: Annotated[float, typer.Option(min=0.001, help="Of how often each is done.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON last.")] = False,
    page: Annotated[bool, typer.Option("--page/--no-report", help="Write the page.")] = True,
) -> None:
    """Each layer alone, against something bare."""
    names = [name for name in only.split(",") if name] or list(LAYERS)
    unknown = [name for name in names if name not in LAYERS]
    if unknown:
        raise typer.BadParameter(f"no layer {unknown[0]!r}; there are {', '.join(LAYERS)}.")
    rows = asyncio.run(measure(names, scale))
    if as_json:
        print(json.dumps(figures(rows)))
    if page and not only:
        sections.put("layers", report(rows), figures=figures(rows))
