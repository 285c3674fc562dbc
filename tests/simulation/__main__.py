"""Plays seeds from the command line.

    python -m tests.simulation --seed 17 --trace        one seed, all of its trace
    python -m tests.simulation --seeds 1000 --jobs 2    a campaign, with a summary at its end

A seed that breaks a promise is told at once, with the end of its trace; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys

from .campaign import campaign, play


def main() -> int:
    """Parse the arguments and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed only")
    parser.add_argument("--trace", action="store_true", help="print every event of --seed")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes")
    parser.add_argument("--sabotage", action="append", default=[], help="a deliberate fault")
    given = parser.parse_args()
    if given.seed is None:
        return campaign(given.first, given.seeds, given.jobs, tuple(given.sabotage), tell=print)
    report = play(given.seed, tuple(given.sabotage), echo=print if given.trace else None)
    print(report.describe() if report.broken else f"seed {report.seed} kept its promises")
    print(
        f"hash {report.digest}, {report.events} events, {report.virtual_s:.0f} virtual s, "
        f"{report.cpu_s:.2f} CPU s, {report.instances} instances, {report.bodies} bodies"
    )
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
