"""Names of parametrized cases: the same in each process, as tests in parallel need them."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def shown(value: object) -> str:
    """A value as a name: its repr without addresses."""
    return _ADDRESS.sub("", repr(value))[:60]
