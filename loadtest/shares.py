"""How far the slots that workflows had were from a fair division of them. Pure.

At each sample the max-min share of each workflow follows from what it could have used (running
and queued) and from the slots there were. The error of a sample is the part of the fair shares
that somebody else had, from 0 (fair) to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..gatekeeper.fairness import Claim, divide


class Use(NamedTuple):
    """What a workflow had in one sample."""

    running: int
    queued: int


def sample_error(slots: int, uses: Mapping[str, Use]) -> float | None:
    """The error of one sample; None: nobody had to go short, so any division is fair."""
    names = sorted(uses)
    wanted = [uses[name].running + uses[name].queued for name in names]
    if slots < 1 or sum(wanted) <= slots:
        return None
    claims = [Claim(want, 1, (place,)) for place, want in enumerate(wanted)]
    fair = divide(slots, claims)
    short = sum(max(0, share - uses[name].running) for name, share in zip(names, fair, strict=True))
    return short / sum(fair)


def share_error(errors: Sequence[float | None]) -> float | None:
    """The mean of the samples that tell something."""
    told = [error for error in errors if error is not None]
    return sum(told) / len(told) if told else None
