"""The keeper: a small process that leaves nothing of a local Ray cluster behind.

The process that starts a cluster starts a keeper first and holds a pipe to it. The keeper notes
the cluster's processes in the run file (`DATA/run.json`) and, when the pipe closes, ends those
that are left: after a clean stop the stragglers, after a `kill -9` of the starter all of them.
If the keeper is killed as well, the next start on the same directory reads the run file and ends
what is left (`end_run`).

A process is always named by its number *and* its start time, and the run by the boot, so that
nothing is ever ended that merely got a number again. Only children of the starter whose command
line holds the cluster's own temporary directory are taken for the cluster's, and their offspring.

This file runs alone (`python -I -S keeper.py ...`): it imports the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

WALK_PERIOD_MS = 500
WALK_ANYWAY_ROUNDS = 10
"""After so many periods the processes are looked through though none seems to be new."""
END_MAX_MS = 5_000


class Process(NamedTuple):
    """A process, for good: the number alone may be given again."""

    pid: int
    started: int
    """Clock ticks after boot."""


def identify(pid: int) -> Process | None:
    """The live process with that number; None if there is none (a zombie is none)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def is_alive(process: Process) -> bool:
    """Whether that very process still runs."""
    return identify(process.pid) == process


def boot_id() -> str:
    """Names the time since the machine was started."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def children(pid: int) -> list[int]:
    """The numbers of a process's children, of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{task}/children") as file,
            ):
                found.extend(map(int, file.read().split()))
    return found


def newest() -> str:
    """The number that a process or thread of this machine was given last; empty: not told."""
    with contextlib.suppress(OSError, IndexError), open("/proc/loadavg") as file:
        number = file.read().split()[4]
        return number if number != "0" else ""
    return ""


class Births:
    """Whether processes may be new since they were looked through: that walk takes 5 ms."""

    def __init__(self) -> None:
        self._newest = ""
        self._quiet = 0

    def are_there(self) -> bool:
        """Asked once a period. One that was just forked has not yet the command line that it is
        known by, so a birth counts in the next period, too."""
        former, self._newest = self._newest, newest()
        if not self._newest or self._newest != former or self._quiet >= WALK_ANYWAY_ROUNDS:
            self._quiet = 0
        else:
            self._quiet += 1
        return self._quiet <= 1


def command(pid: int) -> str:
    """The command line of a process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def offspring(roots: Iterable[int]) -> set[Process]:
    """The live processes among `roots` and all that descend from them."""
    found: set[Process] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        process = identify(pid)
        if process is not None and process not in found:
            found.add(process)
            todo.extend(children(pid))
    return found


def end(processes: Iterable[Process], wait_ms: int = END_MAX_MS) -> list[Process]:
    """Kill the processes that still run and wait for their end; gives those that were ended."""
    ended: list[Process] = []
    descriptors: list[int] = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(process.pid)  # from here on the number can't change hands
            descriptors.append(descriptor)
            if not is_alive(process):
                os.close(descriptors.pop())
                continue
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            ended.append(process)
    for descriptor in descriptors:
        wait_ended(descriptor, wait_ms)
        os.close(descriptor)
    return ended


def wait_ended(descriptor: int, wait_ms: int | None = None) -> bool:
    """Wait for the end of the process that a pidfd stands for; whether it has come."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(wait_ms))


# --- the run file ---


def write_run(path: str, run: dict[str, Any]) -> None:
    """Replace the run file in one step."""
    scratch = f"{path}.{os.getpid()}"
    with open(scratch, "w", encoding="utf-8") as file:
        json.dump(run, file)
    os.replace(scratch, path)


def read_run(path: str) -> dict[str, Any] | None:
    """The run file's content; None if there is none, or if it is of an earlier boot or torn."""
    try:
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) and run.get("boot") == boot_id() else None


def processes_of(run: dict[str, Any]) -> list[Process]:
    """The cluster's processes that a run file names, the keeper included."""
    return [Process(*pair) for pair in [*run.get("processes", ()), *run.get("keeper", ())]]


def starter_of(run: dict[str, Any]) -> Process:
    """The process that started the run."""
    return Process(*run["starter"])


def end_run(path: str) -> list[Process]:
    """End what is left of the run that the file names, and forget it. Its starter must be gone."""
    run = read_run(path)
    ended = end(processes_of(run)) if run is not None else []
    if run is not None and run.get("scratch"):
        shutil.rmtree(run["scratch"], ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return ended


# --- the process ---


def watch(path: str, starter: Process, scratch: str, pipe: int) -> None:
    """Note the cluster's processes until the pipe closes or the starter ends; then end them."""
    known: set[Process] = set()
    me = identify(os.getpid())
    run = {
        "boot": boot_id(),
        "starter": list(starter),
        "keeper": [list(me)] if me else [],
        "scratch": scratch,
    }
    noted: list[list[int]] | None = None
    poll = select.poll()
    poll.register(pipe, select.POLLIN | select.POLLHUP)
    births = Births()
    while True:
        if births.are_there():
            known = look_through(known, starter, scratch)
        current = sorted(map(list, known))
        if current != noted:
            with contextlib.suppress(OSError):  # a full disk must not end the keeper
                write_run(path, {**run, "processes": current})
                noted = current
        if poll.poll(WALK_PERIOD_MS) or not is_alive(starter):
            break
    known |= offspring(process.pid for process in known if is_alive(process))
    end(known)
    end_mine(path, scratch, me)


def look_through(known: set[Process], starter: Process, scratch: str) -> set[Process]:
    """The cluster's processes: of those that were known who still live, and who is new."""
    mine = [pid for pid in children(starter.pid) if pid != os.getpid()]
    roots = [pid for pid in mine if scratch in command(pid)]
    found = known | offspring([*roots, *(one.pid for one in known if is_alive(one))])
    return {process for process in found if is_alive(process)}


def end_mine(path: str, scratch: str, me: Process | None) -> None:
    """Remove the run file and the scratch directory, unless a newer run has taken them over."""
    run = read_run(path)
    if run is not None and me is not None and run.get("keeper") == [list(me)]:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def main(arguments: list[str]) -> None:
    """`keeper.py <run file> <starter pid> <its start time> <scratch directory> <pipe>`."""
    path, pid, started, scratch, pipe = arguments
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.write(1, b"ready\n")
    os.close(1)
    watch(path, Process(int(pid), int(started)), scratch, int(pipe))


if __name__ == "__main__":
    main(sys.argv[1:])
