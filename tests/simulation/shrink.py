"""Shrinks a failure: the fewest parts of a run that still break the promise.

By bisection over switched-off parts (see `switches`): large groups of parts are left out as long as
the run still fails without them, then smaller ones. Leaving a part out lets the rest happen a
little differently, so what is left need not be the cause alone, but it is all that is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

RUNS_MAX = 120


def shrunk(
    parts: Sequence[str], fails: Callable[[Sequence[str]], bool], runs_max: int = RUNS_MAX
) -> tuple[list[str], int]:
    """The parts that are needed for `fails`, and how often it was asked.

    Args:
        parts: with all of which it fails.
        fails: whether it fails with those and no others.
        runs_max: after so many questions what is left is given as it is.
    """
    left, runs, size = list(parts), 0, max(1, len(parts) // 2)
    while True:
        start = 0
        found = False
        while start < len(left):
            if runs == runs_max:
                return left, runs
            tried = left[:start] + left[start + size :]
            runs += 1
            if fails(tried):
                left, found = tried, True
            else:
                start += size
        if size > 1:
            size = max(1, size // 2)
        elif not found:
            return left, runs
