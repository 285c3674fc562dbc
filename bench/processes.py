"""CPU and memory of process trees, read from /proc, by role."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None


def descendants(root: int) -> list[int]:
    """The process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of one process so far; 0 if it is gone."""
    stat = _stat(pid)
    return 0.0 if stat is None else (int(stat[11]) + int(stat[12])) / _TICKS


def role(pid: int, root: int) -> str:
    """What part of toque a process is."""
    if pid == root:
        return "api"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "gone"
    if "ShardActor" in words:
        return "shards"
    return "ray"


def cpu_by_role(root: int) -> dict[int, tuple[str, float]]:
    """`{pid: (role, CPU seconds)}` of a toque server's process tree."""
    return {pid: (role(pid, root), cpu_s(pid)) for pid in descendants(root)}


def spent(before: dict[int, tuple[str, float]], root: int) -> dict[str, float]:
    """CPU seconds by role since `before`."""
    total: dict[str, float] = {}
    for pid, (name, seconds) in cpu_by_role(root).items():
        start = before.get(pid, (name, 0.0))[1]
        total[name] = total.get(name, 0.0) + seconds - start
    return total


def machine_busy_s() -> float:
    """CPU seconds that all processes of the machine have used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[n]) for n in (0, 1, 2, 5, 6, 7)) / _TICKS
