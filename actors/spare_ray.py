"""A spare worker: a Ray process that is there already, for a shard that must start anew.

Starting a process and importing Ray take most of the time for which a killed shard is away. Ray
gives an actor that it starts anew an idle worker that has run nothing yet, if there is one. Where
all CPUs have a worker from the start, as on big machines, there is. Else a task brings one: for
its lease Ray starts a worker ahead, beside the one that runs the task, which ends after it.
Ray ends idle workers when there are more of them than free CPUs.
"""

from __future__ import annotations

from typing import Any

import ray


def _nothing() -> None:
    """The task."""


def bring_spare() -> Any:
    """Send the task that makes Ray start a worker ahead.

    Returns:
        Ray's reference to the task's end.

    Raises:
        RayError: Ray can't take it.
    """
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_retries": 0,
        "max_calls": 1,  # a worker that has run a task never becomes an actor's
        "name": "toque spare",
    }
    task: Any = ray.remote(**options)(_nothing)
    return task.remote()
