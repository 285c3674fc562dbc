"""Frames are lost, calls and answers, and their connections fall."""

from __future__ import annotations

from toque.runtime.simnet import Weather

from .base import Fault


def _weather(weather: Weather, worse: float) -> None:
    weather.loss = 0.004 * worse


FAULT = Fault("loss", ("loss of calls", "loss of answers"), weather=_weather)
