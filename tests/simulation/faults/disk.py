"""The disk reports an error at a commit, after the fact or before: the outcome is unknown."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    strike.at_a_commit("fails, lost", "fails, kept")


FAULT = Fault("disk", ("a commit fails, kept", "a commit fails, lost"), _befalls)
