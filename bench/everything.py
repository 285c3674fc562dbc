"""Every measure of `make bench`, one after another, each in a process of its own.

The parts stand in the order of what matters most; a part that would not fit into the time that is
left is left out, and the page says of what it would have measured that it is not measured. A part
that fails or takes too long is ended, by the ids of its processes, and the others go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from . import peers, processes, progress, sections

STOP_S = 90
LEFT_OUT = "left out: no time"


class Part(NamedTuple):
    """A measure: its words, how long it takes about, and how long it may."""

    words: tuple[str, ...]
    usual_s: float
    most_s: float


def parts(others: bool) -> list[Part]:
    """What is run. The comparison measures what `throughput` does, so one of them is enough.

    With it there is no time for what scale is about: `waiters` with a million, `running` and
    `recovery` are then to be run alone.
    """
    first = (
        Part(("compare", "--seconds", "640"), 640, 760)
        if others
        else Part(("throughput",), 60, 180)
    )
    scale = [Part(("running",), 150, 300), Part(("recovery",), 330, 480)]
    return [
        first,
        Part(("layers",), 40, 150),
        Part(("control-plane",), 35, 120),
        Part(("slow-fsync", "--peers", "dbos-pg" if others else "none"), 170, 300),
        Part(("creates",), 320, 400),
        Part(("idle",), 75, 180),
        Part(("waiters", "--live", "5000", "--n", "100000"), 110, 240),
        Part(("steps",), 20, 90),
        Part(("http-clients",), 10, 60),
        *([] if others else scale),
    ]


def sections_of(found: list[Part]) -> list[str]:
    """The sections that some parts write."""
    written = {"compare": ["comparison", "throughput"]}
    return [name for part in found for name in written.get(part.words[0], [part.words[0]])]


def quick_parts(others: bool) -> list[Part]:
    """The same with small counts, to see that all of it works."""
    small = {
        "compare": "--seconds 90 --n 400 --rounds 1 --waiters 300",
        "throughput": "--rounds 1 --n 400",
        "layers": "--scale 0.05",
        "control-plane": "--creates 100",
        "idle": "--seconds 2 --settle 1",
        "slow-fsync": "--rounds 1 --n 300",
        "creates": "--seconds 3",
        "steps": "--steps 200",
        "waiters": "--live 200 --n 500 --herd 100 --lead 10",
        "running": "--n 200 --seconds 2",
        "recovery": "--kills 1 --waiting 200 --running 20",
        "http-clients": "--calls 320",
    }
    return [
        Part((part.words[0], *small[part.words[0]].split(), "--no-report"), 10, 120)
        for part in parts(others)
    ]


def run(part: Part, left_s: float) -> str:
    """Run a part; gives how it ended."""
    process = subprocess.Popen([sys.executable, "-m", "bench", *part.words], start_new_session=True)
    try:
        code = process.wait(min(part.most_s, left_s))
        return "done" if code == 0 else f"failed ({code})"
    except subprocess.TimeoutExpired:
        return "took too long"
    finally:
        if process.poll() is None:
            processes.end(process, STOP_S)


def command(
    minutes: Annotated[float, typer.Option(min=0.5, help="In all, about.")] = 24,
    quick: Annotated[bool, typer.Option(help="Small counts; writes no page.")] = False,
    file: Annotated[Path | None, typer.Option(help="Progress, a line of JSON each.")] = None,
) -> None:
    """All measures of `make bench`."""
    default = Path(tempfile.gettempdir()) / f"toque-bench-{os.getpid()}.jsonl"
    os.environ[progress.VARIABLE] = str(file or default)
    others = peers.installed()
    progress.note("all", minutes=minutes, peers=",".join(others), file=str(file or default))
    end = time.monotonic() + minutes * 60
    if not quick:
        sections.drop(sections_of(parts(bool(others))))
    outcomes = []
    for part in (quick_parts if quick else parts)(bool(others)):
        left, start = end - time.monotonic(), time.monotonic()
        told = run(part, left) if left >= part.usual_s else LEFT_OUT
        outcomes.append(told)
        progress.note(part.words[0], ended=told, s=round(time.monotonic() - start))
    raise typer.Exit(0 if set(outcomes) <= {"done", LEFT_OUT} else 1)
