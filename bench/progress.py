"""Tells how a long measurement gets on: a line on the terminal, and one of JSON in a file.

$TOQUE_BENCH_PROGRESS names the file, which parts that run as processes of their own share; each
line is written at once, so that what was measured is not lost when a run is ended.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

VARIABLE = "TOQUE_BENCH_PROGRESS"


def note(part: str, **figures: Any) -> None:
    """Tell something about a part."""
    shown = " ".join(f"{key}={_short(value)}" for key, value in figures.items())
    print(f"{time.strftime('%H:%M:%S')} {part}: {shown}", flush=True)
    path = os.environ.get(VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"at": round(time.time(), 1), "part": part, **figures}) + "\n")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
