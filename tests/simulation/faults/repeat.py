"""Calls come a second time, much later."""

from __future__ import annotations

from toque.runtime.simnet import Weather

from .base import Fault


def _weather(weather: Weather, worse: float) -> None:
    weather.repeat = 0.05 * worse


FAULT = Fault("repeat", ("repeat",), weather=_weather, is_calm=True)
