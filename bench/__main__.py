"""`python -m bench MEASURE [options]`; without a measure, or with --help, lists all.

Each measure is a module with a function `command`, whose options typer reads. Only the module that
is asked for is imported.
"""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import typer

MEASURES = {
    "all": "everything",
    "compare": "compare",
    "throughput": "throughput",
    "layers": "layers.all",
    "slow-fsync": "slow_fsync",
    "idle": "idle",
    "steps": "steps",
    "waiters": "waiters",
    "running": "running",
    "recovery": "recovery",
    "creates": "creates",
    "control-plane": "control_plane",
    "paging": "paging",
    "queue": "queues",
    "noisy": "noisy",
    "front": "front",
    "planes": "planes",
    "http-clients": "http_clients",
    "ray-transport": "transport",
    "regress": "regress",
}
"""Module of this package by the command's name."""


def make_app(names: list[str]) -> typer.Typer:
    """The commands of some measures."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def about() -> None:
        """Measure toque on this machine. `make bench` runs those that fit into 25 minutes."""

    for name in names:
        app.command(name)(_of_numbers(import_module(f".{MEASURES[name]}", __package__).command))
    return app


def _of_numbers(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which refuses what is no number: that is within any bounds."""

    @wraps(command)
    def checked(**options: Any) -> None:
        for name, value in options.items():
            if isinstance(value, float) and not math.isfinite(value):
                told = f"--{name.replace('_', '-')} is {value}, which is not a number of anything."
                raise typer.BadParameter(told)
        command(**options)

    return checked


def main() -> None:
    """Run the measure that the command line names. SIGTERM ends it as Ctrl-C does."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has them ignored
        signal.signal(number, signal.default_int_handler)
    asked = [word for word in sys.argv[1:2] if word in MEASURES]
    make_app(asked or list(MEASURES))(prog_name="python -m bench")


if __name__ == "__main__":
    main()
