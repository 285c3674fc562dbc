"""The body of a step blocks the loop of its whole shard."""

from __future__ import annotations

from .base import Fault

FAULT = Fault("block", ("user code blocks",), modes=("block",), part_of=25)
