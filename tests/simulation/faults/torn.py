"""The machine stops while a commit is written: a part of it is in the log."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    strike.at_a_commit("torn")


FAULT = Fault("torn", ("crash, commit torn",), _befalls)
