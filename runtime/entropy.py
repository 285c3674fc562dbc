"""Randomness and new ids come in through constructors.

`SystemEntropy` draws from the operating system; `SeededEntropy` gives the same draws for the
same seed, which is what makes a simulated run reproducible.
"""

from __future__ import annotations

import os
import random
from typing import Protocol


class Entropy(Protocol):
    """A source of randomness."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def randrange(self, stop: int) -> int:
        """An int in [0, stop)."""

    def new_id(self) -> str:
        """32 lower-case hex digits that nobody has drawn before."""


class SystemEntropy:
    """Draws from the operating system; safe to use in every process."""

    def __init__(self) -> None:
        self._random = random.Random(os.urandom(16))
        self.random = self._random.random

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def new_id(self) -> str:
        return os.urandom(16).hex()


class SeededEntropy:
    """The same draws for the same seed.

    Args:
        seed: any int or string.
    """

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def new_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"
