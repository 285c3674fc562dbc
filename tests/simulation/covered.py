"""Which branches of the pure cores seeds reach, and which they never do.

    python -m tests.simulation.covered --seeds 200

Only what the simulation alone reaches counts. What it does not reach is listed by line, to be
looked at: a fault or a piece of work may be missing.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parent.parent.parent
CORES = (
    "runtime/alarms.py",
    "runtime/gates.py",
    "runtime/group_commit.py",
    "runtime/outbox.py",
    "gatekeeper/fairness.py",
    "gatekeeper/rates.py",
    "gatekeeper/room.py",
    "gatekeeper/slots.py",
    "gatekeeper/spread.py",
    "souschef/demand.py",
    "souschef/known.py",
    "souschef/lane.py",
    "souschef/pacing.py",
    "souschef/repair.py",
    "souschef/roster.py",
    "souschef/sleepers.py",
    "engines/agenda.py",
    "engines/attempts.py",
    "engines/claiming.py",
    "engines/deletion.py",
    "engines/journal.py",
    "engines/life.py",
    "engines/loop.py",
    "engines/operations.py",
    "engines/outcomes.py",
    "engines/phases.py",
    "engines/replay.py",
    "engines/rollback.py",
    "engines/status.py",
)


def main() -> int:
    """Play seeds and tell what they reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.covered")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    given = parser.parse_args()
    watched = coverage.Coverage(
        data_file=None, branch=True, include=[str(ROOT / core) for core in CORES], messages=False
    )
    watched.start()  # before any of the cores is imported
    play = import_module("tests.simulation.campaign").play
    failed = [
        seed
        for seed in range(given.first, given.first + given.seeds)
        if play(seed).broken is not None
    ]
    watched.stop()
    watched.report(file=sys.stdout, show_missing=True, precision=1)
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
