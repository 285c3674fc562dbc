"""Proves from a campaign's log, and from what the API says, that nothing was broken. Pure.

The log's lines stand in the order in which they were made, over all processes: bodies that start
and end (see flow), and processes that were seen dead (`killed`). With `recorded`, the value that
the API gives for each step, this shows without looking at any clock:

* the recorded value was returned by an attempt of that very step;
* after the line with the recorded value no body of that step starts: a completed step never runs
  again. (A body that ended and was not recorded may run again: then its value is not the
  recorded one.)
* a step starts only after the recorded end of the one before it;
* the number of instances with a body under way, in processes that live, is within the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec


class Line(msgspec.Struct, frozen=True):
    """A line of the log."""

    what: str
    pid: int
    at: float
    instance: str = ""
    step: int = -1
    value: str = ""


class Proof(NamedTuple):
    """What the log shows.

    Attributes:
        violations: sentences; empty if all is well.
        bodies: how many bodies started.
        repeated: how many of them were repeats.
        running_max: the most instances that had a body under way at one instant.
    """

    violations: list[str]
    bodies: int
    repeated: int
    running_max: int


def read_log(raw: bytes) -> list[Line]:
    """The lines of a log; the writer's process may have died within the last."""
    decoder = msgspec.json.Decoder(Line)
    whole = raw[: raw.rfind(b"\n") + 1]
    return [decoder.decode(line) for line in whole.splitlines()]


def prove(lines: Iterable[Line], recorded: Mapping[str, list[str]], limit: int) -> Proof:
    """Look for violations.

    Args:
        lines: the log.
        recorded: by instance, the recorded values of its steps, in order.
        limit: how many instances may run.
    """
    violations: list[str] = []
    ended: dict[tuple[str, int], set[str]] = {}
    started: dict[tuple[str, int], int] = {}
    under_way: dict[str, dict[tuple[int, str], int]] = {}
    running_max = 0
    dead: set[int] = set()

    def is_recorded(instance: str, step: int) -> bool:
        values = recorded.get(instance, [])
        return step < len(values) and values[step] in ended.get((instance, step), ())

    for line in lines:
        key = (line.instance, line.step)
        if line.what == "killed":
            dead.add(line.pid)
            for instance in list(under_way):
                bodies = under_way[instance]
                for body in [body for body in bodies if body[0] == line.pid]:
                    del bodies[body]
                if not bodies:
                    del under_way[instance]
        elif line.what == "start":
            if line.pid in dead:
                violations.append(f"process {line.pid} goes on after its end")
            if is_recorded(*key):
                violations.append(f"{line.instance}: step {line.step} ran again after its end")
            if line.step and not is_recorded(line.instance, line.step - 1):
                violations.append(
                    f"{line.instance}: step {line.step} began before the recorded end of the last"
                )
            started[key] = started.get(key, 0) + 1
            under_way.setdefault(line.instance, {})[line.pid, line.value] = line.step
            running_max = max(running_max, len(under_way))
            if len(under_way) > limit:
                violations.append(f"{len(under_way)} instances run; at most {limit} may")
        else:
            ended.setdefault(key, set()).add(line.value)
            bodies = under_way.get(line.instance, {})
            bodies.pop((line.pid, line.value), None)
            if not bodies:
                under_way.pop(line.instance, None)
    for instance, values in recorded.items():
        for step, value in enumerate(values):
            if value not in ended.get((instance, step), ()):
                violations.append(f"{instance}: step {step} has the value of no attempt: {value}")
    total = sum(started.values())
    return Proof(violations, total, total - len(started), running_max)


def what_changed(seen: Mapping[str, Iterable[tuple[int, Any]]]) -> list[str]:
    """Steps whose recorded value was seen to change.

    Args:
        seen: by instance, each `(step, value)` that the API ever told.
    """
    told = []
    for instance, pairs in seen.items():
        by_step: dict[int, set[Any]] = {}
        for step, value in pairs:
            by_step.setdefault(step, set()).add(value)
        told += [
            f"{instance}: step {step} was seen with {len(values)} results"
            for step, values in by_step.items()
            if len(values) > 1
        ]
    return told
