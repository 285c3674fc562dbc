"""Figures of the front ends that serve one address, so that each of them can tell those of all.

Who scrapes the shared address reaches any of them. So each writes its own into a file of the run's
private directory once a second, whole or not at all, and whoever is asked reads the others'. What
one that has ended had counted stays, and who is started in its place goes on from there: a sum of
counters that falls is taken for a restart of all, and shown as a peak.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..runtime.histogram import merged


class RouteFigures(msgspec.Struct, array_like=True, frozen=True):
    """Requests of one route: how many by status, and how long they took (as of a histogram)."""

    method: str
    path: str
    statuses: dict[int, int]
    took_us: list[int]


class FrontFigures(msgspec.Struct, frozen=True):
    """What one front end has counted.

    Attributes:
        number: which: 0 is the process that keeps the shards.
        process: as `ProcessMeter.figures`; None: nobody measures.
        frames: calls in each frame that it sent, as of a histogram; None: nobody counts.
        in_flight: requests under way.
        routes: those of which there were any.
        reroutes: calls that were sent another way because the account had moved.
    """

    number: int
    process: dict[str, Any] | None
    frames: list[int] | None
    in_flight: int
    routes: list[RouteFigures]
    reroutes: int = 0

    @property
    def name(self) -> str:
        """What its series are called."""
        return "api" if self.number == 0 else f"api-{self.number}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FrontFigures).decode


def figures_path(folder: str, number: int) -> str:
    """The file of a front end."""
    return os.path.join(folder, f"front-{number}")


def write_figures(folder: str, figures: FrontFigures) -> None:
    """Put a front end's figures where the others read them."""
    path = figures_path(folder, figures.number)
    scratch = f"{path}.new"
    with open(scratch, "wb") as file:
        file.write(_encode(figures))
    os.replace(scratch, path)


def read_figures(folder: str, count: int, own: int) -> list[FrontFigures]:
    """Those of the other front ends, as they last wrote them.

    Args:
        folder: where they are.
        count: how many front ends there are.
        own: whose are left out.
    """
    found = (figures_of(folder, number) for number in range(count) if number != own)
    return [each for each in found if each is not None]


def figures_of(folder: str, number: int) -> FrontFigures | None:
    """What a front end, or the one before it, last wrote; None: nothing yet."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return _decode(Path(figures_path(folder, number)).read_bytes())
    return None


def front_ended(folder: str, number: int) -> None:
    """A front end has ended: keep what it had counted, and nothing of how it stood."""
    last = figures_of(folder, number)
    if last is not None:
        counted = FrontFigures(number, None, None, 0, last.routes, last.reroutes)
        write_figures(folder, counted)


def counted_on(figures: FrontFigures, before: FrontFigures) -> FrontFigures:
    """What a front end has counted, on top of what the one before it had."""
    routes, reroutes = merged_routes([figures, before]), figures.reroutes + before.reroutes
    return msgspec.structs.replace(figures, routes=routes, reroutes=reroutes)


def merged_routes(fronts: Iterable[FrontFigures]) -> list[RouteFigures]:
    """The routes of all front ends together."""
    found: dict[tuple[str, str], RouteFigures] = {}
    for route in (route for front in fronts for route in front.routes):
        key = route.method, route.path
        known = found.get(key)
        if known is None:
            found[key] = route
            continue
        statuses = dict(known.statuses)
        for status, count in route.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
        took_us = merged([known.took_us, route.took_us])
        found[key] = RouteFigures(*key, statuses, took_us)
    return list(found.values())
