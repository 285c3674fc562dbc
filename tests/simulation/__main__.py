"""Plays seeds from the command line.

    python -m tests.simulation --seed 17 --trace        one seed, all of its trace
    python -m tests.simulation --seeds 1000 --jobs 2    a campaign, with a summary at its end
    python -m tests.simulation --bugs                   how soon each deliberate bug is found

A seed that breaks a promise is told at once, with the end of its trace and the fewest parts that
still break it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys

from .bugs import CASES, tell_of_bugs
from .campaign import campaign, play, shrink


def main() -> int:
    """Parse the arguments and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed only")
    parser.add_argument("--trace", action="store_true", help="print every event of --seed")
    parser.add_argument("--only", help="the parts of --seed that take place, separated by '; '")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes")
    parser.add_argument("--sabotage", action="append", default=[], help="a deliberate fault")
    parser.add_argument("--bugs", action="store_true", help="look for each deliberate fault")
    given = parser.parse_args()
    if given.bugs:
        return tell_of_bugs(given.sabotage or list(CASES), given.seeds, tell=print)
    sabotage = tuple(given.sabotage)
    if given.seed is None:
        return campaign(given.first, given.seeds, given.jobs, sabotage, tell=print)
    only = given.only.split("; ") if given.only else None
    report = play(given.seed, sabotage, print if given.trace else None, only=only)
    print(report.describe() if report.broken else f"seed {report.seed} kept its promises")
    print(
        f"hash {report.digest}, {report.events} events, {report.virtual_s:.0f} virtual s, "
        f"{report.cpu_s:.2f} CPU s, {report.instances} instances, {report.bodies} bodies"
    )
    if report.broken is not None and only is None:
        print(shrink(report, sabotage))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
