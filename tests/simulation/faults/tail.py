"""Some frames take very long, so that others overtake them."""

from __future__ import annotations

from toque.runtime.simnet import Weather

from .base import Fault


def _weather(weather: Weather, worse: float) -> None:
    weather.tail = 0.02 * worse


FAULT = Fault("tail", ("delay",), weather=_weather)
