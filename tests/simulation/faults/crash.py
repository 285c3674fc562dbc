"""A shard's owner dies at a commit, which is then lost or kept; nobody is answered."""

from __future__ import annotations

from .base import Fault, Strike


def _befalls(strike: Strike) -> None:
    strike.at_a_commit("lost", "kept")


FAULT = Fault("crash", ("crash, commit kept", "crash, commit lost"), _befalls)
