"""The body of a step never ends; some do not even if they are cancelled."""

from __future__ import annotations

from .base import Fault

FAULT = Fault(
    "hang",
    ("user code hangs", "user code ignores its cancel"),
    modes=("hang", "deaf"),
    is_calm=True,
    part_of=25,
)
