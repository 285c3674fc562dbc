"""Which process is a shard's actor: each notes its number as its very first act.

Ray tells nobody the process of an actor until its constructor has returned, and health tells of a
process only once it answers. A process that hangs before that could not be ended by anybody; the
note names it. And Ray makes an actor anew while its former process may still be there, on a node
that was taken for dead: if that process stands still within a commit, it keeps the store locked.
So the next one ends it, where it can. Notes name; a process is ended only if it still runs.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import NamedTuple

from ..runtime.files import replace_text
from .keeper import Process, boot_id, end


class Claim(NamedTuple):
    """A note.

    Attributes:
        process: the actor's.
        node: the Ray node that it runs on.
        machine: where process numbers mean what they mean here; see `this_machine`.
    """

    process: Process
    node: str
    machine: str = ""


def this_machine() -> str:
    """Names what process numbers are good for: one boot of one machine, and one container."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _path(run_dir: str, shard: str) -> str:
    return os.path.join(run_dir, f"{shard}.process")


def write_claim(run_dir: str, shard: str, claim: Claim) -> None:
    """Note the process; a full disk is no reason not to start."""
    with contextlib.suppress(OSError):
        replace_text(_path(run_dir, shard), json.dumps([*claim.process, claim.node, claim.machine]))


def read_claim(run_dir: str, shard: str) -> Claim | None:
    """The last note; None if there is none that can be read."""
    try:
        with open(_path(run_dir, shard), encoding="utf-8") as file:
            pid, started, node, machine = json.load(file)
        return Claim(Process(int(pid), int(started)), str(node), str(machine))
    except (OSError, ValueError, TypeError):
        return None


def take_over(run_dir: str, shard: str, claim: Claim) -> bool:
    """Note the process in the place of a former one, and end that if it is on this machine.

    Gives whether there was one to end.
    """
    former = read_claim(run_dir, shard)
    write_claim(run_dir, shard, claim)
    is_here = former is not None and former.machine and former.machine == claim.machine
    if former is None or not is_here or former.process == claim.process:
        return False
    return bool(end([former.process]))
