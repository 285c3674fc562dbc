"""What a run is made of, part by part, each of which can be switched off.

A *part* is one instance that clients want, one thing that befalls it, one fault at its instant, one
kind of weather. Each draws from a generator of its own, so that the rest of a run stays as it was
when a part is left out. That is how a failure is shrunk (see `shrink`).
"""

from __future__ import annotations

from collections.abc import Iterable


class Switches:
    """Which parts take place.

    Args:
        only: these, and no others; None: all.

    Attributes:
        met: the parts that took place, in the order in which they came up.
    """

    def __init__(self, only: Iterable[str] | None = None) -> None:
        self._only = None if only is None else frozenset(only)
        self.met: dict[str, None] = {}

    def on(self, part: str) -> bool:
        """Whether a part takes place."""
        if self._only is not None and part not in self._only:
            return False
        self.met[part] = None
        return True
