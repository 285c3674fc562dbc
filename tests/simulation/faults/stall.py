"""Frames are lost, and their connections are silent for long before they fall; a link is cut."""

from __future__ import annotations

from toque.runtime.simnet import Weather

from .base import Fault, Strike

_LASTS_S = 15.0


def _weather(weather: Weather, worse: float) -> None:
    weather.stall = 0.003 * worse


def _befalls(strike: Strike) -> None:
    """Nothing gets through between two processes for a while."""
    world = strike.world
    owners = [site.owner for site in world.sites.values() if site.owner is not None]
    names = [owner.process.name for owner in owners]
    names += [front.name for front in world.fronts]
    source = names[strike.chance.randrange(len(names))]
    until = world.loop.time() + strike.chance.random() * _LASTS_S
    world.network.block(source, strike.shard(), until)


FAULT = Fault("stall", ("partition", "stall of calls", "stall of answers"), _befalls, _weather)
