"""Which process is a shard's actor: each notes its number as its very first act.

Ray tells nobody the process of an actor until its constructor has returned, and health tells of a
process only once it answers. A process that hangs before that could not be ended by anybody; the
note names it. Notes name; they decide nothing: a process is ended only if it still runs.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import NamedTuple

from .keeper import Process


class Claim(NamedTuple):
    """A note.

    Attributes:
        process: the actor's.
        node: the Ray node that it runs on.
    """

    process: Process
    node: str


def _path(run_dir: str, shard: str) -> str:
    return os.path.join(run_dir, f"{shard}.process")


def write_claim(run_dir: str, shard: str, claim: Claim) -> None:
    """Note the process; a full disk is no reason not to start."""
    scratch = f"{_path(run_dir, shard)}.{claim.process.pid}"
    with contextlib.suppress(OSError):
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump([*claim.process, claim.node], file)
        os.replace(scratch, _path(run_dir, shard))


def read_claim(run_dir: str, shard: str) -> Claim | None:
    """The last note; None if there is none that can be read."""
    try:
        with open(_path(run_dir, shard), encoding="utf-8") as file:
            pid, started, node = json.load(file)
        return Claim(Process(int(pid), int(started)), str(node))
    except (OSError, ValueError, TypeError):
        return None
